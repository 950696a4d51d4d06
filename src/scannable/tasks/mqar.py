"""Multi-query associative recall (Arora et al. 2023, "Zoology")."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from scannable.storage.registry import configurable
from scannable.tasks.sample import (
    IGNORED,
    Batch,
    Split,
    check_length,
    check_seed,
    distinct_below,
    first_in_split,
    integers_below,
    uniform,
)


@configurable
@dataclass(frozen=True)
class MQARTask:
    """Pairs of keys and values, then every key once more, in any order; the target there is its value.

        tokens   k1 v1 k2 v2  .  .  k2  .  .  .  k1  .
        targets   -  -  -  -  -  -  v2  -  -  -  v1  -

    With V tokens, keys are `pairs` different ones of 1 .. V/2 - 1 and values different ones of V/2 .. V - 1. The
    positions behind the pairs form slots of two; a query is the first position of its slot, and slot g = 1, 2, ... is
    drawn without replacement with probability proportional to g^(gap_exponent - 1). The last position of an odd length
    belongs to no slot. Every other position is a filler. A hash of the whole sequence says which split it belongs to:
    train, validation and test share no sequence.

    >>> from scannable.tasks import IGNORED, MQARTask
    >>> batch = MQARTask(pairs=4).batch("train", range(2), length=32)
    >>> (batch.targets != IGNORED).sum(1)
    tensor([4, 4])
    """

    vocab_size: int = 8192
    pairs: int = 8
    gap_exponent: float = 1.0
    """1 asks anywhere, the paper's harder setting; 0.01, Zoology's, asks soon after the pairs far more often."""
    random_fillers: bool = True
    """Fill with any token, be it a key, instead of 0 (Zoology's `random_non_queries`)."""
    seed: int = 0

    def __post_init__(self) -> None:
        check_seed(self.seed)
        if type(self.pairs) is not int or self.pairs < 1:
            raise ValueError(f"pairs={self.pairs!r} must be a whole number of at least 1")
        if type(self.vocab_size) is not int or not 2 * self.pairs + 2 <= self.vocab_size <= 2**32:
            raise ValueError(
                f"vocab_size={self.vocab_size!r} must be a whole number from {2 * self.pairs + 2} to 2^32, so that its "
                f"lower half without 0 has a key for each of pairs={self.pairs}"
            )
        if type(self.gap_exponent) not in (int, float) or not 0 <= self.gap_exponent <= 2:
            raise ValueError(
                f"gap_exponent={self.gap_exponent!r} must lie in [0, 2]; 1 is uniform, 0.01 Zoology's power law"
            )
        if type(self.random_fillers) is not bool:
            raise ValueError(f"random_fillers={self.random_fillers!r} must be True or False")

    @property
    def out_size(self) -> int:
        return self.vocab_size

    def batch(self, split: Split, indices: Sequence[int] | np.ndarray, length: int) -> Batch:
        check_length(length)
        if length < 4 * self.pairs:
            raise ValueError(
                f"length={length} is too short for pairs={self.pairs}: the pairs take two positions each and the "
                f"queries one slot of two each; ask for at least {4 * self.pairs} or for fewer pairs"
            )
        tokens, targets = first_in_split(split, indices, lambda draws: self._draw(split, draws, length))
        return Batch.of(tokens, targets)

    def _draw(self, split: Split, draws: NDArray[np.int64], length: int) -> NDArray[np.int64]:
        """Tokens and targets, (2, draws, length)."""
        stream, half, context = f"mqar/{split}", self.vocab_size // 2, 2 * self.pairs
        keys = 1 + distinct_below(half - 1, self.seed, f"{stream}/keys", draws, self.pairs)
        values = half + distinct_below(self.vocab_size - half, self.seed, f"{stream}/values", draws, self.pairs)
        # A race draws without replacement: slot g arrives after an exponential time of rate g^(a - 1); the first win.
        slots = np.arange(1, (length - context) // 2 + 1)
        wait = -np.log1p(-uniform(self.seed, f"{stream}/slots", draws, len(slots)))
        arrival = wait * slots ** (1.0 - self.gap_exponent)
        queries = context + 2 * np.argsort(arrival, axis=1)[:, : self.pairs]

        tokens, targets = drawn = np.zeros((2, len(draws), length), np.int64)
        if self.random_fillers:
            tokens[:] = integers_below(self.vocab_size, self.seed, f"{stream}/fillers", draws, length)
        tokens[:, 0:context:2] = keys
        tokens[:, 1:context:2] = values
        np.put_along_axis(tokens, queries, keys, axis=1)
        targets[:] = IGNORED
        np.put_along_axis(targets, queries, values, axis=1)
        return drawn
