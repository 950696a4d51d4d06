"""The layout of many streams, each at its own position with its own number of new elements: a level holds the nodes of
all streams one after another, and indices say which of them meet.
"""

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from scannable.scan.element_type import ElementType, Leaves, spread
from scannable.scan.leaves import joined
from scannable.scan.state import ScanState
from scannable.scan.sweep import Layout, Sweep
from scannable.scan.tree import unflatten

Numbers = np.ndarray[Any, np.dtype[np.int64]]


def runs(starts: Numbers, counts: Numbers, step: int = 1) -> Numbers:
    """starts[i], starts[i] + step, ... `counts[i]` numbers for each i, one after another."""
    ends = np.cumsum(counts)
    return np.repeat(starts - step * (ends - counts), counts) + step * np.arange(ends[-1] if len(ends) else 0)


def offsets(counts: Numbers) -> Numbers:
    """Where each stream begins, of streams that lie one after another."""
    return np.cumsum(counts) - counts


def on_device(index: Numbers, device: torch.device) -> Tensor:
    """Indices where they are used."""
    return torch.tensor(index.tolist() if device.type == "meta" else index, device=device)


class ManyStreams(Layout):
    """Time is the first axis of every leaf, and no place is padding.

    Args:
        positions: t of each stream.
        counts: m of each stream.
        literal: whether a stream calls Agg(e, x).
        kept: `kept(what, k, streams)` are the roots or the folds at level k of some streams, stacked.
        tops: `tops(levels)` is `state.prefix(levels[i])` of each stream, stacked.
        device: of the elements.
    """

    def __init__(
        self,
        positions: Numbers,
        counts: Numbers,
        literal: Numbers,
        *,
        kept: Callable[[str, int, Numbers], Leaves],
        tops: Callable[[Numbers], Leaves],
        device: torch.device,
    ) -> None:
        self.t, self.end, self.literal, self.device = positions, positions + counts, literal, device
        self.heights: Numbers = np.array([int(x).bit_length() for x in self.t ^ self.end], dtype=np.int64)
        """How many levels of each stream get new nodes."""
        self.levels: int = int(self.heights.max(initial=0))
        self._kept, self._tops = kept, tops

    def _span(self, k: int) -> tuple[Numbers, Numbers]:
        """The numbers of each stream's new nodes at level k: from, to."""
        return self.t >> k, self.end >> k

    def pairs(self, k: int, nodes: Leaves) -> tuple[Leaves, Leaves, Leaves]:
        first, stop = self._span(k)
        begin = offsets(stop - first)
        count = (stop >> 1) - (first >> 1)
        if not count.any():
            return nodes, [], []
        # Node j of a stream lies at begin + j - first; left nodes have even numbers.
        lefts = begin + (first & ~1) - first
        older = runs(lefts, count, 2)
        carried = (first & 1 == 1) & (count > 0)
        pool = nodes
        if carried.any():
            total = int((stop - first).sum())
            older[offsets(count)[carried]] = total + np.arange(carried.sum())
            pool = joined([nodes, self._kept("roots", k, np.flatnonzero(carried))], 0)
        return nodes, self._pick(pool, older), self._pick(nodes, runs(lefts + 1, count, 2))

    def tops(self) -> Leaves:
        return self._tops(self.heights)

    def _folds(self, k: int) -> tuple[Numbers, Numbers, Numbers, Numbers]:
        """Of each stream with new nodes at level k, counted among all of its prefixes with odd numbers: how many there
        are; whether the first is kept as a fold; whether it is a left node, by law; and its number.
        """
        first, stop = self._span(k)
        odd = first | 1
        # Prefix numbers run from `first` to `stop`, that one included.
        count = np.where(stop > first, ((stop + 1) >> 1) - (first >> 1), 0)
        carried = (first & 1 == 1) & (count > 0)
        by_law = (first == 0) & ~self.literal & (count > 0)
        return count, carried, by_law, odd

    def unfolded(self, k: int, prefixes: Leaves, lefts: Leaves) -> tuple[Leaves, Leaves]:
        first, stop = self._span(k)
        count, carried, by_law, odd = self._folds(k)
        known = carried | by_law
        called = count - known
        if not called.any():
            return [], []
        number = odd + 2 * known
        above = offsets((stop >> 1) - (first >> 1) + 1)
        older = runs(above + (number >> 1) - (first >> 1), called)
        newer = runs(offsets(stop - first) + number - 1 - first, called, 2)
        return self._pick(prefixes, older), self._pick(lefts, newer)

    def woven(self, k: int, prefixes: Leaves, lefts: Leaves, new: Leaves) -> Leaves:
        first, stop = self._span(k)
        count, carried, by_law, odd = self._folds(k)
        above = (stop >> 1) - (first >> 1) + 1
        total = int(above.sum())
        # Behind the prefixes of the level above: folds, left nodes that are prefixes, new aggregates.
        folds, laws = int(carried.sum()), int(by_law.sum())
        parts = [prefixes]
        if folds:
            parts.append(self._kept("folds", k, np.flatnonzero(carried)))
        if laws:
            parts.append(self._pick(lefts, offsets(stop - first)[by_law]))
        here = stop - first + 1
        begin = offsets(here)
        place = np.empty(int(here.sum()), dtype=np.int64)
        even = (first + 1) & ~1
        evens = np.where(here > 1, (stop >> 1) - (even >> 1) + 1, 0)
        place[runs(begin + even - first, evens, 2)] = runs(offsets(above) + (even >> 1) - (first >> 1), evens)
        # A stream without new nodes here keeps the one prefix that it has.
        still = here == 1
        place[begin[still]] = offsets(above)[still]
        at = begin + odd - first
        place[at[carried]] = total + np.arange(folds)
        place[at[by_law]] = total + folds + np.arange(laws)
        known = carried | by_law
        called = runs(at + 2 * known, count - known, 2)
        place[called] = total + folds + laws + np.arange(len(called))
        return self._pick(joined([*parts, new], 0), place)

    def before(self, swept: Sweep, *, inclusive: bool) -> Leaves:
        """The prefixes of all new elements, stream after stream."""
        count = self.end - self.t
        return self._pick(swept.prefixes, runs(offsets(count + 1) + int(inclusive), count))

    def last(self, k: int) -> Numbers:
        """Where the last node of each stream is at level k."""
        first, stop = self._span(k)
        return np.cumsum(stop - first) - 1

    def place_zero(self) -> Numbers:
        """Where the prefix of each stream at its global place 0 is, or would be if it were new."""
        return offsets(self.end - self.t + 1) - self.t

    def _pick(self, leaves: Leaves, index: Numbers) -> Leaves:
        if len(index) == len(leaves[0]) and (index == np.arange(len(index))).all():
            return leaves
        where = on_device(index, self.device)
        return [leaf.index_select(0, where) for leaf in leaves]


