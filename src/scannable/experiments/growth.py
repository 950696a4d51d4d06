"""From counts at n, 2n, 4n, ... to the law that they follow: constant, logarithmic, or a power."""

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

NEGLIGIBLE = 0.005
"""What the last doubling of n adds, relative to the whole, if there is no growth to speak of."""


@dataclass(frozen=True)
class Growth:
    """How a quantity grows over the longer half of the lengths.

    Each doubling of n adds something. If that is negligible in the end, or shrinks from doubling to doubling, the
    quantity tends to a constant; if it stays the same, the quantity is a + b log n; if it grows like n^p, so does the
    quantity. Whatever is constant (or, in work per token, linear in n) does not disturb that, however large it is.
    """

    slope: float
    """Of the logarithm of the quantity against that of n."""
    exponent: float | None
    """Of what each doubling adds, as a power of n; None where it adds nothing."""
    law: str


def growth(lengths: Sequence[int], values: Sequence[float]) -> Growth:
    """The law that counts at n, 2n, 4n, ... follow."""
    kept = max(4, (len(lengths) + 1) // 2)
    lengths, values = lengths[-kept:], values[-kept:]
    slope = _slope(lengths, values)
    added = [later - earlier for earlier, later in pairwise(values)]
    growing = [(n, more) for n, more in zip(lengths, added, strict=False) if more > 0]
    if added[-1] <= NEGLIGIBLE * values[-1] or len(growing) < 2:
        return Growth(slope, None, "1")
    exponent = _slope(*zip(*growing, strict=True))
    for law, place in (("log n", 0), ("n", 1)):
        if abs(exponent - place) <= 0.25:
            return Growth(slope, exponent, law)
    return Growth(slope, exponent, "1" if exponent < 0 else f"n^{exponent:.1f}")


def _slope(lengths: Sequence[float], values: Sequence[float]) -> float:
    return statistics.linear_regression([math.log2(n) for n in lengths], [math.log2(v) for v in values]).slope
