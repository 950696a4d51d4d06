"""Where an experiment works: it names the runs it needs, and gets them trained, whether just now or days ago."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal

from rich.console import Console

from scannable.configuration import to_plain
from scannable.experiments.figure import save_json
from scannable.training.logging import read_metrics
from scannable.training.loop import Interrupted, Run, TrainingError, load_recipe, load_result
from scannable.training.recipe import Recipe

Profile = Literal["smoke", "laptop", "paper"]

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


def at_rate(recipe: Recipe[Any, Any], model: Any) -> Callable[[float], Recipe[Any, Any]]:
    """The recipe with this model, as a function of the learning rate."""
    return lambda rate: replace(recipe, model=model, optimizer=replace(recipe.optimizer, learning_rate=rate))


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
    data: str = "stdlib"
    """The text that language models are trained on, as `TextTask.data` names it."""
    tokenizer: str | None = None
    """Of that text; the profile's own, unless told."""

    def train(self, recipes: Mapping[str, Recipe[Any, Any]]) -> dict[str, Trained]:
        """Train what is not trained yet, going on where a run was interrupted."""
        for name, recipe in recipes.items():
            self._prepare(name, recipe)
        todo = [name for name in recipes if load_result(self.runs / name) is None]
        if len(recipes) > len(todo):
            self.console.print(f"{self.name}: {len(recipes) - len(todo)} of {len(recipes)} runs are there already")
        if self.workers == 1:
            for number, name in enumerate(todo, 1):
                self.console.print(f"{self.name}: run {number} of {len(todo)}, {name}", highlight=False)
                Run(recipes[name], self.runs / name, console=self.console, device=self.device).train(resume=True)
        else:
            self._train_in_processes(todo)
        trained: dict[str, Trained] = {}
        for name, recipe in recipes.items():
            result = load_result(self.runs / name)
            if result is None:
                raise TrainingError(f"{self.runs / name} has not come to its end; see log.txt there, and go on with it")
            trained[name] = Trained(name, recipe, self.runs / name, result)
            save_json(to_plain(recipe), self.results / "configurations" / f"{name}.json")
        return trained

    def sweep(
        self, models: Mapping[str, Callable[[float], Recipe[Any, Any]]], rates: Sequence[float]
    ) -> dict[str, dict[float, Trained]]:
        """Every model at every learning rate."""
        recipes = {f"sweep-{name}-{rate:g}": make(rate) for name, make in models.items() for rate in rates}
        trained = self.train(recipes)
        return {name: {rate: trained[f"sweep-{name}-{rate:g}"] for rate in rates} for name in models}

    def _prepare(self, name: str, recipe: Recipe[Any, Any]) -> None:
        folder = self.runs / name
        if not (folder / "config.json").exists():
            save_json(to_plain(recipe), folder / "config.json")
        elif to_plain(load_recipe(folder)) != to_plain(recipe):
            raise TrainingError(f"{folder} holds a run of another configuration; delete it, or choose another --runs")

    def _train_in_processes(self, todo: list[str]) -> None:
        """At most `workers` at once; an interruption is passed on, and every run saves itself before this returns."""
        waiting, working = list(todo), dict[str, subprocess.Popen[bytes]]()
        began = spoken = time.monotonic()
        before = sum(self._step(name) for name in todo)
        stopped = False
        try:
            while waiting or working:
                while waiting and len(working) < self.workers:
                    name = waiting.pop(0)
                    working[name] = self._start(name)
                    self.console.print(f"{self.name}: {name} begins", highlight=False)
                time.sleep(0.5)
                for name, process in list(working.items()):
                    if process.poll() is None:
                        continue
                    del working[name]
                    if process.returncode or load_result(self.runs / name) is None:
                        waiting.clear()
                        stopped = True
                    left = len(waiting) + len(working)
                    outcome = "failed" if process.returncode else "stopped" if stopped else "is done"
                    self.console.print(f"{self.name}: {name} {outcome}; {left} of {len(todo)} left", highlight=False)
                if time.monotonic() - spoken > EVERY:
                    spoken = time.monotonic()
                    self._say(todo, working, spoken - began, before)
        except KeyboardInterrupt:
            stopped = True
            for process in working.values():
                process.send_signal(signal.SIGTERM)
            for process in working.values():
                process.wait()
        if stopped:
            raise Interrupted("every run has saved itself; the same command goes on")

    def _start(self, name: str) -> subprocess.Popen[bytes]:
        threads = max(1, (os.cpu_count() or 1) // self.workers)
        command = [sys.executable, "-m", "scannable.experiments.worker", str(self.runs / name), self.device]
        with (self.runs / name / "log.txt").open("ab") as log:
            # In a session of its own, so that Ctrl-C reaches it once, through us.
            return subprocess.Popen(
                command,
                stdout=log,
                stderr=subprocess.STDOUT,
                env={**os.environ, "OMP_NUM_THREADS": str(threads)},
                start_new_session=True,
            )

    def _say(self, todo: Sequence[str], working: Mapping[str, object], seconds: float, before: int) -> None:
        """What is at work, and when all will be done if steps go on taking the time they took."""
        steps = {name: self._step(name) for name in todo}
        whole = {name: load_recipe(self.runs / name).steps for name in todo}
        done = sum(whole[name] if load_result(self.runs / name) else steps[name] for name in todo)
        left = seconds * (sum(whole.values()) - done) / max(1, done - before)
        where = ", ".join(f"{name} at step {steps[name]:,} of {whole[name]:,}" for name in working)
        self.console.print(f"{self.name}: {where}; at most about {left / 60:.0f} min left", highlight=False)

    def _step(self, name: str) -> int:
        path = self.runs / name / "metrics.jsonl"
        records = read_metrics(path) if path.exists() else []
        return int(records[-1]["step"]) if records else 0
