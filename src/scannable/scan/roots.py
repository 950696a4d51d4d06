"""The scan for those who read the binary counter itself, and not the prefix that it folds to: the upsweep alone.

Letters as in `extend.py`: t elements came before, m are new, k is a tree level; node (k, j) covers the elements j*2^k
to (j+1)*2^k - 1.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Generic, TypeVar

import torch
from torch import Tensor

from scannable.scan.element_type import ElementType, Leaves, sequence
from scannable.scan.leaves import joined, length, with_time
from scannable.scan.one_stream import OneStream
from scannable.scan.state import check_levels
from scannable.scan.sweep import on_levels, upsweep
from scannable.scan.tree import flatten, tree_map, unflatten

T = TypeVar("T")


@dataclass(frozen=True, eq=False)
class Roots(Generic[T]):
    """The binary counter of Alg. 2 after `position` elements, without its folds: `Roots()` is the empty one.

    For each set bit k of `position`, roots[k] is the aggregate T(k, j) of that bit's block of 2^k elements. A state is
    never changed: extending it twice is a fork.

    >>> from scannable.scan import Roots, extend_roots
    >>> _, counter = extend_roots(torch.add, Roots(), torch.arange(6))
    >>> counter.roots
    {1: tensor(9), 2: tensor(6)}
    """

    position: int = 0
    roots: Mapping[int, T] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if type(self.position) is not int or self.position < 0 or not isinstance(self.roots, Mapping):
            raise TypeError(f"no roots of a scan: position {self.position!r}, roots {self.roots!r:.40}")
        check_levels(self.position, "roots", self.roots)

    @property
    def nbytes(self) -> int:
        """Bytes of all roots held."""
        return sum(leaf.nbytes for root in self.roots.values() for leaf in flatten(root)[0])

    def map(self, function: Callable[[Tensor], Tensor]) -> "Roots[T]":
        """The counter with `function` applied to every tensor of its roots."""
        return replace(self, roots={k: tree_map(function, root) for k, root in self.roots.items()})

    def detach(self) -> "Roots[T]":
        """The counter cut from its history, for truncated back-propagation."""
        return self.map(Tensor.detach)

    def to(self, target: torch.device | torch.dtype | str) -> "Roots[T]":
        """The counter on another device or in another dtype."""
        return self.map(lambda leaf: leaf.to(target))


@dataclass(frozen=True)
class LevelRoots(Generic[T]):
    """The roots that the binary counter held at one level, in the order of time.

    At a place whose bit `level` is set, the counter's root of that level is node number (place >> level) - 1.

    >>> from scannable.scan import Roots, extend_roots
    >>> levels, _ = extend_roots(torch.add, Roots(), torch.arange(6))
    >>> levels[1].level, levels[1].nodes
    (1, tensor([1, 9]))
    >>> levels[1].before(range(6))
    (tensor([2, 3]), tensor([0, 0]))
    """

    level: int
    first: int
    """The number of the first node here; only even ones are ever roots."""
    nodes: T

    def before(self, places: range, device: torch.device | None = None) -> tuple[Tensor, Tensor]:
        """Which of some successive places have a root of this level before them, counted from the first of these
        places; and where in `nodes` it is.
        """
        k = self.level
        # Number i of all places whose bit k is set is what i's bits above the lowest k count, this bit, and those k.
        i = torch.arange(_with_bit(k, places.start), _with_bit(k, places.stop), device=device)
        here = (i >> k << (k + 1)) + (1 << k) + (i & ((1 << k) - 1)) - places.start
        return here, (i >> k) - self.first // 2


def _with_bit(k: int, place: int) -> int:
    """How many places before `place` have bit k set."""
    return (place >> (k + 1) << k) + max(0, (place & ((2 << k) - 1)) - (1 << k))


def extend_roots(
    agg: Callable[[T, T], T], state: Roots[T], xs: T, *, dim: int = 0
) -> tuple[list[LevelRoots[T]], Roots[T]]:
    """Absorb m more elements in parallel: the counter before each of them, and the counter after all.

    The levels that had a root before any of the m places t to t + m - 1 come in order, the lowest first. Arguments as
    for `extend`. Agg is evaluated once for each pair of nodes that is finished, and called once for each level: all
    elements since the first take as many evaluations as there are elements, less the set bits of that number.

    >>> from scannable.scan import Roots, extend_roots
    >>> levels, counter = extend_roots(torch.add, Roots(), torch.arange(6))
    >>> [(one.level, one.nodes.tolist()) for one in levels]
    [(0, [0, 2, 4]), (1, [1, 9]), (2, [6])]
    >>> counter.position
    6
    """
    leaves, element, m = sequence(xs, dim)
    _check(state, element)
    if m == 0:
        return [], state
    layout = OneStream(state, m, element, dim, inclusive=False)
    lefts = upsweep(on_levels(agg, element, dim, False), layout, leaves)
    t, end = state.position, state.position + m
    levels: list[LevelRoots[T]] = []
    for k in range((end - 1).bit_length()):
        carried = t >> k & 1
        parts = [with_time(state.roots[k], dim)] if carried else []
        if k < len(lefts) and length(lefts[k], dim):
            parts.append(lefts[k])
        if parts:
            levels.append(LevelRoots(k, (t >> k) - carried, unflatten(element.structure, joined(parts, dim))))

    def last(leaves: Leaves) -> T:
        # A view would keep the whole level alive, and log n elements would hold n.
        copies = [leaf.select(dim, -1).clone(memory_format=torch.contiguous_format) for leaf in leaves]
        return unflatten(element.structure, copies)

    roots = {k: last(lefts[k]) if k < len(lefts) else state.roots[k] for k in range(end.bit_length()) if end >> k & 1}
    return levels, Roots(end, roots)


def _check(state: Roots[T], element: ElementType) -> None:
    if not isinstance(state, Roots):
        raise TypeError(
            f"expected the roots of a counter, got {type(state).__name__}; extend_roots starts from Roots()"
        )
    for level, root in state.roots.items():
        difference = ElementType.of(*flatten(root)).difference(element, "its root", "an element")
        if difference:
            raise ValueError(
                f"the counter does not fit these elements: at level {level} {difference}; if another scan made it, "
                "start from Roots(); if it lives elsewhere, state.to moves it"
            )