def from_states(states: Sequence[ScanState[Any]], counts: Sequence[int], element: ElementType) -> ManyStreams:
    """The layout of streams that go on from these states."""

    def stacked(held: list[Any]) -> Leaves:
        # Streams that share a value, such as the identity, share a row of the stack.
        once = {id(value): value for value in held}
        rows = {key: row for row, key in enumerate(once)}
        stack = [torch.stack(leaf) for leaf in zip(*(spread(x, element) for x in once.values()), strict=True)]
        if len(once) == len(held):
            return stack
        index = torch.tensor([rows[id(value)] for value in held], device=element.devices[0])
        return [leaf.index_select(0, index) for leaf in stack]

    def kept(what: str, k: int, streams: Numbers) -> Leaves:
        return stacked([getattr(states[int(i)], what)[k] for i in streams])

    return ManyStreams(
        np.array([state.position for state in states], dtype=np.int64),
        np.array(counts, dtype=np.int64),
        np.array([state.literal for state in states], dtype=bool),
        kept=kept,
        tops=lambda levels: stacked([state.prefix(int(k)) for state, k in zip(states, levels, strict=True)]),
        device=element.devices[0],
    )


def states_after(
    states: Sequence[ScanState[Any]], layout: ManyStreams, swept: Sweep, element: ElementType
) -> list[ScanState[Any]]:
    """The state of every stream after its elements, read off the sweeps: no further call of Agg."""

    def own(leaves: Leaves) -> Any:
        # A view would keep all streams' nodes alive for as long as this one.
        copies = [leaf.clone(memory_format=torch.contiguous_format) for leaf in leaves]
        return unflatten(element.structure, copies)

    last = [layout.last(k).tolist() for k in range(layout.levels)]
    zero: list[int] = layout.place_zero().tolist()
    after: list[ScanState[Any]] = []
    for i, state in enumerate(states):
        end = int(layout.end[i])
        roots: dict[int, Any] = {}
        folds: dict[int, Any] = {}
        for k in reversed(range(end.bit_length())):
            if end >> k & 1:
                if k >= layout.heights[i]:
                    roots[k], folds[k] = state.roots[k], state.folds[k]
                    continue
                roots[k] = own([leaf[last[k][i]] for leaf in swept.lefts[k]])
                alone = end >> (k + 1) == 0 and not state.literal
                folds[k] = roots[k] if alone else own([leaf[zero[i] + (end >> k << k)] for leaf in swept.prefixes])
        after.append(state.advanced(end, roots, folds) if end != state.position else state)
    return after
