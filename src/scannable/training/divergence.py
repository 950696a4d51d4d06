"""After a loss that is not finite: which checkpoint still gives finite ones."""

import math
import shutil
from collections.abc import Callable
from pathlib import Path

import scannable.training.checkpoint as checkpoints
from scannable.training.checkpoint import Checkpoint, CheckpointError, Keep


def newest_good(
    place: Path, loss: Callable[[Checkpoint], float], keep: Keep = lambda part, name, tensor: tensor
) -> int | None:
    """The step of the newest checkpoint whose `loss` is finite; None if there is none."""
    for step in reversed(checkpoints.steps(place)):
        try:
            if math.isfinite(loss(checkpoints.read(checkpoints.path_of(place, step), keep))):
                return step
        except CheckpointError:
            continue
    return None


def remove_after(place: Path, step: int) -> None:
    """Delete the checkpoints that came after the good one, so that a resumed run goes on from it."""
    for later in checkpoints.steps(place):
        if later > step:
            shutil.rmtree(checkpoints.path_of(place, later))
