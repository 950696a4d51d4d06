"""The layout of one stream, or of a batch at one position: every level is a view, and time stays on its axis."""

from typing import Any

import torch

from scannable.scan.element_type import ElementType, Leaves, spread
from scannable.scan.leaves import alternate, halves, joined, length, part, with_time
from scannable.scan.state import ScanState
from scannable.scan.sweep import Layout, Sweep
from scannable.scan.tree import unflatten


class OneStream(Layout):
    """The left nodes of a level are kept; they alone become part of a prefix.

    `state` is a `ScanState`; for the upsweep alone, anything with its position and roots.
    """

    def __init__(self, state: Any, m: int, element: ElementType, dim: int, *, inclusive: bool) -> None:
        self.state, self.m, self.element, self.dim = state, m, element, dim
        self.levels: int = (state.position ^ (state.position + m)).bit_length()
        # Nobody asked for the e at place 0 of inclusive prefixes; without it an even number is woven from equal halves.
        self.drop: bool = inclusive and state.starts_at_identity(0)
        self.place: int = state.position + int(self.drop)
        """Of the first prefix."""

    def pairs(self, k: int, nodes: Leaves) -> tuple[Leaves, Leaves, Leaves]:
        first, second = halves(nodes, self.dim)
        if self.state.position >> k & 1:
            # The first new node is a right one; its left sibling is the root that waits at this level.
            count = length(first, self.dim)
            waiting = with_time(self.state.roots[k], self.dim)
            return second, joined([waiting, part(second, self.dim, 0, count - 1)], self.dim), first
        count = length(second, self.dim)
        return (first, part(first, self.dim, 0, count), second) if count else (first, [], [])

    def tops(self) -> Leaves:
        prefixes = [leaf.unsqueeze(self.dim) for leaf in spread(self.state.prefix(self.levels), self.element)]
        return part(prefixes, self.dim, 0, 0) if self.drop else prefixes

    def _known(self, k: int) -> tuple[int, int, int]:
        """Whether the level's first number is odd; whether its first left node is a prefix by law; and the first
        prefix of the level above that is the left side of a call.
        """
        carried = self.state.position >> k & 1
        by_law = int(not carried and self.state.starts_at_identity(k + 1))
        return carried, by_law, 0 if self.drop else carried + by_law

    def unfolded(self, k: int, prefixes: Leaves, lefts: Leaves) -> tuple[Leaves, Leaves]:
        _, by_law, start = self._known(k)
        count = length(lefts, self.dim) - by_law
        if not count:
            return [], []
        return part(prefixes, self.dim, start, count), part(lefts, self.dim, by_law, count)

    def woven(self, k: int, prefixes: Leaves, lefts: Leaves, new: Leaves) -> Leaves:
        carried, by_law, start = self._known(k)
        # If the level's first number is odd, its prefix is the fold that the state keeps.
        head = with_time(self.state.folds[k], self.dim) if carried else part(lefts, self.dim, 0, by_law)
        odds = joined([head, new], self.dim)
        if carried or self.drop:
            rest = part(prefixes, self.dim, start, length(prefixes, self.dim) - start)
            return alternate(odds, rest, self.dim)
        return alternate(prefixes, odds, self.dim)

    def prefixes(self, swept: Sweep, place: int, count: int) -> Leaves:
        """`count` prefixes from `place` on, in memory that is the caller's own."""
        found = [leaf.narrow(self.dim, place - self.place, count) for leaf in swept.prefixes]
        # Of one, nothing may have been woven: it may be the identity or an element itself.
        return [leaf.clone() for leaf in found] if count == 1 else found

    def after(self, swept: Sweep) -> ScanState[Any]:
        """The state after t + m elements, read off the sweeps: no further call of Agg."""
        state, end = self.state, self.state.position + self.m
        roots: dict[int, Any] = {}
        folds: dict[int, Any] = {}
        for k in reversed(range(end.bit_length())):
            if end >> k & 1:
                if k >= self.levels:
                    roots[k], folds[k] = state.roots[k], state.folds[k]
                    continue
                roots[k] = self._own(swept.lefts[k], -1)
                alone = end >> (k + 1) == 0 and not state.literal
                folds[k] = roots[k] if alone else self._own(swept.prefixes, (end >> k << k) - self.place)
        return state.advanced(end, roots, folds)

    def _own(self, leaves: Leaves, place: int) -> Any:
        # A view would keep the whole level alive, and log n elements would hold n.
        copies = [leaf.select(self.dim, place).clone(memory_format=torch.contiguous_format) for leaf in leaves]
        return unflatten(self.element.structure, copies)
