"""What a task is, and randomness that is a function of where it is used, not of what was drawn before."""

import hashlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Literal, Protocol, Self, get_args, runtime_checkable

import numpy as np
from numpy.typing import NDArray

if TYPE_CHECKING:
    # A task can be named and configured before torch is there, which takes longer to import than all else together.
    from jaxtyping import Int
    from torch import Tensor

Split = Literal["train", "validation", "test"]

IGNORED = -100
"""The target of a position where nothing is asked; what torch's cross-entropy leaves out unless told otherwise."""

DRAWS = 1024
"""Draws a sample may take to fall into its split. A split holds a tenth of all sequences or more: 0.9^1024 < 1e-46."""


@dataclass(frozen=True, eq=False)
class Batch:
    """Tokens in, and what a model should say at each position; both int64.

    >>> from scannable.tasks import GroupTask
    >>> batch = GroupTask("Z2").batch("train", range(2), length=5)
    >>> batch.tokens.shape, batch.targets.shape
    (torch.Size([2, 5]), torch.Size([2, 5]))
    """

    tokens: "Int[Tensor, 'b n']"
    targets: "Int[Tensor, 'b n']"
    """IGNORED where nothing is asked."""

    @staticmethod
    def of(tokens: NDArray[np.int64], targets: NDArray[np.int64]) -> "Batch":
        """The same memory, as tensors."""
        import torch

        return Batch(torch.from_numpy(tokens), torch.from_numpy(targets))


@runtime_checkable
class Task(Protocol):
    """A seeded stream of samples: sample i is a pure function of (seed, split, i) and the length asked for.

    >>> from scannable.tasks import GroupTask, Task
    >>> isinstance(GroupTask("S5"), Task)
    True
    """

    @property
    def vocab_size(self) -> int: ...

    @property
    def out_size(self) -> int: ...

    def batch(self, split: Split, indices: Sequence[int] | np.ndarray, length: int) -> Batch: ...


@runtime_checkable
class PinnedTask(Protocol):
    """What a task has more, if it reads files beside its configuration, such as a text: a run remembers them."""

    def pinned(self, folder: Path) -> Self:
        """This task with the identity of its files in its configuration, for a run in `folder`; what the run keeps
        there is used in place of what could be made anew.
        """
        ...

    def keep(self, folder: Path) -> None:
        """Write into a run's folder what its model needs to be used elsewhere."""
        ...

    def kept(self, folder: Path) -> Self:
        """This task with what `keep` wrote there."""
        ...


def check_seed(seed: object) -> None:
    if type(seed) is not int or not 0 <= seed < 2**63:
        raise ValueError(f"seed={seed!r} must be a whole number from 0 to 2^63 - 1")


def check_split(split: object) -> None:
    if split not in get_args(Split):
        raise ValueError(f"split={split!r} is none of 'train', 'validation' and 'test'")


def check_length(length: object) -> None:
    if type(length) is not int or length < 1:
        raise ValueError(f"length={length!r} must be a whole number of at least 1")


def checked_indices(indices: Sequence[int] | np.ndarray, bits: int) -> NDArray[np.int64]:
    """The indices as an array, if each lies in 0 .. 2^bits - 1."""
    given = np.asarray(indices)
    expected = f"a list of whole numbers from 0 to 2^{bits} - 1"
    if given.ndim != 1 or (given.size and given.dtype.kind not in "iu"):
        raise ValueError(f"indices={indices!r:.60} must be {expected}")
    # Before the cast, which would wrap an unsigned index of 2^63 round to a negative one.
    wrong = given[(given < 0) | (given > 2**bits - 1)]
    if wrong.size:
        raise ValueError(f"index {wrong[0]} is not in {expected}")
    return given.astype(np.int64)


