"""What a scan has to remember after t elements, to go on as if it had never stopped."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Generic, TypeVar

import torch
from torch import Tensor

from scannable.scan.tree import flatten, tree_map, unflatten

T = TypeVar("T")


@dataclass(frozen=True, eq=False)
class ScanState(Generic[T]):
    """The binary counter of Alg. 2 after `position` elements.

    The set bits of `position` cut the past into aligned blocks, the largest first. For each set bit k,

        roots[k]  is the aggregate T(k, j) of that bit's block of 2^k elements, and
        folds[k]  is the prefix of everything up to the end of that block:
                  Agg(fold of the next higher root, roots[k]).

    Keeping the folds is what makes a push cost one fold instead of popcount(t); the values are the same.
    A state is never changed: extending it twice is a fork.

    >>> _, state = sc.extend(torch.add, sc.empty(torch.tensor(0)), torch.arange(6))
    >>> state.roots
    {2: tensor(6), 1: tensor(9)}
    >>> state.prefix()
    tensor(15)
    """

    identity: T
    literal: bool = False
    position: int = 0
    roots: Mapping[int, T] = field(default_factory=dict)
    folds: Mapping[int, T] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if type(self.position) is not int or self.position < 0 or not isinstance(self.roots, Mapping):
            raise TypeError(f"no state of a scan: position {self.position!r}, roots {self.roots!r:.40}")
        check_levels(self.position, "roots", self.roots)
        check_levels(self.position, "folds", self.folds)

    def prefix(self, level: int = 0) -> T:
        """The aggregate of all whole blocks of 2^level elements so far; for level 0, of every element."""
        for k in range(level, self.position.bit_length()):
            if k in self.folds:
                return self.folds[k]
        return self.identity

    def starts_at_identity(self, level: int) -> bool:
        """Whether `prefix(level)` is e and, by law, Agg(e, x) is x without a call."""
        return not self.literal and self.position >> level == 0

    def advanced(self, position: int, roots: Mapping[int, T], folds: Mapping[int, T]) -> "ScanState[T]":
        """The same stream later on."""
        return replace(self, position=position, roots=roots, folds=folds)

    @property
    def nbytes(self) -> int:
        """Bytes of all roots and folds held, for elements that are trees of tensors."""
        held: list[Any] = [*self.roots.values(), *self.folds.values()]
        leaves = {id(leaf): leaf for element in held for leaf in flatten(element)[0]}
        return sum(leaf.numel() * leaf.element_size() for leaf in leaves.values())

    def map(self, function: Callable[[Tensor], Tensor]) -> "ScanState[T]":
        """The state with `function` applied to every tensor of its roots and folds; the identity stays."""
        mapped: dict[int, Tensor] = {}

        def once(leaf: Tensor) -> Tensor:
            # The topmost fold is its root by law; they stay one tensor.
            if id(leaf) not in mapped:
                mapped[id(leaf)] = function(leaf)
            return mapped[id(leaf)]

        return replace(
            self,
            roots={k: tree_map(once, root) for k, root in self.roots.items()},
            folds={k: tree_map(once, fold) for k, fold in self.folds.items()},
        )

    def detach(self) -> "ScanState[T]":
        """The state cut from its history, for truncated back-propagation; the identity keeps its gradient."""
        return self.map(Tensor.detach)

    def to(self, target: torch.device | torch.dtype | str) -> "ScanState[T]":
        """The state on another device or in another dtype, its identity too."""
        leaves, structure = flatten(self.identity, "the identity", numbers=True)
        moved = [leaf.to(target) if isinstance(leaf, Tensor) else leaf for leaf in leaves]
        return replace(self.map(lambda leaf: leaf.to(target)), identity=unflatten(structure, moved))


def check_levels(position: int, what: str, held: Mapping[int, object]) -> None:
    """Refuse anything but one for each set bit of the position."""
    levels = {k for k in range(position.bit_length()) if position >> k & 1}
    if held.keys() != levels:
        raise ValueError(
            f"after {position} elements there are {what} at the levels {sorted(levels)}, not at {list(held)}"
        )


def empty(identity: Any, *, literal: bool = False) -> ScanState[Any]:
    """The state before the first element.

    `identity` is what the first prefix is. By law Agg(identity, x) = x and the call is skipped, which is what a
    learned Agg without an identity needs; `literal=True` makes the call, as Alg. 1 and Alg. 2 are printed.

    >>> state = sc.empty(torch.zeros(8))
    >>> state.position, len(state.roots)
    (0, 0)
    """
    return ScanState(identity, literal)
