"""The training loop: one step after another, each a pure function of the recipe, the step and the weights before it.

Samples are numbered, and what is random in a step is seeded by the step and the sample, so a run has no hidden state:
what a checkpoint holds is all of it, and a run that was killed and resumed is the run that was not, bit for bit.
"""

import contextlib
import json
import signal
import time
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch
from rich.console import Console

import scannable.training.checkpoint as checkpoints
from scannable.storage.checked_folder import sum_of
from scannable.storage.configuration import ConfigurationError, to_plain
from scannable.storage.files import write_whole
from scannable.tasks import Split, Task
from scannable.tasks.sample import PinnedTask
from scannable.training.checkpoint import Checkpoint
from scannable.training.curriculum import Stage
from scannable.training.divergence import newest_good, remove_after
from scannable.training.evaluation import Score, Text, evaluate
from scannable.training.gradient import not_finite
from scannable.training.limits import check_memory
from scannable.training.logging import Display, Metrics, Sink
from scannable.training.parallel import Parallel
from scannable.training.processes import join_processes
from scannable.training.progress import Progress
from scannable.training.recipe import Recipe, pinned
from scannable.training.resume import agree, checkpoint_of, going_on, restore, share_of
from scannable.training.run_folder import (
    TrainingError,
    differences,
    load_recipe,
    load_result,
    newest_checkpoint,
    only_process_in,
    write_config,
)
from scannable.training.saving import Saving
from scannable.training.signals import signals
from scannable.training.step import NotFiniteError, Optimisation


class DivergedError(TrainingError):
    """A loss or gradient is not finite: another attempt would end at the same step."""


class Interrupted(Exception):  # noqa: N818  (nothing went wrong)
    """A signal asked the run to stop, and it has saved itself."""

    def __init__(self, message: str, number: int = signal.SIGINT) -> None:
        super().__init__(message)
        self.exit_code: int = 128 + number
        """What a shell expects of a program that this signal ended."""


