"""A trained model that reads far more than it was trained on, in pieces, and is asked at every token.

Nothing is kept of a piece but the state behind it: the length is bounded by patience alone.
"""

import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch

from scannable.experiments.record import leave, left
from scannable.models.protocol import evaluating
from scannable.tasks import IGNORED, Task
from scannable.tasks.sample import Split, check_length

PIECE = 4096
"""Tokens read at once; the answers are the same for any other number, up to rounding."""


@dataclass(frozen=True)
class Read:
    """After n tokens of every row."""

    n: int
    asked: int
    """Answers given so far, all rows together."""
    errors: int
    """The wrong ones among them."""
    nbytes: int
    """Held by the state of one row."""


@dataclass(frozen=True)
class Reading:
    """What came of reading some rows to their end."""

    rows: int
    piece: int
    points: tuple[Read, ...]
    """Just before each power of two, where a binary counter holds most, and at the end."""
    first_error: int | None
    """The earliest position with a wrong answer in any row; None if there is none."""
    seconds: float

    @property
    def length(self) -> int:
        return self.points[-1].n

    @property
    def asked(self) -> int:
        return self.points[-1].asked

    @property
    def errors(self) -> int:
        return self.points[-1].errors

    @property
    def nbytes(self) -> int:
        """The most that one row was seen to hold."""
        return max(point.nbytes for point in self.points)


@dataclass(frozen=True)
class ReadFar:
    """A run that read on, in pieces, far beyond what it was trained on."""

    model: str
    seed: int
    length: int
    rows: int
    piece: int
    asked: int
    errors: int
    first_error: int | None
    nbytes: int
    """The most that one row was seen to hold."""
    seconds: float


@torch.no_grad()
def read_in_pieces(
    model: Any,
    task: Task,
    length: int,
    rows: int,
    piece: int = PIECE,
    *,
    split: Split = "test",
    each: Callable[[Read], None] = lambda read: None,
) -> Reading:
    """Read the first `rows` samples of a split, `length` tokens each, and compare every answer with the task's.

    The task computes its answers on its own: for a group, the running product by the multiplication table, one token
    after the other. The model reads by `prefill`, from the state that the piece before left. `each` is told how far it
    is after every piece.
    """
    check_length(length)
    for name, value in (("rows", rows), ("piece", piece)):
        if type(value) is not int or value < 1:
            raise ValueError(f"{name}={value!r} must be a whole number of at least 1")
    began = time.perf_counter()
    batch, device = task.batch(split, range(rows), length), next(model.parameters()).device
    shown = {n for k in range(1, length.bit_length() + 1) if (n := 2**k - 1) <= length} | {length}
    # Pieces end where something is shown, too: what is held between two tokens can be seen only there.
    ends = sorted(shown | set(range(piece, length, piece)))
    points: list[Read] = []
    asked = errors = begin = 0
    first_error: int | None = None
    with evaluating(model):
        state = model.initial_state(rows)
        for end in ends:
            logits, state = model.prefill(batch.tokens[:, begin:end].to(device), state)
            targets = batch.targets[:, begin:end].to(device)
            wrong = (logits.argmax(-1) != targets) & (targets != IGNORED)
            asked += int((targets != IGNORED).sum())
            errors += int(wrong.sum())
            if first_error is None and bool(wrong.any()):
                first_error = begin + int(wrong.any(0).int().argmax())
            point = Read(end, asked, errors, state.nbytes // rows)
            each(point)
            if end in shown:
                points.append(point)
            begin = end
    return Reading(rows, piece, tuple(points), first_error, time.perf_counter() - began)


def keep_reading(folder: Path, reading: Reading) -> None:
    """Leave it in the folder of a run that has ended."""
    leave(folder / _file_name(reading.length, reading.rows), asdict(reading))


def kept_reading(folder: Path, length: int, rows: int) -> Reading | None:
    """What was left there; None if nothing was."""
    return left(
        folder / _file_name(length, rows),
        lambda plain: Reading(**{**plain, "points": tuple(Read(**point) for point in plain["points"])}),
    )


def _file_name(length: int, rows: int) -> str:
    return f"reading-{length}x{rows}.json"
