"""Where an experiment works: it names the runs it needs, and gets them trained, whether just now or days ago.

A page can be made before all of them are there: then the laboratory trains nothing, and says which are missing.
"""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from rich.console import Console

import scannable.training.checkpoint as checkpoints
from scannable.experiments.figure import save_json
from scannable.experiments.profile import Profile
from scannable.experiments.record import (
    DIVERGED,
    FOUND,
    drop_other_records,
    has_record,
    recorded_recipe,
    restore,
    save_record,
)
from scannable.experiments.worker import DIVERGED as HAS_DIVERGED
from scannable.storage.configuration import ConfigurationError, to_plain
from scannable.training.logging import read_metrics
from scannable.training.loop import DivergedError, Interrupted, Run
from scannable.training.recipe import Recipe, pinned
from scannable.training.run_folder import TrainingError, differences, load_recipe, load_result, write_config
from scannable.training.signals import signals

EVERY = 60.0
"""Seconds between two lines about what is being trained."""


@dataclass(frozen=True)
class Trained:
    """A run that has come to its end."""

    name: str
    recipe: Recipe[Any, Any]
    folder: Path
    result: dict[str, Any]

    @property
    def test(self) -> dict[int, dict[str, Any]]:
        """What was found on the test split, by length."""
        return {score["length"]: score for score in self.result["test"]}


def at_rate(recipe: Recipe[Any, Any], model: Any, algorithm: str | None = None) -> Callable[[float], Recipe[Any, Any]]:
    """The recipe with this model, and with this optimizer if one is given, as a function of the learning rate."""
    own: Any = algorithm or recipe.optimizer.algorithm
    return lambda rate: replace(
        recipe, model=model, optimizer=replace(recipe.optimizer, learning_rate=rate, algorithm=own)
    )