class Run:
    """A recipe at work in a folder; `run_folder.py` says what it leaves there.

    >>> from dataclasses import replace
    >>> from scannable.recipes import demo
    >>> from rich.console import Console
    >>> from scannable.training.loop import Run
    >>> Run(replace(demo(), steps=2), folder / "run", console=Console(quiet=True)).train()["steps"]
    2
    """

    def __init__(
        self,
        recipe: Recipe[Any, Any],
        folder: Path | str,
        *,
        console: Console | None = None,
        device: str | torch.device = "cpu",
        sinks: Callable[[], list[Sink]] = list,
        parallel: Parallel | None = None,
    ) -> None:
        self.folder = folder = Path(folder)
        self.console = console or Console()
        self.parallel = parallel or Parallel()
        self.processes, self.device = join_processes(torch.device(device), self.parallel, lambda: _in_words(recipe))
        self.recipe = pinned(recipe, folder)
        self.task: Task = self.recipe.task
        _check_vocabulary(self.recipe)
        check_memory(self.recipe, self.device, shares=self.processes.count if self.parallel.shard else 1)
        sharded = self.parallel.shard
        with self.processes.roll_call.explaining():
            self.optimisation = Optimisation(self.recipe, self.processes, self.device, sharded=sharded)
            timeout = self.parallel.timeout if sharded else None
            self.saving = Saving(self.checkpoints, self.recipe, self.processes, timeout)
        self.model, self.optimizer = self.optimisation.model, self.optimisation.optimizer
        self.average = self.optimisation.average
        self.progress = Progress()
        self.metrics = Metrics(folder / "metrics.jsonl")
        self.timing = Metrics(folder / "timing.jsonl")
        self._sinks, self._make_sinks = list[Sink](), sinks
        self.asked_to_stop: int = 0
        """The number of the signal that asked for it."""

    # From the outside.

    def train(self, *, resume: bool = False, force: bool = False) -> dict[str, Any]:
        """Train to the end and return the result, which is also in `result.json`.

        Args:
            resume: go on from the newest checkpoint that is whole. Without it the folder must not hold a run yet. A run
                that has made all its steps goes on if the recipe has more of them now.
            force: resume even though the configuration was another one, and write it anew.

        Raises:
            Interrupted: after SIGTERM, SIGUSR1 or a first SIGINT; a checkpoint has been written.
            DivergedError: a loss or gradient is not finite.
            LostRankError: another process is gone or hangs.
            TrainingError: the folder does not fit.
        """
        alone = only_process_in(self.folder) if self.processes.first else contextlib.nullcontext()
        hearing = signals(self._heard, signal.SIGINT, signal.SIGTERM, signal.SIGUSR1)
        with alone, hearing, self.processes.roll_call.explaining():
            return self._run(resume, force)

    def _run(self, resume: bool, force: bool) -> dict[str, Any]:
        self._prepare(resume, force)
        self._sinks = self._make_sinks() if self.processes.first else []
        console = self.console if self.processes.first else Console(quiet=True)
        display = Display(console, self.recipe.steps, self.progress.step)
        try:
            if self.progress.ended:
                display.say(
                    f"{self.folder} has finished at step {self.progress.step}; a greater --steps goes on from there"
                )
            else:
                self._train(display)
            return self._finish(display)
        finally:
            display.close()
            for sink in self._sinks:
                sink.close()

    @property
    def checkpoints(self) -> Path:
        return self.folder / "checkpoints"

    # One step after another.

    def _train(self, display: Display) -> None:
        recipe, progress = self.recipe, self.progress
        began, tokens_since = time.monotonic(), 0
        while progress.ended is None:
            self.processes.roll_call.doing = f"at step {progress.step}"
            if not progress.look_due:
                length = self._length()
                loss, norm, tokens = self._one_step(length)
                tokens_since += tokens
                progress.step += 1
                progress.stage = progress.stage.after_step()
                progress.look_due = progress.step == recipe.steps or progress.step % recipe.evaluation.every == 0
                if progress.step % recipe.log_every == 0 or progress.step == recipe.steps:
                    rate, seconds = self.optimizer.param_groups[0]["lr"], time.monotonic() - began
                    self._record(kind="train", loss=loss, gradient_norm=norm, learning_rate=rate, length=length)
                    speed = tokens_since / seconds
                    self._time(seconds=seconds, tokens_per_second=speed)
                    began, tokens_since = time.monotonic(), 0
                    display.step(
                        progress.step, f"length {length}  loss {loss:.4f}  rate {rate:.2e}  {speed:,.0f} tokens/s"
                    )
            best = progress.best
            if progress.look_due:
                self._look(display)
            if progress.ended is None and progress.step == recipe.steps:
                progress.ended = "steps"
            # After the look, so that the last one at a length is not lost.
            self._enter(progress.stage.when_time_is_up(recipe.curriculum))
            number = self._stopping()
            # Last of all, when everything that the next step depends on is settled.
            if progress.ended or number or progress.step % recipe.checkpoint_every == 0 or progress.best is not best:
                self._save()
            if number and not progress.ended:
                self.saving.wait()
                raise self._interrupted(number)

    def _length(self) -> int:
        """The curriculum's length; now and then one of those before, chosen by the step's number."""
        curriculum, stage = self.recipe.curriculum, self.progress.stage
        generator = torch.Generator().manual_seed(self.optimisation.seed(self.progress))
        if stage.index and float(torch.rand((), generator=generator)) < curriculum.revisit:
            return curriculum.lengths[int(torch.randint(stage.index, (), generator=generator))]
        return stage.length(curriculum)

    def _one_step(self, length: int) -> tuple[float, float, int]:
        try:
            return self.optimisation.step(self.progress, length)
        except NotFiniteError as error:
            raise self._diverged(error, length) from error

    def _diverged(self, error: NotFiniteError, length: int) -> DivergedError:
        """What to say of a loss that is not finite; checkpoints that would come to one at once are removed."""
        self.saving.wait()
        step, bad, failed = self.progress.step, not_finite(self.model), self.progress.samples

        def loss_from(checkpoint: Checkpoint) -> float:
            before = restore(checkpoint, self.model, self.optimizer, self.average)
            next_length = before.stage.length(self.recipe.curriculum)
            plain_loss = self.optimisation.plain_loss
            return plain_loss(failed, length) + plain_loss(before.samples, next_length)

        good = newest_good(self.checkpoints, loss_from, share_of(self.model))
        self.processes.wait()
        if good is not None and self.processes.first:
            remove_after(self.checkpoints, good)
        self.processes.wait()
        left = (
            "no checkpoint gives a finite loss: start anew with a lower learning rate"
            if good is None
            else f"the checkpoint of step {good} gives finite losses: go on from it with a lower learning rate "
            "(--resume --force)"
        )
        return DivergedError(
            f"step {step + 1}: {error} (not finite in "
            f"{', '.join(bad[:3]) or 'no single parameter'}{' and others' if len(bad) > 3 else ''}); the weights have "
            f"not moved, and {left}"
        )

    # Looking.

    def score(self, length: int, split: Split = "validation", display: Display | None = None) -> Score:
        """An evaluation with the weights that would be used; of a text's test split, over every token."""
        recipe = self.recipe
        whole = split == "test" and isinstance(self.task, Text)

        def each(done: int, count: int) -> None:
            if display is not None:
                display.step(self.progress.step, f"{split} at length {length}: {done:,} of {count:,} samples")
            if number := self._stopping():
                raise self._interrupted(number)

        with self.optimisation.averaged():
            return evaluate(
                self.model,
                self.task,
                split,
                length,
                None if whole else recipe.evaluation.samples,
                batch_tokens=recipe.batch_tokens,
                precision=recipe.precision,
                each=each,
                sequence=self.processes.sequence,
            )

    def _look(self, display: Display) -> None:
        """Evaluate at the current length, and go on to the next one if it is learned."""
        recipe, progress, stage = self.recipe, self.progress, self.progress.stage
        length = stage.length(recipe.curriculum)
        try:
            score = self.score(length, display=display)
        except Interrupted:
            self._save()  # it is still due
            self.saving.wait()
            raise
        progress.look_due = False
        self._record(kind="evaluation", length=length, loss=score.loss, error=score.error)
        display.say(f"step {progress.step}: length {length}, validation loss {score.loss:.4f}, error {score.error:.2%}")
        progress.looked(score)
        self._enter(stage.after_evaluation(recipe.curriculum, score.loss, score.error))
        limit, patience = recipe.evaluation.stop_below, recipe.evaluation.patience
        learned = limit is not None and score.error < limit
        given_up = patience is not None and progress.stage.waited >= patience
        if stage.is_last(recipe.curriculum) and (learned or given_up):
            progress.ended = "enough"

    def _enter(self, stage: Stage) -> None:
        """Be where the curriculum is now; when that is a new length, what has to start anew does."""
        progress = self.progress
        new = stage.index != progress.stage.index
        if new and progress.step == self.recipe.steps:
            # What starts anew now would be tested as it starts.
            return
        progress.stage = stage
        if not new:
            return
        self._record(kind="stage", length=stage.length(self.recipe.curriculum))
        restarted = {
            name for callback in self.recipe.callbacks for name in callback.begin_stage(self.model, stage.index)
        }
        self.optimisation.restart(restarted)

    def _finish(self, display: Display) -> dict[str, Any]:
        """Test, unless that was done, and write the result."""
        self.saving.wait()
        recipe, progress = self.recipe, self.progress
        found = load_result(self.folder)
        if found is not None and found.get("steps") == progress.step:
            return found
        lengths = sorted({*recipe.evaluation.lengths, recipe.curriculum.lengths[-1]})
        step, best = progress.step, progress.best
        if recipe.evaluation.weights == "best" and best is not None and best.step != step:
            step = best.step
            found = checkpoints.read(checkpoints.path_of(self.checkpoints, step), share_of(self.model))
            restore(found, self.model, self.optimizer, self.average)
        average = ", averaged" if recipe.ema else ""
        display.say(f"testing the weights of step {step} ({recipe.evaluation.weights}{average})")
        scores = list[Score]()
        for length in lengths:
            score = self.score(length, "test", display)
            display.say(f"length {score.length}: test loss {score.loss:.4f}, error {score.error:.2%}")
            scores.append(score)
        result = {
            "steps": progress.step,
            "samples": progress.samples,
            "tokens": progress.tokens,
            "parameters": sum(p.numel() for p in self.model.parameters()),
            "best": None if best is None else asdict(best),
            "tested": {"weights": recipe.evaluation.weights, "step": step},
            "test": [asdict(score) for score in scores],
        }
        content = json.dumps(result, indent=1, sort_keys=True).encode() + b"\n"
        if self.processes.first:
            write_whole(self.folder / "result.json", content)
        self.processes.wait()
        return json.loads(content)

    def _record(self, **values: Any) -> None:
        if self.processes.first:
            self.metrics.append({"step": self.progress.step, **values})
            kind = values.pop("kind")
            for sink in self._sinks:
                sink.write(self.progress.step, {f"{kind}/{name}": value for name, value in values.items()})

    def _time(self, **values: float) -> None:
        if self.processes.first:
            self.timing.append({"step": self.progress.step, **values})

    # Saving and going on.

    def _save(self) -> None:
        if self.processes.first:
            # A checkpoint that outlives a power cut needs the metrics that it counts.
            self.metrics.flush()
        size = self.metrics.size if self.processes.first else 0
        checkpoint = checkpoint_of(self.recipe, self.progress, self.model, self.optimizer, self.average, size)
        self.saving.save(checkpoint, self.progress.best)

    def _prepare(self, resume: bool, force: bool) -> None:
        """Make the folder this run's own, or go on from what it holds."""
        if not resume:
            if (self.folder / "config.json").exists() or checkpoints.steps(self.checkpoints):
                raise TrainingError(f"{self.folder} holds a run already; go on with --resume, or choose another folder")
            self.processes.wait()
            self._write_config()
            return
        if self.processes.first:
            if self.checkpoints.is_dir():
                checkpoints.tidy(self.checkpoints)
            for path in self.folder.glob(".*.json.*"):  # what `write_whole` was killed in
                path.unlink()
        self.processes.wait()
        keep = share_of(self.model)
        checkpoint = newest_checkpoint(self.folder, lambda text: self._say(f"skipped: {text}"), keep)
        if checkpoint is None:
            changed = [] if force else self._differences_to_config()
            if changed:
                raise TrainingError(
                    f"{self.folder} was begun with another configuration ({'; '.join(changed[:5])}); use the same, or "
                    "--force to go on with this one"
                )
            if self.processes.first:
                self.metrics.cut(0)
            self._write_config()
            return
        changed = agree(checkpoint, self.recipe, force=force)
        self.progress = going_on(restore(checkpoint, self.model, self.optimizer, self.average), self.recipe, changed)
        if self.processes.first:
            lost = self.metrics.cut(checkpoint.state["metrics_bytes"])
            if lost:
                self._say(f"{self.metrics.path} lacks {lost:,} bytes of what was written; the run goes on without them")
        if changed:
            self._say(f"the configuration has changed: {'; '.join(changed[:5])}")
            self._save()
        elif self._differences_to_config():
            self._say(f"{self.folder / 'config.json'} did not agree with the checkpoint and is written anew")
        if self.progress.ended is None and self.processes.first:
            (self.folder / "result.json").unlink(missing_ok=True)
        self._write_config()

    def _write_config(self) -> None:
        if self.processes.first:
            write_config(self.folder, self.recipe)
            if isinstance(self.task, PinnedTask):
                self.task.keep(self.folder)
        self.processes.wait()

    def _differences_to_config(self) -> list[str]:
        if not (self.folder / "config.json").exists():
            return []
        try:
            return differences(to_plain(load_recipe(self.folder)), to_plain(self.recipe))
        except (ConfigurationError, TrainingError) as error:
            return [str(error)]

    def _say(self, text: str) -> None:
        if self.processes.first:
            self.console.print(text, highlight=False, markup=False, soft_wrap=True)

    # Stopping.

    def _heard(self, number: int) -> None:
        """Stop after this step; at a second SIGINT at once."""
        if self.asked_to_stop and number == signal.SIGINT:
            raise KeyboardInterrupt
        self.asked_to_stop = number

    def _stopping(self) -> int:
        """The signal that any process has heard."""
        numbers = self.processes.greatest(float(self.asked_to_stop))
        return int(numbers)

    def _interrupted(self, number: int) -> Interrupted:
        where = f"step {self.progress.step} of {self.recipe.steps}"
        what = f"stopped in the test after {where}" if self.progress.ended else f"stopped at {where}"
        return Interrupted(f"{what}; checkpoint saved in {self.folder}", number)


def _in_words(recipe: Recipe[Any, Any]) -> str:
    """A recipe in a few words, which differ where two recipes do: long fields by their sums."""
    plain = {name: json.dumps(value, sort_keys=True) for name, value in to_plain(recipe).items()}
    short = {name: text if len(text) < 16 else sum_of(text.encode())["sha256"][:8] for name, text in plain.items()}
    return "".join(f", {name}={text}" for name, text in short.items())


def _check_vocabulary(recipe: Recipe[Any, Any]) -> None:
    """Refuse a model that cannot read the task's tokens, or cannot say its answers, before it is built."""
    vocab_size = getattr(recipe.model, "vocab_size", None)
    out_size = getattr(recipe.model, "out_size", None) or vocab_size
    for name, have, need in (
        ("vocab-size", vocab_size, recipe.task.vocab_size),
        ("out-size", out_size, recipe.task.out_size),
    ):
        if have is not None and have < need:
            raise TrainingError(
                f"the task has {need} {'tokens' if name == 'vocab-size' else 'answers'}, the model only {have}; set "
                f"--model.{name} {need}"
            )
