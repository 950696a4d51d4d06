"""Alg. 2, "BinaryCounterUpdate": the scan one element at a time, in O(log t) state and two Agg calls a push."""

from collections.abc import Callable, Mapping
from typing import Any, Generic, TypeVar

from torch import Tensor

from scannable.scan.push import Push
from scannable.scan.state import ScanState, empty

T = TypeVar("T")


class BinaryCounter(Generic[T]):
    """The online scan for anything that `agg(older, newer)` takes: tensors, trees, strings, numbers.

        counter = BinaryCounter(agg, identity=e)
        for x in stream:
            before = counter.prefix()   # exclusive: x_0 .. x_(t-1), what Alg. 1 returns at t
            counter.push(x)
            after = counter.prefix()    # inclusive: x_0 .. x_t, what Alg. 2 as printed emits at t

    `prefix()` reads a cached value and calls nothing. A tensor is copied when it is pushed; any other object is kept
    as it is, so do not change it afterwards.

    >>> counter = sc.BinaryCounter(lambda older, newer: f"({older}{newer})", identity="e")
    >>> for letter in "abcde":
    ...     counter.push(letter)
    >>> counter.prefix()
    '(((ab)(cd))e)'
    >>> counter.roots
    {2: '((ab)(cd))', 0: 'e'}
    """

    def __init__(self, agg: Callable[[T, T], T], identity: T, *, literal: bool = False) -> None:
        self.agg: Callable[[T, T], T] = agg
        self.state: ScanState[T] = empty(identity, literal=literal)

    def prefix(self) -> T:
        """The aggregate of everything pushed so far, along the tree of Alg. 1; the identity at first."""
        return self.state.prefix()

    def push(self, x: T) -> None:
        """Absorb `x`; if `agg` raises, the counter stays as it was."""
        element: Any = x.clone() if isinstance(x, Tensor) else x
        update: Push[T] = Push(element)
        while (pair := update.pair(self.state)) is not None:
            update = update.answered(self.state, self.agg(*pair))
        self.state = update.done(self.state)

    def fork(self) -> "BinaryCounter[T]":
        """An independent counter that goes on from here; nothing is copied."""
        branch = BinaryCounter(self.agg, self.state.identity, literal=self.state.literal)
        branch.state = self.state
        return branch

    @property
    def position(self) -> int:
        """How many elements were pushed."""
        return self.state.position

    @property
    def roots(self) -> Mapping[int, T]:
        """The aggregate of the block that each set bit k of `position` stands for."""
        return self.state.roots
