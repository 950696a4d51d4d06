"""What one rank computes of the fixed tree: the nodes inside its part, those on its border, and its prefixes.

    up       the nodes that lie inside the part, a level a call; the largest of them go to the other ranks
    border   the nodes that begin before the part and that its prefixes need, merged from what the other ranks sent
    down     the prefixes at its places

The tree is that of `scan/sweep.py`, whoever computes a node. Leaves have time first. A part of m elements takes less
than m evaluations up and at most m + log2(r) down; the border takes at most one for each level and each bound before.
"""

from dataclasses import dataclass, field
from typing import Any

import torch

from scannable.distributed.split import Node, blocks
from scannable.scan.element_type import ElementType, Leaves, spread
from scannable.scan.leaves import alternate, halves, joined, length, part, with_time
from scannable.scan.state import ScanState
from scannable.scan.sweep import LevelAgg
from scannable.scan.tree import unflatten


@dataclass
class Inside:
    """The nodes inside a part: of level k the numbers from starts[k] on."""

    starts: list[int] = field(default_factory=list)
    nodes: list[Leaves] = field(default_factory=list)

    def node(self, node: Node) -> Leaves:
        """One of them, with a time axis of length 1."""
        k, j = node
        return part(self.nodes[k], 0, j - self.starts[k], 1)


def upward(agg: LevelAgg, elements: Leaves, first: int) -> Inside:
    """All nodes inside a part whose elements begin at place `first`."""
    inside, nodes, start = Inside(), elements, first
    while count := length(nodes, 0):
        inside.starts.append(start)
        inside.nodes.append(nodes)
        odd = start & 1
        pairs = (count - odd) // 2
        if not pairs:
            break
        nodes = agg(*halves(part(nodes, 0, odd, 2 * pairs), 0))
        start = (start + odd) >> 1
    return inside


def sent(inside: Inside, first: int, stop: int, like: Leaves) -> Leaves:
    """The largest nodes inside [first, stop), in order."""
    found = [inside.node(node) for node in blocks(first, stop)]
    return joined(found, 0) if found else [leaf[:0] for leaf in like]


def border(agg: LevelAgg, held: dict[Node, Leaves], limit: int) -> None:
    """Merge what is held, level by level, to all nodes that end at `limit` or before; they are added to it."""
    k = 0
    while k <= max((level for level, _ in held), default=-1):
        lefts = sorted(
            j for level, j in held if level == k and not j & 1 and (k, j + 1) in held and (j + 2) << k <= limit
        )
        if lefts:
            older, newer = (joined([held[k, j + i] for j in lefts], 0) for i in (0, 1))
            merged = agg(older, newer)
            for i, j in enumerate(lefts):
                held[k + 1, j >> 1] = part(merged, 0, i, 1)
        k += 1


@dataclass(frozen=True)
class Downward:
    """The prefixes of places `first` to `last`, and the folds of the state after `end` elements.

    Args:
        state: before the sequence.
        inside, held: the nodes that `upward` and `border` found.
        first, last: places, both included; None for no prefixes.
        end: None if nobody asks for the state.
    """

    state: ScanState[Any]
    element: ElementType
    inside: Inside
    held: dict[Node, Leaves]
    places: tuple[int, int] | None
    end: int | None

    def run(self, agg: LevelAgg) -> tuple[Leaves, ScanState[Any] | None]:
        """One call of Agg a level."""
        state, end = self.state, self.end
        tops = [0 if to is None else (state.position ^ to).bit_length() for to in (self._last, end)]
        prefixes, fold = self._known(tops[0]), self._known(tops[1])
        roots: dict[int, Any] = {}
        folds: dict[int, Any] = {}
        if end is not None:
            above = [k for k in reversed(range(end.bit_length())) if end >> k & 1 and k >= tops[1]]
            roots, folds = ({k: held[k] for k in above} for held in (state.roots, state.folds))
        for k in reversed(range(max(tops))):
            level = self._level(k, prefixes) if k < tops[0] else None
            root = self._node(k, (end >> k) - 1) if end is not None and k < tops[1] and end >> k & 1 else None
            # The state's fold is one more pair in the level's call, unless by law it is the root.
            folded = root is not None and (end or 0) >> (k + 1) == 0 and not state.literal
            pairs = [(level.older, level.newer)] if level and level.older else []
            pairs += [(fold, root)] if root and not folded else []
            new = agg(*(joined(list(side), 0) for side in zip(*pairs, strict=True))) if pairs else []
            count = length(level.older, 0) if level and level.older else 0
            if level:
                prefixes = level.woven(part(new, 0, 0, count) if count else [])
            if root:
                fold = root if folded else part(new, 0, count, 1)
                roots[k] = self._own(root)
                folds[k] = roots[k] if folded else self._own(fold)
        return prefixes, (None if end is None else state.advanced(end, roots, folds))

    @property
    def _last(self) -> int | None:
        return self.places[1] if self.places else None

    def _known(self, level: int) -> Leaves:
        return [leaf.unsqueeze(0) for leaf in spread(self.state.prefix(level), self.element)]

    def _node(self, k: int, j: int) -> Leaves:
        inside = self.inside
        if k < len(inside.starts) and 0 <= j - inside.starts[k] < length(inside.nodes[k], 0):
            return inside.node((k, j))
        return self.held[k, j]

    def _level(self, k: int, above: Leaves) -> "_Level":
        """What the prefixes at the places first >> k to last >> k are made of, from those of the level above."""
        assert self.places is not None
        state = self.state
        a, b = (place >> k for place in self.places)
        odd = a | 1
        count = max(0, (b - odd) // 2 + 1)
        head: Leaves = []
        if count and odd == state.position >> k:
            # The fold that the state keeps, bit k of its position being set.
            head = with_time(state.folds[k], 0)
        elif count and odd == 1 and state.starts_at_identity(k + 1):
            head = self._node(k, 0)
        number, calls = odd + 2 * bool(head), count - bool(head)
        older: Leaves = []
        newer: Leaves = []
        if calls:
            older = part(above, 0, (number >> 1) - (a >> 1), calls)
            newer = self._lefts(k, number - 1, calls)
        return _Level(above, head, older, newer, odd_first=bool(a & 1))

    def _lefts(self, k: int, number: int, count: int) -> Leaves:
        """The nodes `number`, number + 2, ... of level k; the first may lie on the border."""
        inside = self.inside
        start = inside.starts[k] if k < len(inside.starts) else number + 1
        front = [self.held[k, number]] if number < start else []
        rest = count - len(front)
        if rest:
            begin = number + 2 * len(front) - start
            nodes = part(inside.nodes[k], 0, begin, min(2 * rest, length(inside.nodes[k], 0) - begin))
            front.append(halves(nodes, 0)[0])
        return joined(front, 0)

    def _own(self, leaves: Leaves) -> Any:
        # A view would keep a whole level alive.
        copies = [leaf[0].clone(memory_format=torch.contiguous_format) for leaf in leaves]
        return unflatten(self.element.structure, copies)


@dataclass(frozen=True)
class _Level:
    above: Leaves
    head: Leaves
    """The first prefix with an odd number, if no call is needed for it."""
    older: Leaves
    newer: Leaves
    odd_first: bool

    def woven(self, new: Leaves) -> Leaves:
        """All prefixes of the level."""
        if not self.head and not new:
            return self.above
        odds = joined([self.head, new], 0)
        if self.odd_first:
            return alternate(odds, part(self.above, 0, 1, length(self.above, 0) - 1), 0)
        return alternate(self.above, odds, 0)
