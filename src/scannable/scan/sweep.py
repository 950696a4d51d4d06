"""Both sweeps over the fixed tree, for one stream or many: which nodes meet is a layout's business, Agg's is here.

The tree is fixed by global position: node (k, j) covers the elements j*2^k to (j+1)*2^k - 1, whoever computes it and
when. A stream that took t elements and takes m more has, at level k, the new nodes t>>k to ((t+m)>>k) - 1.

    T(k+1, j) = Agg(T(k, 2j), T(k, 2j+1))                       upsweep
    P(k, j)   = P(k+1, j/2)                       for even j    downsweep; P(k, j) is the prefix at place j*2^k
    P(k, j)   = Agg(P(k+1, (j-1)/2), T(k, j-1))   for odd j
"""

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeVar

from torch import Tensor
from torch.utils.checkpoint import checkpoint as recompute_in_backward

from scannable.scan.element_type import ElementType, Leaves, aggregate_leaves
from scannable.scan.tree import unflatten

T = TypeVar("T")

LevelAgg = Callable[[Leaves, Leaves], Leaves]


class Layout(ABC):
    """Where the nodes of a level are."""

    levels: int
    """How many levels get new nodes."""

    @abstractmethod
    def pairs(self, k: int, nodes: Leaves) -> tuple[Leaves, Leaves, Leaves]:
        """What the downsweep needs of the new nodes of level k, and the older and the newer ones that make level k+1.
        A node that is the right one of its pair meets the root that waits for it.
        """

    @abstractmethod
    def tops(self) -> Leaves:
        """The prefix of each stream above its topmost new node, which its state knows."""

    @abstractmethod
    def unfolded(self, k: int, prefixes: Leaves, lefts: Leaves) -> tuple[Leaves, Leaves]:
        """The prefixes of level k+1 and the left nodes of level k whose aggregates are prefixes of level k.

        Left out are those that need no call: a prefix that the state keeps as a fold, and by law Agg(e, x) = x.
        """

    @abstractmethod
    def woven(self, k: int, prefixes: Leaves, lefts: Leaves, new: Leaves) -> Leaves:
        """All prefixes of level k: those of level k+1, those that needed no call, and the new ones, in order."""


@dataclass(frozen=True)
class Sweep:
    """What both sweeps leave."""

    lefts: list[Leaves]
    """For each level that got new nodes, what `Layout.pairs` kept of them."""
    prefixes: Leaves


def sweep(agg: LevelAgg, layout: Layout, elements: Leaves) -> Sweep:
    """Absorb new elements: one call of `agg` a level up, and one a level down."""
    lefts = upsweep(agg, layout, elements)
    prefixes = layout.tops()
    for k in reversed(range(layout.levels)):
        older, newer = layout.unfolded(k, prefixes, lefts[k])
        prefixes = layout.woven(k, prefixes, lefts[k], agg(older, newer) if older else [])
    return Sweep(lefts, prefixes)


def upsweep(agg: LevelAgg, layout: Layout, elements: Leaves) -> list[Leaves]:
    """The first half, for those who read nodes and no prefixes: what `Layout.pairs` kept of each level."""
    lefts: list[Leaves] = []
    nodes = elements
    for k in range(layout.levels):
        left, older, newer = layout.pairs(k, nodes)
        lefts.append(left)
        nodes = agg(older, newer) if older else []
    return lefts


def on_levels(agg: Callable[[T, T], T], element: ElementType, dim: int, checkpoint: bool) -> LevelAgg:
    """`agg` on the leaves of a level, time on axis `dim`; it sees time as the first batch axis, and is checked."""

    def flat_agg(*leaves: Tensor) -> Leaves:
        batch = [leaf.movedim(dim, 0) for leaf in leaves]
        older, newer = batch[: len(batch) // 2], batch[len(batch) // 2 :]
        result = agg(unflatten(element.structure, older), unflatten(element.structure, newer))
        return [leaf.movedim(0, dim) for leaf in aggregate_leaves(result, element.batch_of(len(older[0])))]

    def level_agg(older: Leaves, newer: Leaves) -> Leaves:
        if checkpoint:
            # Flat, because checkpointing looks for devices only in the containers that torch itself knows.
            return recompute_in_backward(flat_agg, *older, *newer, use_reentrant=False)
        return flat_agg(*older, *newer)

    return level_agg
