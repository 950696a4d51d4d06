"""Two language models on the same windows: is what lies between them more than the choice of the text?"""

from collections.abc import Sequence
from dataclasses import dataclass
from math import sqrt
from pathlib import Path
from statistics import fmean, stdev
from typing import Any

import torch
from torch.nn import functional

from scannable.experiments.record import leave, left
from scannable.models.protocol import evaluating
from scannable.tasks import IGNORED, Split
from scannable.training.evaluation import Text

SPLITS: tuple[Split, ...] = ("test", "validation")
BLOCK = 8192
"""Tokens that stand together for the standard error."""


@dataclass(frozen=True)
class Between:
    """How far one model's loss lies from another's, over the windows of a split."""

    mean: float
    """In nats a token; below zero, the first is better."""
    error: float
    """The standard error of that mean, by blocks of windows: neighbours are of one text, and alike."""
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
                # As many digits as are kept, so that what was kept gives the same numbers again.
                losses.append(round(float(functional.cross_entropy(logits, targets)), 5))
            found[split] = losses
    return found


def between(first: Sequence[float], second: Sequence[float], length: int) -> Between:
    """Window by window, of windows of this length."""
    if len(first) != len(second) or len(first) < 2:
        raise ValueError(f"{len(first)} and {len(second)} windows: both need the same ones, and at least two")
    together = max(1, min(BLOCK // length, len(first) // 2))
    differences = [a - b for a, b in zip(first, second, strict=True)]
    # Whole blocks only; the last windows count for the mean.
    blocks = [fmean(differences[i : i + together]) for i in range(0, len(first) - together + 1, together)]
    better = sum(difference < 0 for difference in differences)
    return Between(fmean(differences), stdev(blocks) / sqrt(len(blocks)), len(first), better)


def kept(folder: Path, length: int) -> dict[str, list[float]] | None:
    """What was left with a run that has ended; None if nothing was."""
    return left(_path(folder, length), lambda plain: {split: [float(one) for one in plain[split]] for split in SPLITS})


def keep(folder: Path, length: int, found: dict[str, list[float]]) -> None:
    """Leave it there."""
    leave(_path(folder, length), found)


def _path(folder: Path, length: int) -> Path:
    return folder / f"windows-{length}.json"
