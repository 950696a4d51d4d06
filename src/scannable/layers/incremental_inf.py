"""What an Inf may offer so that a step costs one position instead of one chunk."""

from collections.abc import Sequence
from typing import Any, Protocol, runtime_checkable

from torch import Tensor


@runtime_checkable
class IncrementalInf(Protocol):
    """An Inf that can read a chunk piece by piece instead of from its start.

    Its cache may be of any kind: a tree of tensors whose first axis are the rows, or an object with the methods of
    `nn.KVCache`. Under `no_grad` it may be written into; while gradients are recorded it must not be.
    """

    def new_cache(self, batch: int) -> Any:
        """A cache for so many rows that have read nothing."""
        ...

    def begin(self, prefix: Any, recent: Any = None, reuse: Any = None) -> Any:
        """A cache whose rows have read their prefixes and, behind each, the recent chunks. `reuse` is a cache that
        nobody needs any more.
        """
        ...

    def read(self, x: Any, cache: Any, counts: Sequence[int] | None = None) -> tuple[Tensor, Any]:
        """The outputs for the next m positions of each row, and the cache behind them; with `counts`, only the first
        so many of each row count.
        """
        ...

    def cache_nbytes(self, batch: int) -> int:
        """Bytes of a cache for so many rows."""
        ...
