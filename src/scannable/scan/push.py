"""Alg. 2, "BinaryCounterUpdate", one call of Agg at a time: an addition of 1 to the binary counter that can wait."""

from dataclasses import dataclass
from typing import Any, Generic, TypeVar

from scannable.scan.state import ScanState

T = TypeVar("T")


@dataclass(frozen=True, eq=False)
class Push(Generic[T]):
    """An element on its way into a counter: `carry` has taken in the roots below `level`.

    The counter itself is left as it was; `done` gives the one behind the element.
    """

    carry: T
    level: int = 0
    fold: T | None = None
    """The prefix of everything, once it is known; None may be an element like any other."""
    folded: bool = False

    def pair(self, state: ScanState[T]) -> tuple[T, T] | None:
        """What is to be aggregated next, older and newer; None if nothing is."""
        if self.level in state.roots:
            return state.roots[self.level], self.carry
        if self.folded or state.starts_at_identity(self.level):
            return None
        # The folds above stand; those below went with their roots. So one fold is new, whatever t is.
        return state.prefix(self.level), self.carry

    def answered(self, state: ScanState[T], aggregate: T) -> "Push[T]":
        """One call later."""
        if self.level in state.roots:
            return Push(aggregate, self.level + 1)
        return Push(self.carry, self.level, aggregate, folded=True)

    def done(self, state: ScanState[T]) -> ScanState[T]:
        """The counter with the element in it, when there is nothing left to aggregate."""
        kept = [k for k in state.roots if k > self.level]
        fold: Any = self.fold if self.folded else self.carry
        return state.advanced(
            state.position + 1,
            {**{k: state.roots[k] for k in kept}, self.level: self.carry},
            {**{k: state.folds[k] for k in kept}, self.level: fold},
        )


def calls_of_a_push(position: int, *, literal: bool = False) -> tuple[int, int]:
    """Merges, and folds (one, or by law none), of the element that comes after `position` others."""
    merges = (~position & (position + 1)).bit_length() - 1
    return merges, int(literal or position >> merges != 0)
