"""The state of a prefix-scannable layer between positions (Alg. 4): rows that may each be somewhere else."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import Tensor

from scannable.layers import row_trees
from scannable.layers.state import State, checked_rows
from scannable.scan import ScanState
from scannable.scan.push import Push
from scannable.scan.tree import flatten, tree_map

HALF_WRITTEN = (-1,)
"""In place of positions while buffers are being written."""


@dataclass
class ChunkBuffers:
    """What the chunks in progress hold, in buffers that are reused from chunk to chunk. Rows are the first axis."""

    chunk: Any
    """The vectors of each row's chunk in progress, (b, c, ...)."""
    recent: Any
    """The vectors of the last whole chunks of each row, (b, recent * c, ...); the identity before the first."""
    cache: Any
    """What an Inf that reads a chunk piece by piece keeps of it; None for one that cannot."""
    written: tuple[int, ...]
    """The positions when the buffers were last written: a state that is elsewhere must not use them."""

    def __post_init__(self) -> None:
        self.maker: object = None
        """What a layer knows its own buffers by: it need not look at them again. No part of what is saved or copied."""
        self.recorded: bool = False
        """Whether autograd may hold these tensors: then the next one who would write into them copies them."""

    def writable(self) -> None:
        """Copy what autograd may still need."""
        if self.recorded:
            own = self.change(lambda part: row_trees.mapped(part, lambda leaf: leaf.detach().clone()), self.written)
            self.chunk, self.recent, self.cache, self.recorded = own.chunk, own.recent, own.cache, False

    def at(self, positions: tuple[int, ...]) -> "ChunkBuffers":
        """These buffers, if they are what a state at `positions` left."""
        if self.written == HALF_WRITTEN:
            raise ValueError(
                "a step from this state was interrupted, and left it half written; go back to a fork of it"
            )
        if self.written != positions:
            raise ValueError(
                f"this state is at {_shown(positions)}, but its buffers have gone on to {_shown(self.written)}; use "
                "the state that extend, prefill or step returned, and fork() before you branch"
            )
        return self

    def tensors(self) -> Iterator[Tensor]:
        for part in (self.chunk, self.recent, self.cache):
            if part is not None:
                yield from row_trees.tensors(part)

    def change(self, function: Callable[[Any], Any], written: tuple[int, ...]) -> "ChunkBuffers":
        """`function` of the chunks, the recent ones and the cache, where there are any."""
        chunk, recent, cache = (
            None if part is None else function(part) for part in (self.chunk, self.recent, self.cache)
        )
        return ChunkBuffers(chunk, recent, cache, written)


def _shown(positions: tuple[int, ...]) -> str:
    return f"position {positions[0]}" if len(set(positions)) == 1 else f"positions {positions}"


