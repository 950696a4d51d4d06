"""Two language models on the same windows: is what lies between them more than the choice of the text?"""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from math import sqrt
from pathlib import Path
from statistics import fmean, stdev
from typing import Any

import torch
from torch.nn import functional

from scannable.models.protocol import evaluating
from scannable.storage.files import write_whole
from scannable.tasks import IGNORED, Split
from scannable.training.evaluation import Text

SPLITS: tuple[Split, ...] = ("test", "validation")


@dataclass(frozen=True)
class Between:
    """How far one model's loss lies from another's, over the windows of a split."""

    mean: float
    """In nats a token; below zero, the first is better."""
    error: float
    """The standard error of that mean, windows being what is drawn."""
    windows: int
    better: int
    """Windows in which the first has the lower loss."""


@torch.no_grad()
def measure(model: Any, task: Text, length: int) -> dict[str, list[float]]:
    """The mean loss of every whole window of each split, in nats a token."""
    device = next(model.parameters()).device
    found: dict[str, list[float]] = {}
    with evaluating(model):
        for split in SPLITS:
            losses: list[float] = []
            for row in range(task.windows(split, length)):
                batch = task.window_batch(split, [row], length)
                targets = batch.targets.to(device).flatten()
                if bool((targets == IGNORED).any()):
                    continue
                logits = model(batch.tokens.to(device)).flatten(0, 1).float()
                losses.append(float(functional.cross_entropy(logits, targets)))
            found[split] = losses
    return found


def between(first: Sequence[float], second: Sequence[float]) -> Between:
    """Window by window."""
    if len(first) != len(second) or len(first) < 2:
        raise ValueError(f"{len(first)} and {len(second)} windows: both need the same ones, and at least two")
    differences = [a - b for a, b in zip(first, second, strict=True)]
    count = len(differences)
    return Between(fmean(differences), stdev(differences) / sqrt(count), count, sum(d < 0 for d in differences))


def kept(folder: Path, length: int) -> dict[str, list[float]] | None:
    """What was left with a run that has ended; None if nothing was."""
    path = _path(folder, length)
    if not path.is_file():
        return None
    try:
        found = json.loads(path.read_bytes())
        return {split: [float(loss) for loss in found[split]] for split in SPLITS}
    except (ValueError, TypeError, KeyError) as error:
        raise ValueError(f"{path} cannot be read: {error}; delete it, and it is made again") from error


def keep(folder: Path, length: int, found: dict[str, list[float]]) -> None:
    """Leave it there."""
    rounded = {split: [round(loss, 5) for loss in losses] for split, losses in found.items()}
    write_whole(_path(folder, length), json.dumps(rounded).encode() + b"\n")


def _path(folder: Path, length: int) -> Path:
    return folder / f"windows-{length}.json"
