"""The run that faults are tried on: how it is trained, stopped and resumed, and what it should end as."""

import contextlib
import io
import json
import os
import signal
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from unittest.mock import patch

import torch
from rich.console import Console

import scannable.training.checkpoint as checkpoints
from benchmarks.faults.life import Life
from scannable.cli.main import main
from scannable.models.transformer_psm_config import TransformerPSMConfig
from scannable.recipes import RECIPES
from scannable.tasks import GroupTask
from scannable.training.checkpoint import CheckpointError
from scannable.training.logging import read_metrics
from scannable.training.loop import Run
from scannable.training.recipe import Curriculum, Evaluation, Optimizer, Recipe

RECIPE = Recipe(
    TransformerPSMConfig(6, width=16, chunk_length=2, agg_layers=1, inf_layers=1, heads=2, dropout=0.1),
    GroupTask("S3"),
    steps=60,
    batch_tokens=64,
    optimizer=Optimizer(learning_rate=3e-2, warmup=5),
    curriculum=Curriculum((4, 8), below=(0.7,), revisit=0.3),
    evaluation=Evaluation(every=10, samples=32, lengths=(12,)),
    ema=0.9,
    checkpoint_every=5,
    keep=2,
    log_every=3,
)
"""Small, and with everything that a checkpoint has to hold."""


def train(
    folder: Path,
    recipe: Recipe[Any, Any] = RECIPE,
    *,
    resume: bool = True,
    force: bool = False,
    stop: int | None = None,
) -> None:
    """Train the recipe; ask it to stop in the middle of step `stop`."""
    run = Run(recipe, folder, console=Console(width=1000))
    if stop is not None:
        step = run._one_step

        def one_step(length: int) -> tuple[float, float, int]:
            if run.progress.step + 1 == stop:
                os.kill(os.getpid(), signal.SIGTERM)
            return step(length)

        run._one_step = one_step
    run.train(resume=resume, force=force)


def command_line(*options: str) -> None:
    """`scannable train faults` with these options, as typed."""

    def recipe() -> Recipe[Any, Any]:
        """The tiny run."""
        return RECIPE

    with patch.dict(RECIPES, {"faults": recipe}), patch.object(sys, "argv", ["scannable", "train", "faults", *options]):
        main()


def finish(folder: Path, recipe: Recipe[Any, Any] = RECIPE, *, force: bool = False) -> str:
    """Resume to the end; what the run said, or a RuntimeError."""
    life = Life(lambda: train(folder, recipe, force=force), folder.with_suffix(".log"))
    if code := life.wait():
        raise RuntimeError(f"resuming ended with {code}: {life.said()[-800:]}")
    return life.said()


def stopped_at(folder: Path, step: int) -> None:
    """A run that was asked to stop at a step, and did."""
    life = Life(lambda: train(folder, stop=step), folder.with_suffix(".log"))
    life.wait()
    if "ERROR Interrupted" not in life.said() or checkpoints.steps(folder / "checkpoints")[-1] != step:
        raise RuntimeError(f"the run did not stop at step {step}: {life.said()[-800:]}")


def whole(folder: Path, step: int) -> bool:
    """Whether the checkpoint of a step can be read."""
    try:
        checkpoints.read(checkpoints.path_of(folder / "checkpoints", step))
    except CheckpointError:
        return False
    return True


@dataclass(frozen=True)
class Reference:
    """A run that nothing happened to, and how long it took."""

    folder: Path
    seconds: float

    def differences(self, folder: Path) -> list[str]:
        """Files that are not, byte for byte, those of the reference, and files that should not have been left.

        Seconds differ by nature. A checkpoint more is no harm: a run that was killed after its last step deletes
        nothing.
        """
        mine, theirs = (
            {str(path.relative_to(place)) for path in place.rglob("*") if path.is_file()} - {"timing.jsonl"}
            for place in (folder, self.folder)
        )
        more = [name for name in mine - theirs if not name.startswith("checkpoints/step-")]
        changed = [name for name in mine & theirs if (folder / name).read_bytes() != (self.folder / name).read_bytes()]
        try:
            read_metrics(folder / "timing.jsonl")
            unreadable = []
        except ValueError as error:
            unreadable = [str(error)]
        return [
            *unreadable,
            *(f"{name} is missing" for name in sorted(theirs - mine)),
            *(f"{name} is left over" for name in sorted(more)),
            *(f"{name} differs" for name in sorted(changed)),
        ]


def reference(folder: Path) -> Reference:
    """Train the run that nothing happens to."""
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as other, contextlib.redirect_stdout(io.StringIO()):
        # What is imported on the way to a first step takes longer than all steps; a fork finds it done.
        command_line("--steps", "1", "--out", f"{other}/run")
    folder.parent.mkdir(parents=True, exist_ok=True)
    began = time.monotonic()
    life = Life(lambda: train(folder, resume=False), folder.with_suffix(".log"))
    if life.wait():
        raise RuntimeError(f"the reference failed: {life.said()}")
    seconds = time.monotonic() - began
    state = json.loads((checkpoints.path_of(folder / "checkpoints", RECIPE.steps) / "state.json").read_bytes())
    if state["progress"]["stage"]["index"] != 1:
        raise RuntimeError("the reference never came to its second length; the recipe tests too little")
    return Reference(folder, seconds)