@dataclass(frozen=True)
class Laboratory:
    """A profile, a folder for the runs, and one for the results; `train` is all that an experiment asks of it."""

    name: str
    profile: Profile
    results: Path
    """CSV, figures, configurations and README of this experiment go here."""
    runs: Path
    """Checkpoints and metrics go here."""
    console: Console = field(default_factory=Console)
    workers: int = 1
    """Runs that are trained at once, each in a process of its own; 1 trains them here, one after the other."""
    device: str = "cpu"
    data: str | None = None
    """The text that language models are trained on, as `TextTask.data` names it; the profile's own, unless told."""
    tokenizer: str | None = None
    """Of that text; the profile's own, unless told."""
    parts: tuple[str, ...] | None = None
    """The parts of the experiment that are trained; all, unless told. Of the others, what is there is taken."""
    only_finished: bool = False
    """Train nothing, and take what is there."""
    recorded: bool = False
    """Take runs whose record lies beside the results as finished; a run folder without weights follows its record."""
    missing: list[str] = field(default_factory=list)
    """Runs that were asked for and are not there, in the order of the questions; a page says which."""
    taken: list[str] = field(default_factory=list)
    """Those that are there, and those that are known to diverge."""

    def trains(self, part: str) -> bool:
        """Whether runs of this part of the experiment are trained here."""
        return not self.only_finished and (self.parts is None or part in self.parts)

    def train(
        self, recipes: Mapping[str, Recipe[Any, Any]], part: str = "", *, may_diverge: bool = False
    ) -> dict[str, Trained]:
        """Train what is not trained yet, in the given order, going on where a run was interrupted.

        A run that diverges ends the experiment, or, if it may, is said and left out. Where only finished runs are
        wanted, those that are not finished are left out and noted as missing.
        """
        if self.recorded:
            self._restore(recipes)
        if not self.trains(part):
            return self._finished(recipes)
        for name, recipe in recipes.items():
            self._prepare(name, recipe)
        diverged = {name for name in recipes if may_diverge and self._has_diverged(name)}
        todo = [name for name in recipes if name not in diverged and self._result(name) is None]
        if len(recipes) > len(todo):
            self.console.print(f"{self.name}: {len(recipes) - len(todo)} of {len(recipes)} runs are there already")
        if self.workers == 1:
            for number, name in enumerate(todo, 1):
                self.console.print(f"{self.name}: run {number} of {len(todo)}, {name}", highlight=False)
                run = Run(recipes[name], self.runs / name, console=self.console, device=self.device)
                try:
                    run.train(resume=True)
                except DivergedError as error:
                    if not may_diverge:
                        raise
                    diverged.add(name)
                    self._note_divergence(name)
                    self.console.print(f"{self.name}: {name} has diverged; {error}", highlight=False, soft_wrap=True)
                self._record(name)
                if run.asked_to_stop:
                    # The signal came too late for this run to stop; it is meant for all of them.
                    raise Interrupted(f"{name} has come to its end", run.asked_to_stop)
        else:
            diverged |= self._train_in_processes(todo, may_diverge)
        trained: dict[str, Trained] = {}
        for name, recipe in recipes.items():
            if name in diverged:
                self.taken.append(name)
                continue
            result = self._result(name)
            if result is None:
                raise TrainingError(f"{self.runs / name} has not come to its end; see log.txt there, and go on with it")
            trained[name] = self._take(name, recipe, result)
        return trained

    def sweep(
        self,
        models: Mapping[str, Callable[[float], Recipe[Any, Any]]],
        rates: Sequence[float] | Mapping[str, Sequence[float]],
        part: str = "",
    ) -> dict[str, dict[float, Trained]]:
        """Every model at every learning rate, one list for all or one for each, at which it does not diverge."""
        each = rates if isinstance(rates, Mapping) else dict.fromkeys(models, rates)
        names = {name: {rate: f"sweep-{name}-{rate:g}" for rate in each[name]} for name in models}
        trained = self.train(
            {names[name][rate]: make(rate) for name, make in models.items() for rate in each[name]},
            part,
            may_diverge=True,
        )
        swept = {
            name: {rate: trained[run] for rate, run in runs.items() if run in trained} for name, runs in names.items()
        }
        for name, runs in swept.items():
            if not runs and self.trains(part):
                tried = ", ".join(map(str, each[name]))
                raise TrainingError(f"{name} diverges at every learning rate of the sweep ({tried})")
        return {name: runs for name, runs in swept.items() if runs}

    def without(self, names: Sequence[str]) -> None:
        """Note runs as missing whose recipe is not known yet: their learning rate has still to be chosen."""
        self.missing.extend(names)

    def leave_records(self) -> None:
        """Put the records of the runs that the page is made of beside it, with all that was measured by now.

        Others go once a page is whole. Until then they may be all that is left of a run that this page could not take.
        """
        for name in self.taken:
            self._record(name)
        if not self.missing:
            drop_other_records(self.results, self.taken)

    def has_weights(self, run: Trained) -> bool:
        """Whether something can be measured with a run: not, where only its record is here."""
        return _has_weights(run.folder)

    def _record(self, name: str) -> None:
        save_record(self.results, name, self.runs / name)

    def _note_divergence(self, name: str) -> None:
        save_json({"steps": self._step(name)}, self.runs / name / DIVERGED)

    def _has_diverged(self, name: str) -> bool:
        return (self.runs / name / DIVERGED).exists()

    def _restore(self, recipes: Mapping[str, Recipe[Any, Any]]) -> None:
        for name, recipe in recipes.items():
            folder = self.runs / name
            # Without weights nothing new is measured here, while the record may have got more elsewhere.
            if _has_weights(folder) or not has_record(self.results, name):
                continue
            try:
                recorded = to_plain(recorded_recipe(self.results, name))
                changed = differences(recorded, to_plain(pinned(recipe, folder)))
            except ConfigurationError as error:
                changed = [str(error)]
            if changed:
                about = f"the record of {name} is of another configuration ({'; '.join(changed[:3])}), and is not taken"
                self.console.print(f"{self.name}: {about}", highlight=False, soft_wrap=True)
            else:
                if self._begun(name):
                    self._check_same(name, recipe)
                restore(self.results, name, folder)

    def _finished(self, recipes: Mapping[str, Recipe[Any, Any]]) -> dict[str, Trained]:
        found: dict[str, Trained] = {}
        for name, recipe in recipes.items():
            result = self._result(name)
            if result is None:
                (self.taken if self._has_diverged(name) else self.missing).append(name)
                continue
            self._check_same(name, recipe)
            found[name] = self._take(name, recipe, result)
        return found

    def _take(self, name: str, recipe: Recipe[Any, Any], result: dict[str, Any]) -> Trained:
        self.taken.append(name)
        return Trained(name, recipe, self.runs / name, result)

    def _prepare(self, name: str, recipe: Recipe[Any, Any]) -> None:
        folder = self.runs / name
        if not self._begun(name):
            # Nothing is lost, whatever was meant to be trained here.
            write_config(folder, pinned(recipe, folder))
            return
        self._check_same(name, recipe)

    def _begun(self, name: str) -> bool:
        folder = self.runs / name
        ended = (folder / "result.json").exists() or self._has_diverged(name)
        return ended or _has_weights(folder)

    def _check_same(self, name: str, recipe: Recipe[Any, Any]) -> None:
        """An error, if the run of this name is that of another recipe."""
        folder = self.runs / name
        try:
            changed = differences(to_plain(load_recipe(folder)), to_plain(pinned(recipe, folder)))
        except ConfigurationError as error:
            changed = [str(error)]
        if changed:
            raise TrainingError(
                f"{folder} holds a run of another configuration ({'; '.join(changed[:3])}); delete it, or choose "
                "another --runs"
            )

    def _result(self, name: str) -> dict[str, Any] | None:
        result = load_result(self.runs / name)
        missing = [key for key in FOUND if result is not None and key not in result]
        if missing:
            raise TrainingError(
                f"{self.runs / name / 'result.json'} is damaged: it has no {missing[0]!r}; delete it, and the same "
                "command writes it anew"
            )
        return result

    def _train_in_processes(self, todo: list[str], may_diverge: bool) -> set[str]:
        """At most `workers` at once; after a signal or a failure every run saves itself. Those that diverged.

        A second SIGINT does not wait for that: what is left then is the last checkpoint of each.
        """
        waiting, working = list(todo), dict[str, subprocess.Popen[bytes]]()
        began = spoken = time.monotonic()
        before = sum(self._step(name) for name in todo)
        failed, diverged, stopping, told = list[str](), set[str](), False, False
        # Noted only, so that none falls between the start of a worker and its name. Under nohup SIGHUP is ignored, and
        # shall be.
        hangup = [signal.SIGHUP] if signal.getsignal(signal.SIGHUP) is not signal.SIG_IGN else []
        asked: list[int] = []
        with signals(asked.append, signal.SIGINT, signal.SIGTERM, *hangup):
            try:
                while working or (waiting and not stopping):
                    while waiting and len(working) < self.workers and not stopping:
                        name = waiting.pop(0)
                        working[name] = self._start(name)
                        self.console.print(f"{self.name}: {name} begins", highlight=False)
                    time.sleep(0.2)
                    for name, process in list(working.items()):
                        if process.poll() is None:
                            continue
                        del working[name]
                        left = f"{len(waiting) + len(working)} of {len(todo)} left"
                        if self._result(name) is not None:
                            outcome = "is done"
                            self._record(name)
                        elif process.returncode == 0 or (stopping and process.returncode < 0):
                            outcome, stopping = "has stopped", True
                        elif process.returncode == HAS_DIVERGED and may_diverge:
                            outcome = f"has diverged, see {self.runs / name / 'log.txt'}"
                            diverged.add(name)
                            self._note_divergence(name)
                            self._record(name)
                        else:
                            outcome, stopping = "failed", True
                            failed.append(self._failure(name, process.returncode))
                        self.console.print(f"{self.name}: {name} {outcome}; {left}", highlight=False)
                    if (stopping or asked) and not told:
                        stopping = told = True
                        for process in working.values():
                            process.terminate()
                    if asked.count(signal.SIGINT) > 1:
                        for process in working.values():
                            process.kill()
                    if time.monotonic() - spoken > EVERY:
                        spoken = time.monotonic()
                        self._say(todo, working, spoken - began, before)
            finally:
                # Whatever ended this, nothing goes on without it.
                for process in working.values():
                    process.terminate()
                for process in working.values():
                    process.wait()
        if failed:
            raise TrainingError(
                "; ".join(failed) + ". The others have saved themselves, and go on with the same command"
            )
        if asked.count(signal.SIGINT) > 1:
            raise KeyboardInterrupt
        if stopping or asked:
            raise Interrupted("every run has saved itself", *asked[:1])
        return diverged

    def _failure(self, name: str, code: int) -> str:
        """What is known of it: how it ended, where its log is, and the end of that."""
        log = self.runs / name / "log.txt"
        end = "".join(log.read_text(errors="replace").splitlines()[-1:]).strip()
        how = f"by signal {-code}" if code < 0 else f"with exit code {code}"
        return f"{name} failed {how}, see {log}" + (f": {end}" if end else "")

    def _start(self, name: str) -> subprocess.Popen[bytes]:
        threads = os.environ.get("OMP_NUM_THREADS") or str(max(1, (os.cpu_count() or 1) // self.workers))
        command = [sys.executable, "-m", "scannable.experiments.worker", str(self.runs / name), self.device]
        with (self.runs / name / "log.txt").open("ab") as log:
            # In a session of its own, so that Ctrl-C reaches it once, through us.
            return subprocess.Popen(
                command,
                stdout=log,
                stderr=subprocess.STDOUT,
                env={**os.environ, "OMP_NUM_THREADS": threads},
                start_new_session=True,
            )

    def _say(self, todo: Sequence[str], working: Mapping[str, object], seconds: float, before: int) -> None:
        """What is at work, and when all will be done if steps go on taking the time they took."""
        steps = {name: self._step(name) for name in todo}
        whole = {name: load_recipe(self.runs / name).steps for name in todo}
        left = sum(whole[name] - steps[name] for name in todo if self._result(name) is None)
        where = ", ".join(f"{name} at step {steps[name]:,} of {whole[name]:,}" for name in working)
        done = sum(steps.values()) - before
        when = f"; at most about {seconds * left / done / 60:.0f} min left" if done > 0 else ""
        self.console.print(f"{self.name}: {where}{when}", highlight=False)

    def _step(self, name: str) -> int:
        path = self.runs / name / "metrics.jsonl"
        records = read_metrics(path) if path.exists() else []
        return int(records[-1]["step"]) if records else 0


def _has_weights(folder: Path) -> bool:
    return bool(checkpoints.steps(folder / "checkpoints"))
