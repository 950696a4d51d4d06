"""Where documents lie in rows: each row one document that is padded behind its end, or documents packed in a row."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from scannable.scan.many_streams import Numbers, offsets, runs


@dataclass(frozen=True, eq=False)
class Documents:
    """Documents in the order of rows, and of time in a row; no two overlap."""

    rows: int
    length: int
    """Of a row."""
    row: Numbers
    start: Numbers
    counts: Numbers
    same_in_all_rows: bool = False
    """Then they are the documents of one row that stands for all."""

    def in_all_rows(self) -> "Documents":
        """The documents of every row, spelled out."""
        if not self.same_in_all_rows:
            return self
        row = np.repeat(np.arange(self.rows), len(self.counts))
        return Documents(self.rows, self.length, row, np.tile(self.start, self.rows), np.tile(self.counts, self.rows))

    def places(self, counts: Numbers) -> Numbers:
        """Where the first so many positions of each document are, in rows that lie one after another."""
        return runs(self.row * self.length + self.start, counts)

    def prefixes(self, absorbed: Numbers, *, inclusive: bool) -> Numbers:
        """Where the prefixes of each document are among those before and after all that it absorbed."""
        return runs(offsets(absorbed + 1) + int(inclusive), self.counts)


def documents_of(rows: int, length: int, *, lengths: Any = None, starts: Any = None) -> Documents:
    """Documents by the lengths of padded rows, or by the places where they start.

    Args:
        lengths: one whole number for each row, from 0 to `length`.
        starts: places that rise from 0 to `length`, the same in all rows (cumulative lengths are such); a sequence of
            them for each row; or a mask (rows, length). Place 0 is a start, said or not.
    """
    if lengths is not None and starts is not None:
        raise ValueError("give lengths for padded rows or starts for packed documents, not both")
    if starts is None:
        counts = whole_numbers(lengths, "lengths")
        if counts.shape != (rows,):
            raise ValueError(
                f"lengths have the shape {counts.shape}; expected one whole number for each of the {rows} rows"
            )
        if rows and not 0 <= counts.min() <= counts.max() <= length:
            raise ValueError(f"lengths {counts.tolist()} must lie between 0 and {length}, the length of the rows")
        return Documents(rows, length, np.arange(rows), np.zeros(rows, dtype=np.int64), counts)
    if isinstance(starts, np.ndarray):
        starts = torch.from_numpy(starts)
    if isinstance(starts, Tensor) and starts.ndim == 2 and starts.dtype != torch.bool:
        starts = list(starts)
    if isinstance(starts, Tensor) and starts.dtype == torch.bool:
        return _masked(rows, length, starts)
    nested = isinstance(starts, Sequence) and any(isinstance(x, Sequence | Tensor | np.ndarray) for x in starts)
    if not nested:
        found = _places(starts, length)
        counts = np.diff(np.append(found, length))
        return Documents(rows, length, np.zeros_like(found), found, counts, same_in_all_rows=True)
    if len(starts) != rows:
        raise ValueError(f"starts for {len(starts)} rows, but there are {rows}")
    each = [_places(some, length) for some in starts]
    return _of_rows(rows, length, each)


def _masked(rows: int, length: int, mask: Tensor) -> Documents:
    if mask.shape == (length,):
        return documents_of(rows, length, starts=mask.nonzero()[:, 0])
    if mask.shape != (rows, length):
        raise ValueError(f"starts have the shape {tuple(mask.shape)}; a mask has ({rows}, {length}), rows and time")
    return _of_rows(rows, length, [_places(row.nonzero()[:, 0], length) for row in mask.cpu()])


def _of_rows(rows: int, length: int, each: list[Numbers]) -> Documents:
    if not each:
        nothing = np.zeros(0, dtype=np.int64)
        return Documents(rows, length, nothing, nothing, nothing)
    row = np.repeat(np.arange(rows), [len(found) for found in each])
    counts = np.concatenate([np.diff(np.append(found, length)) for found in each])
    return Documents(rows, length, row, np.concatenate(each), counts)


def _places(starts: Any, length: int) -> Numbers:
    found = whole_numbers(starts, "starts")
    if found.ndim != 1 or (np.diff(found) < 0).any() or (len(found) and not 0 <= found[0] <= found[-1] <= length):
        raise ValueError(f"starts {found.tolist()} must rise from 0 to at most {length}, the length of a row")
    # The end, as cumulative lengths have it, begins nothing; an empty document is none.
    return np.union1d(found[found < length], [0]).astype(np.int64) if length else np.zeros(0, dtype=np.int64)


def whole_numbers(given: Any, name: str) -> Numbers:
    """Numbers on the host, from a tensor, an array or a sequence."""
    if isinstance(given, Tensor) and given.device.type == "meta":
        raise ValueError(f"{name} on meta cannot be looked at: they have no values; pass them as a list or on the CPU")
    found = np.asarray(given.tolist() if isinstance(given, Tensor) else given)
    if found.size and not np.issubdtype(found.dtype, np.integer):
        raise ValueError(f"{name} have the dtype {found.dtype}; expected whole numbers")
    return found.astype(np.int64)
