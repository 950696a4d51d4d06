"""What attention to all positions remembers: keys and values of every row, as far as it is."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field

from torch import Tensor

from scannable.layers.state import State, checked_rows
from scannable.nn.cache import KVCache


@dataclass(frozen=True, eq=False)
class AttentionState(State):
    """Keys and values of all positions so far, in buffers that the next positions are written into under `no_grad`;
    `fork()` copies them.
    """

    positions: tuple[int, ...]
    cache: KVCache = field(repr=False)

    def __post_init__(self) -> None:
        whole = isinstance(self.positions, tuple) and all(type(p) is int and p >= 0 for p in self.positions)
        if not whole or not isinstance(self.cache, KVCache):
            raise TypeError(f"no state of a stream: positions {self.positions!r}, cache {type(self.cache).__name__}")

    def current(self) -> KVCache:
        """The buffers, unless another branch has gone on with them."""
        if self.cache.lengths != self.positions:
            raise ValueError(
                f"this state is at {_shown(self.positions)}, but its buffers have gone on to "
                f"{_shown(self.cache.lengths)}; use the state that extend, prefill or step returned, and fork() before "
                "you branch"
            )
        return self.cache

    def tensors(self) -> Iterator[Tensor]:
        return iter(self.cache.tensors())

    def map(self, function: Callable[[Tensor], Tensor]) -> "AttentionState":
        held = self.current()
        cache = held.map(function)
        if any(_same_memory(*pair) for pair in zip(held.tensors(), cache.tensors(), strict=True)):
            # The buffers have two owners now, so this one copies them before it writes.
            cache.recorded = True
        return AttentionState(self.positions, cache)

    def fork(self) -> "AttentionState":
        return AttentionState(self.positions, self.current().clone())

    def select(self, rows: Sequence[int]) -> "AttentionState":
        rows = checked_rows(rows, self.batch_size)
        cache = self.current().take(rows)
        room = capacity(max(cache.lengths, default=0))
        if room < cache.capacity:
            for each in (cache.keys, cache.values):
                each[:] = [one[:, :, :room].contiguous() for one in each]
        return AttentionState(cache.lengths, cache)

    @classmethod
    def joined(cls, states: Sequence["AttentionState"]) -> "AttentionState":
        caches = [state.current().branch() for state in states]
        room = max(cache.capacity for cache in caches)
        for cache in caches:
            cache.make_room(room)
        cache = KVCache.cat(caches)
        return AttentionState(cache.lengths, cache)


def capacity(position: int) -> int:
    """Places of buffers after `position` positions: the next power of two, so that each is copied O(1) times."""
    return 1 << (position - 1).bit_length() if position else 0


def _same_memory(one: Tensor, other: Tensor) -> bool:
    return one.numel() > 0 and one.untyped_storage().data_ptr() == other.untyped_storage().data_ptr()


def _shown(positions: tuple[int, ...]) -> str:
    return f"position {positions[0]}" if len(set(positions)) == 1 else f"positions {positions}"
