"""By what the wrong answers of a model of a group differ from the right ones: it may hold products up to one element.

If every answer is either the product p or h p, with one h of order two, the state holds the pair {p, h p} and not which
of the two it is. Multiplying on keeps the pair, (h p) x = h (p x), so that such a state can hold for ever, with half of
all answers wrong.
"""

from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch

from scannable.experiments.record import leave, left
from scannable.models.protocol import evaluating
from scannable.tasks import GroupTask
from scannable.tasks.groups import multiplication_table
from scannable.tasks.sample import Split


@dataclass(frozen=True)
class LeftFactor:
    """Of the answers to the first sequences of a split."""

    rows: int
    length: int
    asked: int
    """Answers, all rows together."""
    errors: int
    """The wrong ones among them."""
    factor: int
    """The element h with which most of those are h p, where p would be right; 0, the identity, if none is wrong."""
    explained: int
    """How many of the wrong ones are."""


@torch.no_grad()
def left_factor(model: Any, task: GroupTask, length: int, rows: int, *, split: Split = "test") -> LeftFactor:
    """Divide each wrong answer by the right one, which stands behind the factor."""
    table = torch.from_numpy(multiplication_table(task.group).copy())
    # Row p of the table has the identity, number 0, in the column of the inverse of p.
    inverse = (table == 0).int().argmax(1)
    batch = task.batch(split, range(rows), length)
    with evaluating(model):
        answers = model(batch.tokens.to(next(model.parameters()).device)).argmax(-1).cpu()
    wrong = answers != batch.targets
    factors = table[answers[wrong], inverse[batch.targets[wrong]]]
    if not len(factors):
        return LeftFactor(rows, length, wrong.numel(), 0, 0, 0)
    count = factors.bincount()
    return LeftFactor(rows, length, wrong.numel(), len(factors), int(count.argmax()), int(count.max()))


def keep_factor(folder: Path, found: LeftFactor) -> None:
    """Leave it in the folder of a run that has ended."""
    leave(folder / _file_name(found.length, found.rows), asdict(found))


def kept_factor(folder: Path, length: int, rows: int) -> LeftFactor | None:
    """What was left there; None if nothing was."""
    return left(folder / _file_name(length, rows), lambda plain: LeftFactor(**plain))


def _file_name(length: int, rows: int) -> str:
    return f"factor-{length}x{rows}.json"