def _mix(x: NDArray[np.uint64]) -> NDArray[np.uint64]:
    """The finaliser of splitmix64: a bijection of 64 bits that flips half of them for any one flipped."""
    x = (x ^ (x >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    x = (x ^ (x >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return x ^ (x >> np.uint64(31))


_STEP = np.uint64(0x9E3779B97F4A7C15)  # 2^64 over the golden ratio, odd: its multiples are spread and all different


def random_bits(seed: int, stream: str, indices: Sequence[int] | np.ndarray, count: int) -> NDArray[np.uint64]:
    """64 random bits for each index and each position 0 .. count - 1, the same in any batch and any order.

        start(i)   = mix(hash(seed, stream) + step i)
        bits(i, p) = mix(start(i) + step (p + 1))

    No two indices of a stream share a start.
    """
    check_seed(seed)
    rows = checked_indices(indices, 63).astype(np.uint64)
    key = np.frombuffer(hashlib.blake2b(f"{seed}/{stream}".encode(), digest_size=8).digest(), "<u8")
    start = _mix(key + _STEP * rows)
    return _mix(start[:, None] + _STEP * np.arange(1, count + 1, dtype=np.uint64))


def uniform(seed: int, stream: str, indices: Sequence[int] | np.ndarray, count: int) -> NDArray[np.float64]:
    """Numbers in [0, 1), multiples of 2^-53."""
    return (random_bits(seed, stream, indices, count) >> np.uint64(11)).astype(np.float64) * 2.0**-53


def integers_below(
    bound: int, seed: int, stream: str, indices: Sequence[int] | np.ndarray, count: int
) -> NDArray[np.int64]:
    """Whole numbers from 0 to bound - 1; none is likelier than another by more than a share of bound / 2^64."""
    if not 1 <= bound <= 2**32:
        raise ValueError(f"bound={bound!r} must lie in 1 .. 2^32; above, remainders of 64 bits are no longer even")
    return (random_bits(seed, stream, indices, count) % np.uint64(bound)).astype(np.int64)


def distinct_below(
    bound: int, seed: int, stream: str, indices: Sequence[int] | np.ndarray, count: int
) -> NDArray[np.int64]:
    """`count` different numbers from 0 to bound - 1 for each index, in random order.

    Every arrangement is equally likely, and memory goes with `count`, not with `bound`.
    """
    if count > bound:
        raise ValueError(f"count={count} different numbers below bound={bound} do not exist; ask for fewer")
    rows = checked_indices(indices, 63)
    if 2 * count >= bound:
        return np.argsort(random_bits(seed, stream, rows, bound), axis=1)[:, :count]
    # The first different ones of an endless row of independent draws. Below half, twice as many draws nearly always do.
    found = np.empty((len(rows), count), np.int64)
    missing, width = np.arange(len(rows)), 2 * count
    while missing.size:
        drawn = integers_below(bound, seed, stream, rows[missing], width)
        order = np.argsort(drawn, axis=1, kind="stable")
        ordered = np.take_along_axis(drawn, order, axis=1)
        new = np.ones_like(drawn, dtype=bool)
        # Stable: among equal draws the earliest comes first, and it alone differs from what stands before it.
        np.put_along_axis(new, order[:, 1:], ordered[:, 1:] != ordered[:, :-1], axis=1)
        seen = np.cumsum(new, axis=1)
        enough = seen[:, -1] >= count
        found[missing[enough]] = drawn[enough][(new & (seen <= count))[enough]].reshape(-1, count)
        missing, width = missing[~enough], 2 * width
    return found


def in_split(tokens: NDArray[np.int64], split: Split) -> NDArray[np.bool_]:
    """Whether each row belongs to `split`: eight tenths of all rows are train's, one each validation's and test's.

    A hash of the row itself decides, under one key for all seeds: what one seed tests on, no other trains on.
    """
    keys = random_bits(0, "split", [0], tokens.shape[1])
    total = _mix(keys + _STEP * tokens.astype(np.uint64)).sum(axis=1, dtype=np.uint64)
    tenth = _mix(total) % np.uint64(10)
    return tenth < 8 if split == "train" else tenth == (8 if split == "validation" else 9)


def first_in_split(
    split: Split, indices: Sequence[int] | np.ndarray, draw: Callable[[NDArray[np.int64]], NDArray[np.int64]]
) -> NDArray[np.int64]:
    """For each index the first of its own draws whose tokens belong to `split`; draw a of index i is DRAWS i + a.

    `draw` takes the numbers of draws and gives (arrays, draws, length), the tokens first; so does this.
    """
    check_split(split)
    rows = checked_indices(indices, 53)
    found = draw(DRAWS * rows)
    missing = np.flatnonzero(~in_split(found[0], split))
    for attempt in range(1, DRAWS):
        if not missing.size:
            break
        found[:, missing] = draw(DRAWS * rows[missing] + attempt)
        missing = missing[~in_split(found[0, missing], split)]
    if missing.size:
        raise ValueError(
            f"sample {rows[missing[0]]} of {split!r}: none of its {DRAWS:,} draws falls into that split, which holds "
            f"too few sequences of length {found.shape[2]} or none; ask for a greater length or a larger vocabulary"
        )
    return found
