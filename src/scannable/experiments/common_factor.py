"""What the wrong answers of a model of a group have in common: a model may hold products up to a single element.

If every answer is either the product p or h p, with one h of order two, the model holds the cosets {p, h p}, half as
many things as there are elements. Reading on moves both alike, (h p) x = h (p x), so that such a state can hold for
ever, with half of all answers wrong.
"""

from collections.abc import Callable
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
class CommonFactor:
    """Of the answers to some sequences of a length."""

    length: int
    asked: int
    errors: int
    """The wrong ones."""
    factor: int
    """The element h with which most of those are h p, where p would be right; 0, the identity, if none is wrong."""
    explained: int
    """How many of the wrong ones are."""


@dataclass(frozen=True)
class InCommon(CommonFactor):
    """Of a run."""

    model: str
    seed: int


@torch.no_grad()
def common_factor(
    model: Callable[..., Any], task: GroupTask, length: int, rows: int, *, split: Split = "test"
) -> CommonFactor:
    """Read the first samples of a split, and divide each wrong answer by the right one."""
    table = torch.from_numpy(multiplication_table(task.group).copy())
    # Row p of the table has the identity, number 0, in the column of the inverse of p.
    inverse = (table == 0).int().argmax(1)
    batch = task.batch(split, range(rows), length)
    with evaluating(model):
        device = next(model.parameters()).device  # pyright: ignore[reportFunctionMemberAccess]
        answers = model(batch.tokens.to(device)).argmax(-1).cpu()
    wrong = answers != batch.targets
    factors = table[answers[wrong], inverse[batch.targets[wrong]]]
    if not len(factors):
        return CommonFactor(length, wrong.numel(), 0, 0, 0)
    count = factors.bincount()
    return CommonFactor(length, wrong.numel(), len(factors), int(count.argmax()), int(count.max()))


def keep_factor(folder: Path, found: CommonFactor) -> None:
    """Leave it in the folder of a run that has ended."""
    leave(folder / _file_name(found.length), asdict(found))


def kept_factor(folder: Path, length: int) -> CommonFactor | None:
    """What was left there; None if nothing was."""
    return left(folder / _file_name(length), lambda plain: CommonFactor(**plain))


def _file_name(length: int) -> str:
    return f"factor-{length}.json"
