"""State tracking: the word problem of a finite group."""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import permutations

import numpy as np
from numpy.typing import NDArray

from scannable.storage.registry import configurable
from scannable.tasks.generators import generating_set
from scannable.tasks.sample import Batch, Split, check_length, check_seed, first_in_split, integers_below

LARGEST = 2048
"""Elements of a group, at most: its table then takes 32 MiB."""

NAMES = {
    "S5": "all permutations of five things, 120 elements: the paper's",
    "A5": "the even ones, 60 elements: the smallest group that is not solvable",
    "A4xZ5": "as large as A5, solvable but not abelian",
    "Z60": "as large as A5, abelian",
    "Z2": "parity",
}
"""Groups often asked for; any direct product of S1 .. S6, A2 .. A6 and Z1 .. Z2048 up to LARGEST elements will do."""

_FACTOR = r"(?:[SZ][1-9][0-9]*|A(?:[2-9]|[1-9][0-9]+))"


def group_order(name: str) -> int:
    """How many elements a group has: n! for Sn, n!/2 for An, n for Zn, and the product of these for a product."""
    if not isinstance(name, str) or not re.fullmatch(f"{_FACTOR}(?:x{_FACTOR})*", name):
        raise ValueError(
            f"group={name!r:.60} is unknown; S, A and Z with a number name symmetric groups, alternating groups from "
            f"A2 on and cyclic groups, and x their direct products, as in {', '.join(NAMES)}"
        )
    order = 1
    for factor in name.split("x"):
        # By its digits first: nobody should wait for the factorial of a million.
        number = int(factor[1:]) if len(factor) < 6 else LARGEST + 1
        for k in [number] if factor[0] == "Z" else range(3 if factor[0] == "A" else 2, number + 1):
            order *= k
            if order > LARGEST:
                raise ValueError(
                    f"group={name!r:.60} has more than {LARGEST:,} elements; S6, A6, Z{LARGEST} and products up to "
                    "that size are the largest"
                )
    return order


@lru_cache(maxsize=8)
def multiplication_table(name: str) -> NDArray[np.int64]:
    """table[state, action], the element that `action` makes of `state`; element 0 is the identity. Not writable.

    Permutations are numbered in lexicographic order and act by new[j] = state[action[j]]; Zn adds modulo n; the
    element (a, b) of a product is number |B| a + b.
    """
    group_order(name)
    table = np.zeros((1, 1), np.int64)
    for factor in name.split("x"):
        right = _factor_table(factor[0], int(factor[1:]))
        size = len(table) * len(right)
        table = (table[:, None, :, None] * len(right) + right[None, :, None, :]).reshape(size, size)
    table.flags.writeable = False
    return table


def _factor_table(letter: str, n: int) -> NDArray[np.int64]:
    if letter == "Z":
        return np.add.outer(np.arange(n), np.arange(n)) % n
    elements = np.array(list(permutations(range(n))))
    if letter == "A":
        falls = sum(elements[:, i] > elements[:, j] for j in range(n) for i in range(j))
        elements = elements[falls % 2 == 0]
    # Read as numbers in base n, permutations in lexicographic order ascend.
    weights = n ** np.arange(n - 1, -1, -1)
    return np.searchsorted(elements @ weights, elements[:, elements] @ weights)


@lru_cache(maxsize=32)
def generators_of(name: str, count: int) -> NDArray[np.int64]:
    """That many elements which generate the group, the same ones whenever they are asked for. Not writable."""
    found = np.array(generating_set(name, multiplication_table(name), count), np.int64)
    found.flags.writeable = False
    return found


@configurable
@dataclass(frozen=True)
class GroupTask:
    """One token for each element of a group; the target at t is the product of tokens 0 .. t.

        target(0) = token(0),  target(t) = table[target(t - 1), token(t)]

    Tokens are independent and uniform, except that a hash of the whole sequence says which split it belongs to: train,
    validation and test share no sequence.

    >>> from scannable.tasks import GroupTask
    >>> batch = GroupTask("Z60").batch("train", [0], length=6)
    >>> bool((batch.tokens.cumsum(1) % 60 == batch.targets).all())
    True
    """

    group: str = "S5"
    """Such as the NAMES above."""
    seed: int = 0
    generators: int | None = None
    """Tokens are only these many elements, which generate the group; None: all elements. A token keeps the number of
    its element, so that answers are still numbered like what is read."""

    def __post_init__(self) -> None:
        check_seed(self.seed)
        group_order(self.group)
        if self.generators is not None:
            generators_of(self.group, self.generators)

    @property
    def vocab_size(self) -> int:
        return group_order(self.group)

    @property
    def out_size(self) -> int:
        return group_order(self.group)

    def batch(self, split: Split, indices: Sequence[int] | np.ndarray, length: int) -> Batch:
        check_length(length)
        read = None if self.generators is None else generators_of(self.group, self.generators)
        stream = f"group/{self.group}/{split}" + ("" if read is None else f"/{len(read)}")

        def draw(draws: NDArray[np.int64]) -> NDArray[np.int64]:
            bound = self.vocab_size if read is None else len(read)
            drawn = integers_below(bound, self.seed, stream, draws, length)
            return (drawn if read is None else read[drawn])[None]

        tokens = first_in_split(split, indices, draw)[0]
        products = _running_products(multiplication_table(self.group), tokens)
        return Batch.of(tokens, products)


def _running_products(table: NDArray[np.int64], tokens: NDArray[np.int64]) -> NDArray[np.int64]:
    products = np.empty_like(tokens)
    state = np.zeros(len(tokens), np.int64)
    for t in range(tokens.shape[1]):
        state = table.take(state * len(table) + tokens[:, t])
        products[:, t] = state
    return products
