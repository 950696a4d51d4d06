"""Who has which part of a sequence, and which aggregates of the fixed tree lie inside a part.

Node (k, j) of the tree covers the elements j*2^k to (j+1)*2^k - 1, whoever holds them.
"""

from dataclasses import dataclass
from itertools import pairwise

Node = tuple[int, int]


@dataclass(frozen=True)
class Split:
    """A sequence over ranks: rank q has the elements bounds[q] to bounds[q+1] - 1. Parts may be empty.

    Every rank must hold the same one: who sends what follows from it, so that no shapes travel.

    >>> from scannable.distributed import Split
    >>> split = Split((0, 40, 100), rank=1)
    >>> split.ranks, split.first, split.stop, split.length
    (2, 40, 100, 60)
    """

    bounds: tuple[int, ...]
    rank: int

    def __post_init__(self) -> None:
        bounds = self.bounds
        rising = all(type(b) is int for b in bounds) and all(a <= b for a, b in pairwise(bounds))
        if len(bounds) < 2 or not rising or bounds[0] < 0:
            raise ValueError(
                f"bounds={bounds!r} do not cut a sequence into parts; they are whole numbers that never fall, one more "
                "than there are ranks"
            )
        if not 0 <= self.rank < self.ranks:
            raise ValueError(f"rank={self.rank!r} is none of the {self.ranks} ranks that the bounds have parts for")

    @property
    def ranks(self) -> int:
        """How many there are."""
        return len(self.bounds) - 1

    @property
    def first(self) -> int:
        """Where this rank's part begins."""
        return self.bounds[self.rank]

    @property
    def stop(self) -> int:
        """Where it ends."""
        return self.bounds[self.rank + 1]

    @property
    def length(self) -> int:
        """How many elements this rank has."""
        return self.stop - self.first

    def shifted(self, by: int) -> "Split":
        """The same parts, counted from another place."""
        return Split(tuple(bound + by for bound in self.bounds), self.rank)

    def later(self, rank: int) -> bool:
        """Whether a rank after this one has any elements."""
        return self.bounds[-1] > self.bounds[rank + 1]


def even_bounds(n: int, ranks: int, unit: int = 1) -> tuple[int, ...]:
    """Bounds of `ranks` parts of n elements that begin at multiples of `unit`, as even as that allows.

    Parts are rounded to powers of two of units where that costs no part more than an eighth: such parts are few blocks
    of the tree, and ranks have less to send and to merge.

    >>> from scannable.distributed import even_bounds
    >>> even_bounds(100, ranks=3), even_bounds(100, ranks=3, unit=16)
    ((0, 32, 64, 100), (0, 32, 64, 100))
    """
    if n < 0 or ranks < 1 or unit < 1:
        raise ValueError(
            f"{n} elements over {ranks} ranks in units of {unit}; no number may be below 0, nor a rank's 1"
        )
    units = -(-n // unit)
    grain = 1
    while 2 * grain * 8 * ranks <= units:
        grain *= 2
    pieces = -(-units // grain)
    return (*(min(n, pieces * q // ranks * grain * unit) for q in range(ranks)), n)


def blocks(first: int, stop: int) -> list[Node]:
    """The largest nodes that lie inside [first, stop), in order: at most 2*log2(stop - first) + 1."""
    left: list[Node] = []
    right: list[Node] = []
    k = 0
    while first < stop:
        if first & 1:
            left.append((k, first))
            first += 1
        if stop & 1 and first < stop:
            stop -= 1
            right.append((k, stop))
        first, stop, k = first >> 1, stop >> 1, k + 1
    return left + right[::-1]
