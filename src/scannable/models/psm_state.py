"""The state of a prefix-scannable model between tokens (Alg. 4), all rows of the batch at one position."""

from dataclasses import dataclass, field
from typing import Any

from jaxtyping import Int
from torch import Tensor

from scannable.nn.cache import KVCache
from scannable.scan import ScanState
from scannable.storage.registry import storable

for kind in (KVCache, ScanState):
    # They know nothing of files.
    storable(kind)


HALF_WRITTEN = -1
"""In place of a position while a step writes the buffers."""


@storable
@dataclass
class ChunkBuffers:
    """What the chunk in progress holds, in buffers that are reused from chunk to chunk."""

    tokens: Int[Tensor, "b c"]
    cache: KVCache | None
    """Keys and values of [prefix | chunk] for an Inf that can go on from them; None for one that cannot."""
    position: int = 0
    """The position (of several streams, their sum) when the buffers were last written: a state that is elsewhere must
    not use them."""

    def at(self, position: int) -> "ChunkBuffers":
        """These buffers, if they are what a state at `position` left."""
        if self.position == HALF_WRITTEN:
            raise ValueError(
                "a step from this state was interrupted, and left it half written; go back to a fork of it"
            )
        if self.position != position:
            raise ValueError(
                f"this state is at position {position}, but its buffers have gone on to {self.position}; use the state "
                "that step or prefill returned, and fork() before you branch"
            )
        return self

    def clone(self) -> "ChunkBuffers":
        cache = None if self.cache is None else self.cache.clone()
        return ChunkBuffers(self.tokens.clone(), cache, self.position)

    @property
    def nbytes(self) -> int:
        return self.tokens.nbytes + (0 if self.cache is None else self.cache.nbytes)


@storable
@dataclass(frozen=True)
class PSMState:
    """Roots and folds of all finished chunks, and the chunk in progress.

    `step` and `prefill` write into the buffers of the chunk in progress and hand them on; `fork()` copies them, and
    shares the roots.
    """

    position: int
    scan: ScanState[Any]
    buffers: ChunkBuffers = field(repr=False)

    def __post_init__(self) -> None:
        good = type(self.position) is int and self.position >= 0
        if not good or not isinstance(self.scan, ScanState) or not isinstance(self.buffers, ChunkBuffers):
            raise TypeError(f"no state of a stream: position {self.position!r}, scan {type(self.scan).__name__}")

    def fork(self) -> "PSMState":
        """An independent stream that goes on from here: shares the roots, copies the chunk in progress."""
        return PSMState(self.position, self.scan, self.current_buffers().clone())

    @property
    def nbytes(self) -> int:
        """Bytes held: roots and folds, tokens of the chunk in progress, keys and values."""
        return self.scan.nbytes + self.buffers.nbytes

    @property
    def batch_size(self) -> int:
        return self.buffers.tokens.shape[0]

    def current_buffers(self) -> ChunkBuffers:
        """The buffers, unless another branch has gone on with them."""
        return self.buffers.at(self.position)
