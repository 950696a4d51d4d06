"""Keys and values of a window that is read token by token, in buffers that are allocated once."""

from dataclasses import dataclass

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor


@dataclass
class KVCache:
    """Room for `capacity` positions in every layer; the first `length` are filled.

    Rows may be filled to different lengths: then `lengths` holds each row's, and `length` is not used.
    """

    keys: Float[Tensor, "layers b h capacity size"]
    values: Float[Tensor, "layers b h capacity size"]
    length: int = 0
    lengths: Int[Tensor, " b"] | None = None

    @staticmethod
    def empty(layers: int, batch: int, heads: int, capacity: int, size: int, like: Tensor) -> "KVCache":
        """Unfilled buffers of the dtype and device of `like`."""
        shape = (layers, batch, heads, capacity, size)
        return KVCache(like.new_zeros(shape), like.new_zeros(shape))

    def store(self, layer: int, keys: Tensor, values: Tensor) -> tuple[Tensor, Tensor]:
        """Write the keys and values of new positions; returns those of all positions that may now be looked at."""
        m = keys.shape[-2]
        if self.lengths is not None:
            if m != 1:
                raise ValueError(f"rows at different lengths advance by one position at a time, not {m}")
            rows = torch.arange(len(self.lengths), device=keys.device)
            # Unlike a slice, an index does not convert what autocast returned.
            self.keys[layer][rows, :, self.lengths] = keys[:, :, 0].to(self.keys.dtype)
            self.values[layer][rows, :, self.lengths] = values[:, :, 0].to(self.values.dtype)
            return self.keys[layer], self.values[layer]
        end = self.length + m
        if end > self.capacity:
            raise ValueError(f"{end} positions do not fit a cache of {self.capacity}")
        self.keys[layer][:, :, self.length : end] = keys
        self.values[layer][:, :, self.length : end] = values
        return self.keys[layer][:, :, :end], self.values[layer][:, :, :end]

    def advance(self, m: int) -> None:
        """Count the `m` positions that every layer has stored."""
        if self.lengths is None:
            self.length += m
        else:
            self.lengths += m

    def filled_and_next(self) -> Bool[Tensor, "b 1 1 capacity"]:
        """For rows at different lengths: the positions that the next one of each row may look at, itself included."""
        if self.lengths is None:
            raise ValueError("all rows have the same length; there is nothing to mask")
        places = torch.arange(self.capacity, device=self.lengths.device)
        return (places <= self.lengths[:, None])[:, None, None]

    def clone(self) -> "KVCache":
        """A copy with buffers of its own."""
        lengths = None if self.lengths is None else self.lengths.clone()
        return KVCache(self.keys.clone(), self.values.clone(), self.length, lengths)

    @property
    def capacity(self) -> int:
        return self.keys.shape[-2]

    @property
    def nbytes(self) -> int:
        return self.keys.nbytes + self.values.nbytes + (0 if self.lengths is None else self.lengths.nbytes)


def causal_mask(queries: int, keys: int, device: torch.device) -> Tensor:
    """The last `queries` of `keys` positions; each looks at itself and what is before it."""
    return torch.ones(queries, keys, dtype=torch.bool, device=device).tril(keys - queries)
