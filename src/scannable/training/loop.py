"""The training loop: one step after another, each a pure function of the recipe, the step and the weights before it.

Samples are numbered and dropout is seeded by the step, so a run has no hidden state: what a checkpoint holds is all of
it, and a run that was killed and resumed is the run that was not, bit for bit.
"""

import contextlib
import json
import math
import signal
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch
from rich.console import Console
from rich.markup import escape
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

import scannable.training.checkpoint as checkpoints
from scannable.nn.loss import sliced_cross_entropy
from scannable.storage.configuration import ConfigurationError, from_plain, to_plain
from scannable.storage.files import write_whole
from scannable.storage.model_file import build_model
from scannable.tasks import IGNORED, Split, Task
from scannable.training.checkpoint import Checkpoint, CheckpointError
from scannable.training.curriculum import Stage
from scannable.training.evaluation import Score, Text, autocast, evaluate
from scannable.training.limits import check_memory
from scannable.training.logging import Display, Metrics, Sink
from scannable.training.processes import join_processes
from scannable.training.recipe import Recipe
from scannable.training.run_folder import TrainingError, differences, only_process_in
from scannable.training.schedule import adamw, learning_rate
from scannable.training.signals import signals


class DivergedError(TrainingError):
    """A loss or gradient is not finite: another attempt would end at the same step."""


class Interrupted(Exception):  # noqa: N818  (nothing went wrong)
    """A signal asked the run to stop, and it has saved itself."""

    def __init__(self, message: str, number: int = signal.SIGINT) -> None:
        super().__init__(message)
        self.number = number
        """Of the signal."""


