"""The slow truths: the tree as plain recursion, and Alg. 1 and Alg. 2 word for word.

They take lists of anything and call `agg(older, newer)` on one pair at a time. The fast scans are tested against
them; nothing else uses them but figures that compare with what the paper prints.
"""

from collections.abc import Callable, Iterator, Sequence
from functools import cache
from typing import TypeVar

T = TypeVar("T")
Agg = Callable[[T, T], T]


def scan(agg: Agg[T], xs: Sequence[T], identity: T, *, inclusive: bool = False, literal: bool = False) -> list[T]:
    """All prefixes of `xs`, for any length, along the tree that global positions fix.

        T(0, j) = x_j                       T(k, j) = Agg(T(k-1, 2j), T(k-1, 2j+1))
        P(k, 0) = e                         P(k, j) = P(k+1, j/2)                          for even j
                                            P(k, j) = Agg(P(k+1, (j-1)/2), T(k, j-1))      for odd j

    The exclusive prefix at t is P(0, t), the inclusive one P(0, t+1).
    """

    @cache
    def node(k: int, j: int) -> T:
        return xs[j] if k == 0 else agg(node(k - 1, 2 * j), node(k - 1, 2 * j + 1))

    @cache
    def prefix(k: int, j: int) -> T:
        if j == 0:
            return identity
        if j % 2 == 0:
            return prefix(k + 1, j // 2)
        if j == 1 and not literal:
            return node(k, 0)
        return agg(prefix(k + 1, j // 2), node(k, j - 1))

    first = 1 if inclusive else 0
    return [prefix(0, t + first) for t in range(len(xs))]


def static_blelloch(agg: Agg[T], xs: Sequence[T], identity: T) -> list[T]:
    """Alg. 1 as printed: a heap of 2r slots, r a power of two, Agg called on the identity too."""
    r = len(xs)
    if r == 0 or r & (r - 1):
        raise ValueError(f"Alg. 1 as printed needs a power of two of elements, not {r}; scan() takes any number")
    t: dict[int, T] = {r + i: x for i, x in enumerate(xs)}
    for v in range(r - 1, 0, -1):
        t[v] = agg(t[2 * v], t[2 * v + 1])
    p = {1: identity}
    for v in range(1, r):
        p[2 * v] = p[v]
        p[2 * v + 1] = agg(p[v], t[2 * v])
    return [p[r + i] for i in range(r)]


def refolding_counter(agg: Agg[T], xs: Sequence[T], identity: T, *, literal: bool = True) -> Iterator[T]:
    """Alg. 2 as printed: after each push, fold all roots anew from the most significant; emit the result.

    What it emits at time t covers x_0 .. x_t: it is Alg. 1's exclusive prefix at t+1.
    """
    root: dict[int, T] = {}
    for t, x in enumerate(xs):
        carry, k = x, 0
        while k in root:
            carry = agg(root.pop(k), carry)
            k += 1
        root[k] = carry
        occupied = [k for k in range((t + 1).bit_length() - 1, -1, -1) if k in root]
        p = identity if literal else root[occupied.pop(0)]
        for k in occupied:
            p = agg(p, root[k])
        yield p
