"""A few elements of a group whose products are all of it."""

import numpy as np
from numpy.typing import NDArray

from scannable.tasks.sample import distinct_below

TRIALS = 1024
"""Sets that are drawn, at most. Most pairs of elements of a symmetric group generate it or half of it."""


def generating_set(group: str, table: NDArray[np.int64], count: int) -> tuple[int, ...]:
    """`count` elements, none of them the identity, that generate the group: the first such set of a fixed row of random
    ones, in ascending order.
    """
    order = len(table)
    if type(count) is not int or not 1 <= count < order:
        raise ValueError(
            f"generators={count!r} of {group!r} must be a whole number from 1 to {order - 1}, or None for all elements"
        )
    for trial in range(TRIALS):
        chosen = 1 + distinct_below(order - 1, 0, f"generators/{group}/{count}", [trial], count)[0]
        if len(generated(table, chosen)) == order:
            return tuple(sorted(chosen.tolist()))
    raise ValueError(f"generators={count} elements are too few to generate {group!r}, or hard to find; ask for more")


def generated(table: NDArray[np.int64], elements: NDArray[np.int64]) -> NDArray[np.int64]:
    """The subgroup that `elements` generate: all products of them; in a finite group inverses are among these."""
    found = np.zeros(1, np.int64)
    while True:
        more = np.union1d(found, table[np.ix_(found, elements)])
        if len(more) == len(found):
            return found
        found = more