class _Loss(nn.Module):
    """The sum of a batch's losses, as a module of its own, which can be compiled and distributed."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, tokens: Tensor, targets: Tensor) -> Tensor:
        count = (targets != IGNORED).sum()
        hidden: Any = getattr(self.model, "hidden", None)
        head: Any = getattr(self.model, "head", None)
        if hidden is not None and head is not None:
            return sliced_cross_entropy(hidden(tokens), targets, head) * count
        logits: Tensor = self.model(tokens)
        return nn.functional.cross_entropy(
            logits.flatten(0, 1).float(), targets.flatten(), ignore_index=IGNORED, reduction="sum"
        )


class Run:
    """A recipe at work in a folder: `config.json`, `metrics.jsonl`, `timing.jsonl`, `checkpoints/`, `result.json`."""

    def __init__(
        self,
        recipe: Recipe[Any, Any],
        folder: Path,
        *,
        console: Console | None = None,
        device: str | torch.device = "cpu",
        sinks: Callable[[], list[Sink]] = list,
    ) -> None:
        self.recipe = recipe
        self.folder = folder
        self.console = console or Console()
        self.processes, self.device = join_processes(torch.device(device))
        self.task: Task = recipe.task
        _check_vocabulary(recipe)
        check_memory(recipe, self.device)
        torch.manual_seed(recipe.seed)
        self.model: nn.Module = build_model(recipe.model).to(self.device)
        self.optimizer = adamw(self.model, recipe.optimizer)
        loss: Any = torch.compile(_Loss(self.model)) if recipe.compile else _Loss(self.model)
        self.loss: Any = (
            DistributedDataParallel(loss, find_unused_parameters=True) if self.processes.count > 1 else loss
        )
        self.average: dict[str, Tensor] = {}
        if recipe.ema:
            self.average = {name: p.detach().clone() for name, p in self.model.named_parameters()}
        self.step = 0
        self.samples = 0
        self.tokens = 0
        self.stage = Stage()
        self.best: dict[str, Any] | None = None
        self.done = False
        self.metrics = Metrics(folder / "metrics.jsonl")
        self.timing = Metrics(folder / "timing.jsonl")
        self._sinks, self._make_sinks = list[Sink](), sinks
        self.asked_to_stop = 0
        """The number of the signal that did, if one did."""

    # From the outside.

    def train(self, *, resume: bool = False, force: bool = False) -> dict[str, Any]:
        """Train to the end and return the result, which is also in `result.json`.

        Args:
            resume: go on from the newest checkpoint that is whole. Without it the folder must not hold a run yet.
            force: resume even though the configuration was another one.

        Raises:
            Interrupted: after SIGTERM, SIGUSR1 or a first SIGINT; a checkpoint has been written.
            DivergedError: a loss or gradient is not finite.
            TrainingError: the folder does not fit.
        """
        alone = only_process_in(self.folder) if self.processes.first else contextlib.nullcontext()
        with alone, signals(self._heard, signal.SIGINT, signal.SIGTERM, signal.SIGUSR1):
            self._prepare_folder(resume, force)
            display = Display(
                self.console if self.processes.first else Console(quiet=True), self.recipe.steps, self.step
            )
            self._sinks = self._make_sinks() if self.processes.first else []
            try:
                return self._train(display)
            finally:
                display.close()
                for sink in self._sinks:
                    sink.close()

    @property
    def checkpoints(self) -> Path:
        return self.folder / "checkpoints"

    # One step.

    def _train(self, display: Display) -> dict[str, Any]:
        recipe = self.recipe
        began, tokens_since = time.monotonic(), 0
        while not self.done:
            length = self._length()
            loss, norm, tokens = self._one_step(length)
            tokens_since += tokens
            self.step += 1
            self.stage = self.stage.after_step()
            rate = self.optimizer.param_groups[0]["lr"]
            if self.step % recipe.log_every == 0 or self.step == recipe.steps:
                seconds = time.monotonic() - began
                self._record(kind="train", loss=loss, gradient_norm=norm, learning_rate=rate, length=length)
                speed = tokens_since / seconds
                self._time(seconds=seconds, tokens_per_second=speed)
                began, tokens_since = time.monotonic(), 0
                display.step(
                    self.step,
                    f"length {length}  loss {loss:.4f}  rate {rate:.2e}  {speed:,.0f} tokens/s",
                )
            best = self.best
            last = self.step == recipe.steps
            enough = self._look(display) if last or self.step % recipe.evaluation.every == 0 else False
            self.done = enough or last
            # After the look, so that the last one at a length is not lost.
            self._enter(self.stage.when_time_is_up(recipe.curriculum))
            stopping = bool(self.processes.total(float(self.asked_to_stop))[0])
            # Last of all, when everything that the next step depends on is settled.
            if self.done or stopping or self.step % recipe.checkpoint_every == 0 or self.best is not best:
                self._save()
            if stopping and not self.done:
                raise Interrupted(
                    f"stopped at step {self.step} of {recipe.steps}; checkpoint saved in {self.folder}",
                    # Another process may have heard it.
                    self.asked_to_stop or signal.SIGINT,
                )
        return self._finish(display)

    def _length(self) -> int:
        """The curriculum's length; now and then one of those before, chosen by the step's number."""
        curriculum = self.recipe.curriculum
        generator = torch.Generator().manual_seed(self._seed())
        if self.stage.index and float(torch.rand((), generator=generator)) < curriculum.revisit:
            return curriculum.lengths[int(torch.randint(self.stage.index, (), generator=generator))]
        return self.stage.length(curriculum)

    def _seed(self) -> int:
        """Of this step; everything random in it follows from that, so that there is no state of it to save."""
        return (self.recipe.seed * 1_000_003 + self.step) % 2**63

    def _one_step(self, length: int) -> tuple[float, float, int]:
        recipe, processes = self.recipe, self.processes
        count = recipe.samples(length)
        indices = range(self.samples, self.samples + count)
        mine = indices[processes.rank :: processes.count]
        batch = self.task.batch("train", mine or indices[:1], length)
        # A process without a sample takes part with one that counts for nothing.
        targets = batch.targets if mine else torch.full_like(batch.targets, IGNORED)
        asked = max(1.0, float(processes.total(float((targets != IGNORED).sum()))[0]))
        torch.manual_seed(self._seed() * 4096 % 2**63 + processes.rank)
        self.model.train()
        at_progress: Any = getattr(self.model, "at_progress", None)
        if at_progress is not None:
            at_progress(self.step / recipe.steps)
        self.optimizer.zero_grad(set_to_none=True)
        parts = list(zip(batch.tokens.chunk(recipe.accumulate), targets.chunk(recipe.accumulate), strict=True))
        total = 0.0
        for i, (tokens, wanted) in enumerate(parts):
            joined = i == len(parts) - 1 or processes.count == 1
            with contextlib.nullcontext() if joined else self.loss.no_sync(), autocast(self.device, recipe.precision):
                loss = self.loss(tokens.to(self.device), wanted.to(self.device)) / asked
            # The distributed module averages gradients over processes; what is wanted is their sum.
            (loss * processes.count).backward()
            total += float(loss.detach())
        total = float(processes.total(total)[0])
        norm = self._checked_norm(total)
        for group in self.optimizer.param_groups:
            group["lr"] = learning_rate(recipe.optimizer, self.step, recipe.steps) * self.stage.rate(recipe.curriculum)
        self.optimizer.step()
        if self.average:
            self._update_average()
        self.samples += count
        self.tokens += count * length
        return total, norm, count * length

    def _checked_norm(self, loss: float) -> float:
        """Clip the gradient and return its norm; stop before the weights move if anything is not finite."""
        gradients = [p.grad for p in self.model.parameters() if p.grad is not None]
        total = nn.utils.get_total_norm(gradients)
        norm = float(total)
        if math.isfinite(norm) and math.isfinite(loss):
            nn.utils.clip_grads_with_norm_(self.model.parameters(), self.recipe.optimizer.clip or math.inf, total)
            return norm
        bad = [
            name
            for name, parameter in self.model.named_parameters()
            if parameter.grad is not None and not bool(parameter.grad.isfinite().all())
        ]
        self._save()
        raise DivergedError(
            f"step {self.step + 1}: the loss is {loss} and the gradient's norm {norm} (not finite in "
            f"{', '.join(bad[:3]) or 'no single parameter'}{' and others' if len(bad) > 3 else ''}); the weights have "
            f"not moved, and the checkpoint of step {self.step} is good. Lower the learning rate, or resume from it"
        )

    @torch.no_grad()
    def _update_average(self) -> None:
        weights = dict(self.model.named_parameters())
        torch._foreach_lerp_(
            list(self.average.values()), [weights[name].detach() for name in self.average], 1 - self.recipe.ema
        )

    # Looking.

    @contextlib.contextmanager
    def averaged(self) -> Iterator[None]:
        """The averaged weights in the model for a while, if there are any."""
        kept = {name: p.data for name, p in self.model.named_parameters() if name in self.average}
        for name, parameter in self.model.named_parameters():
            if name in self.average:
                parameter.data = self.average[name]
        try:
            yield
        finally:
            for name, parameter in self.model.named_parameters():
                if name in kept:
                    parameter.data = kept[name]

    def score(self, length: int, split: Split = "validation") -> Score:
        """An evaluation with the weights that would be used; of a text's test split, over every token."""
        recipe = self.recipe
        whole = split == "test" and isinstance(self.task, Text)
        with self.averaged():
            return evaluate(
                self.model,
                self.task,
                split,
                length,
                None if whole else recipe.evaluation.samples,
                batch_tokens=recipe.batch_tokens,
                precision=recipe.precision,
            )

    def _look(self, display: Display) -> bool:
        """Evaluate at the current length, go on to the next one if it is learned; whether the run is done."""
        recipe, stage = self.recipe, self.stage
        length = stage.length(recipe.curriculum)
        score = self.score(length)
        self._record(kind="evaluation", length=length, loss=score.loss, error=score.error)
        display.say(f"step {self.step}: length {length}, validation loss {score.loss:.4f}, error {score.error:.2%}")
        if self.best is None or (stage.index, -score.loss) > (self.best["stage"], -self.best["loss"]):
            self.best = {"step": self.step, "stage": stage.index, "loss": score.loss, "error": score.error}
        self._enter(stage.after_evaluation(recipe.curriculum, score.loss, score.error))
        if not stage.is_last(recipe.curriculum):
            return False
        limit, patience = recipe.evaluation.stop_below, recipe.evaluation.patience
        return (limit is not None and score.error < limit) or (patience is not None and self.stage.waited >= patience)

    def _enter(self, stage: Stage) -> None:
        """Be where the curriculum is now; when that is a new length, what has to start anew does."""
        new = stage.index != self.stage.index
        if new and self.step == self.recipe.steps:
            # What starts anew now would be tested as it starts.
            return
        self.stage = stage
        if not new:
            return
        self._record(kind="stage", length=stage.length(self.recipe.curriculum))
        begin: Any = getattr(self.model, "begin_stage", lambda index: [])
        restarted = set(begin(stage.index))
        for name, parameter in self.model.named_parameters():
            if name in restarted or self.recipe.curriculum.fresh_optimizer:
                self.optimizer.state.pop(parameter, None)
            if name in restarted and name in self.average:
                self.average[name].copy_(parameter.detach())

    def _finish(self, display: Display) -> dict[str, Any]:
        recipe = self.recipe
        lengths = sorted({*recipe.evaluation.lengths, recipe.curriculum.lengths[-1]})
        scores = [self.score(length, "test") for length in lengths]
        for score in scores:
            display.say(f"length {score.length}: test loss {score.loss:.4f}, error {score.error:.2%}")
        result = {
            "steps": self.step,
            "samples": self.samples,
            "tokens": self.tokens,
            "parameters": sum(p.numel() for p in self.model.parameters()),
            "best": self.best,
            "test": [asdict(score) for score in scores],
        }
        if self.processes.first:
            write_whole(self.folder / "result.json", json.dumps(result, indent=1, sort_keys=True).encode() + b"\n")
        self.processes.wait()
        return result

    def _record(self, **values: Any) -> None:
        if self.processes.first:
            self.metrics.append({"step": self.step, **values})
            kind = values.pop("kind")
            for sink in self._sinks:
                sink.write(self.step, {f"{kind}/{name}": value for name, value in values.items()})

    def _time(self, **values: float) -> None:
        if self.processes.first:
            self.timing.append({"step": self.step, **values})

    # Saving and going on.

    def _save(self) -> None:
        if self.processes.first:
            names: dict[Any, str] = {parameter: name for name, parameter in self.model.named_parameters()}
            moments = {
                f"{names[parameter]}/{key}": value
                for parameter, state in self.optimizer.state.items()
                for key, value in state.items()
            }
            state = {
                "step": self.step,
                "samples": self.samples,
                "tokens": self.tokens,
                "stage": asdict(self.stage),
                "best": self.best,
                "done": self.done,
                "metrics_bytes": self.metrics.size,
                "recipe": to_plain(self.recipe),
                "versions": {"torch": torch.__version__},
            }
            # A checkpoint that outlives a power cut needs the metrics that it counts.
            self.metrics.flush()
            checkpoints.write(
                self.checkpoints, Checkpoint(self.step, self.model.state_dict(), moments, state, self.average)
            )
            milestones = range(0, self.step, self.recipe.keep_every) if self.recipe.keep_every else ()
            best = [self.best["step"]] if self.best else []
            checkpoints.prune(self.checkpoints, self.recipe.keep, {*best, *milestones}, newest=self.step)
        self.processes.wait()

    def _prepare_folder(self, resume: bool, force: bool) -> None:
        known = self.folder / "config.json"
        if not resume:
            if known.exists() or checkpoints.steps(self.checkpoints):
                raise TrainingError(f"{self.folder} holds a run already; go on with --resume, or choose another folder")
            self.processes.wait()
            if self.processes.first:
                self.folder.mkdir(parents=True, exist_ok=True)
                write_whole(known, json.dumps(to_plain(self.recipe), indent=1).encode() + b"\n")
            self.processes.wait()
            return
        if self.processes.first:
            if self.checkpoints.is_dir():
                checkpoints.tidy(self.checkpoints)
            for path in self.folder.glob(".*.json.*"):  # what `write_whole` was killed in
                path.unlink()
        self.processes.wait()
        checkpoint = self._newest()
        if checkpoint is None:
            if known.exists() and not force:
                self._same_recipe(json.loads(known.read_bytes()), force)
            self.folder.mkdir(parents=True, exist_ok=True)
            if self.processes.first:
                write_whole(known, json.dumps(to_plain(self.recipe), indent=1).encode() + b"\n")
                self.metrics.cut(0)
            return
        self._same_recipe(dict(checkpoint.state)["recipe"], force)
        try:
            self._restore(checkpoint)
        except (KeyError, TypeError, RuntimeError) as error:
            raise TrainingError(
                f"{self.checkpoints} was written by another version of scannable: {error!r:.200}"
            ) from error

    def _newest(self) -> Checkpoint | None:
        """The newest checkpoint that is whole; those that are not are named."""
        for step in reversed(checkpoints.steps(self.checkpoints)):
            try:
                return checkpoints.read(checkpoints.path_of(self.checkpoints, step))
            except CheckpointError as error:
                self.console.print(f"[yellow]skipped:[/] {escape(str(error))}", highlight=False, soft_wrap=True)
        if checkpoints.steps(self.checkpoints):
            raise TrainingError(f"no checkpoint in {self.checkpoints} is whole; start anew in another folder")
        return None

    def _same_recipe(self, saved: Any, force: bool) -> None:
        # Options that came after the run was begun have their defaults; what cannot be read differs, and is named.
        with contextlib.suppress(ConfigurationError):
            saved = to_plain(from_plain(saved, Recipe, "the checkpoint"))
        changed = [] if force else differences(saved, to_plain(self.recipe))
        if changed:
            raise TrainingError(
                f"{self.folder} was trained with another configuration ({'; '.join(changed[:5])}); use the same, or "
                "--force to go on with this one"
            )

    def _restore(self, checkpoint: Checkpoint) -> None:
        state = checkpoint.state
        self.model.load_state_dict(checkpoint.model)
        parameters: dict[str, Any] = dict(self.model.named_parameters())
        held: Any = self.optimizer.state
        for name, value in checkpoint.optimizer.items():
            parameter, key = name.rsplit("/", 1)
            # The count of steps stays on the CPU, as AdamW keeps it.
            held[parameters[parameter]][key] = value if value.ndim == 0 else value.to(self.device)
        self.average = {name: value.to(self.device) for name, value in checkpoint.average.items()}
        self.step, self.samples, self.tokens = state["step"], state["samples"], state["tokens"]
        self.stage, self.best = Stage(**state["stage"]), state["best"]
        self.done = state["done"]
        if self.processes.first:
            self.metrics.cut(state["metrics_bytes"])

    def _heard(self, number: int) -> None:
        """Stop after this step; at a second SIGINT at once."""
        if self.asked_to_stop and number == signal.SIGINT:
            raise KeyboardInterrupt
        self.asked_to_stop = number


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