@dataclass(frozen=True, eq=False)
class PSMState(State):
    """Roots and folds of finished chunks, and the chunks in progress.

    Under `no_grad` the buffers of the chunks in progress are written and handed on; `fork()` copies them, and shares
    the roots.

    >>> layer = sc.TransformerPSMLayer(width=16, heads=2, chunk_length=4)
    >>> _, state = layer.extend(torch.randn(1, 22, 16), layer.initial_state(1))
    >>> type(state).__name__, state.position, sorted(state.scans[0].roots)
    ('PSMState', 22, [0, 2])
    """

    positions: tuple[int, ...]
    scans: tuple[ScanState[Any], ...] = field(repr=False)
    """One for all rows, if they are at one position; otherwise one for each. Its elements have the axis of rows."""
    buffers: ChunkBuffers = field(repr=False)
    pushes: tuple[Push[Any] | None, ...] = field(default=(), repr=False)
    """For each scan, the oldest of the recent chunks on its way into it; work done ahead, which may be missing."""

    def __post_init__(self) -> None:
        whole = isinstance(self.positions, tuple) and all(type(p) is int and p >= 0 for p in self.positions)
        if not whole or not isinstance(self.scans, tuple) or not isinstance(self.buffers, ChunkBuffers):
            raise TypeError(f"no state of a stream: positions {self.positions!r}, scans {type(self.scans).__name__}")
        if len(self.scans) not in (1, len(self.positions)) or not all(isinstance(s, ScanState) for s in self.scans):
            raise TypeError(
                f"{len(self.scans)} scans for {len(self.positions)} rows; expected one for all, or for each"
            )

    def usable(self) -> "PSMState":
        # Without gradients only buffers are written into; roots and folds are read.
        if not torch.is_grad_enabled() and not any(tensor.is_inference() for tensor in self.buffers.tensors()):
            return self
        return super().usable()

    def current_buffers(self) -> ChunkBuffers:
        """The buffers, unless another branch has gone on with them."""
        return self.buffers.at(self.positions)

    def tensors(self) -> Iterator[Tensor]:
        for scan in self.scans:
            for held in (*scan.roots.values(), *scan.folds.values()):
                yield from flatten(held)[0]
        for push in self.pushes:
            for held in () if push is None else (push.carry, push.fold):
                yield from () if held is None else flatten(held)[0]
        yield from self.buffers.tensors()

    def map(self, function: Callable[[Tensor], Tensor]) -> "PSMState":
        once: dict[int, Tensor] = {}

        def mapped(tensor: Tensor) -> Tensor:
            if id(tensor) not in once:
                once[id(tensor)] = function(tensor)
            return once[id(tensor)]

        def own(tensor: Tensor) -> Tensor:
            # Buffers are written into, so no two states may have the same.
            found = mapped(tensor)
            return found.clone() if found.data_ptr() == tensor.data_ptr() else found

        buffers = self.current_buffers().change(lambda part: row_trees.mapped(part, own), self.positions)
        pushes = tuple(None if push is None else _mapped(push, mapped) for push in self.pushes)
        return PSMState(self.positions, tuple(scan.map(mapped) for scan in self.scans), buffers, pushes)

    def to(self, target: torch.device | torch.dtype | str) -> "PSMState":
        moved = super().to(target)
        # The identity is no part of what a stream holds, but must be where the roots are.
        return replace(moved, scans=tuple(replace(s, identity=s.to(target).identity) for s in moved.scans))

    def fork(self) -> "PSMState":
        buffers = self.current_buffers().change(lambda part: row_trees.mapped(part, Tensor.clone), self.positions)
        return replace(self, buffers=buffers)

    def select(self, rows: Sequence[int]) -> "PSMState":
        rows = checked_rows(rows, self.batch_size)
        positions = tuple(self.positions[row] for row in rows)
        buffers = self.current_buffers().change(lambda part: row_trees.take(part, rows), positions)
        if len(self.scans) > 1:
            return PSMState(
                positions,
                tuple(self.scans[row] for row in rows),
                buffers,
                tuple(self.pushes[row] for row in rows) if self.pushes else (),
            )
        pushes = tuple(None if push is None else _mapped(push, lambda x: _rows(x, rows)) for push in self.pushes)
        return PSMState(positions, tuple(scan.map(lambda x: _rows(x, rows)) for scan in self.scans), buffers, pushes)

    @classmethod
    def joined(cls, states: Sequence["PSMState"]) -> "PSMState":
        positions = tuple(p for state in states for p in state.positions)
        parts = [state.current_buffers() for state in states]
        # Every one of these is missing in all states or in none: one layer made them.
        chunk, recent, cache = (
            None if getattr(parts[0], name) is None else row_trees.cat([getattr(part, name) for part in parts])
            for name in ("chunk", "recent", "cache")
        )
        together = ChunkBuffers(chunk, recent, cache, positions)
        apart = [state.each_row() for state in states]
        scans = tuple(scan for state in apart for scan in state.scans)
        pushes = tuple(push for state in apart for push in state.pushes or (None,) * state.batch_size)
        return PSMState(positions, scans, together, pushes).grouped()

    def each_row(self) -> "PSMState":
        """The same with a scan for each row."""
        if len(self.scans) == self.batch_size:
            return self
        each = [self.select([row]) for row in range(self.batch_size)]
        pushes = tuple(next(iter(one.pushes), None) for one in each)
        return replace(self, scans=tuple(one.scans[0] for one in each), pushes=pushes)

    def grouped(self) -> "PSMState":
        """The same with one scan for all rows, if they are at one position."""
        if len(self.scans) == 1 or len(set(self.positions)) > 1:
            return self
        first = self.scans[0]

        def stacked(what: str) -> dict[int, Any]:
            held = [getattr(scan, what) for scan in self.scans]
            return {k: row_trees.cat([values[k] for values in held]) for k in held[0]}

        roots = stacked("roots")
        folds = {k: roots[k] if first.folds[k] is first.roots[k] else x for k, x in stacked("folds").items()}
        pushes: tuple[Push[Any] | None, ...] = ()
        if self.pushes and all(push is not None for push in self.pushes):
            some = [push for push in self.pushes if push is not None]
            # Rows at one position are as far with it.
            carry = row_trees.cat([push.carry for push in some])
            fold = None if some[0].fold is None else row_trees.cat([push.fold for push in some])
            pushes = (Push(carry, some[0].level, fold, some[0].folded),)
        return replace(self, scans=(first.advanced(first.position, roots, folds),), pushes=pushes)


def _rows(leaf: Tensor, rows: Sequence[int]) -> Tensor:
    # A view of some rows would keep the others alive.
    return leaf[torch.tensor(list(rows), dtype=torch.int64, device=leaf.device)]


def _mapped(push: Push[Any], function: Callable[[Tensor], Tensor]) -> Push[Any]:
    fold = None if push.fold is None else tree_map(function, push.fold)
    return Push(tree_map(function, push.carry), push.level, fold, push.folded)
