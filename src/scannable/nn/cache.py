"""Keys and values of windows that are read piece by piece, in buffers that are allocated once."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor


@dataclass
class KVCache:
    """Room for `capacity` positions in every layer; of row i the first `lengths[i]` are filled.

    The rows are the first axis of every tensor. How far each is filled are numbers of the host: nothing ever waits for
    a device to find out where the next position goes.
    """

    keys: list[Float[Tensor, "b h capacity size"]]
    values: list[Float[Tensor, "b h capacity size"]]
    lengths: tuple[int, ...]
    inputs: list[Float[Tensor, "b before _"]] = field(default_factory=list)
    """What short convolutions still look at: the inputs of each at the last positions of each row, zeros before the
    window began."""
    recorded: bool = False
    """Whether autograd may hold these tensors: then nobody writes into them, and the next one who would copies them."""

    def __post_init__(self) -> None:
        fit = self.keys and len(self.keys) == len(self.values) and len(self.lengths) == self.keys[0].shape[0]
        if not fit or (self.lengths and not 0 <= min(self.lengths) <= max(self.lengths) <= self.capacity):
            raise ValueError(
                f"no cache: lengths {self.lengths} for keys of {[tuple(one.shape) for one in self.keys]}; each row has "
                "one, and it is at most the capacity"
            )

    @staticmethod
    def empty(
        layers: int,
        batch: int,
        heads: int,
        capacity: int,
        size: int,
        like: Tensor,
        inputs: Sequence[tuple[int, int]] = (),
    ) -> "KVCache":
        """Unfilled buffers of the dtype and device of `like`; `inputs` are (before, channels) of each convolution."""

        def zeros(*shape: int) -> Tensor:
            return torch.zeros(batch, *shape, dtype=like.dtype, device=like.device)

        keys, values = ([zeros(heads, capacity, size) for _ in range(layers)] for _ in "kv")
        return KVCache(keys, values, (0,) * batch, [zeros(*shape) for shape in inputs])

    # What it is.

    @property
    def batch_size(self) -> int:
        return len(self.lengths)

    @property
    def capacity(self) -> int:
        return self.keys[0].shape[2]

    @property
    def length(self) -> int | None:
        """Of all rows, if they have the same; None if they have not."""
        lengths = self.lengths
        return lengths[0] if lengths and lengths.count(lengths[0]) == len(lengths) else None

    @property
    def nbytes(self) -> int:
        return sum(one.nbytes for one in self._tensors())

    # Rows.

    def take(self, rows: Sequence[int]) -> "KVCache":
        """These rows, in this order, in buffers of their own."""
        index = torch.tensor(list(rows), dtype=torch.int64, device=self.keys[0].device)
        lengths = tuple(self.lengths[row] for row in rows)
        return self._map(lambda one: one.index_select(0, index), lengths)

    def put(self, rows: Sequence[int], other: "KVCache") -> None:
        """Overwrite these rows by all rows of `other`."""
        if len(rows) != other.batch_size or self._shape_of_a_row() != other._shape_of_a_row():
            raise ValueError(
                f"{other.batch_size} rows of {other._shape_of_a_row()} do not fit {len(rows)} rows of "
                f"{self._shape_of_a_row()}; both caches must come from one model"
            )
        index = torch.tensor(list(rows), dtype=torch.int64, device=self.keys[0].device)
        if torch.is_grad_enabled() and any(one.requires_grad for one in (*self._tensors(), *other._tensors())):
            for mine, theirs in zip(self._lists(), other._lists(), strict=True):
                mine[:] = [a.index_copy(0, index, b) for a, b in zip(mine, theirs, strict=True)]
            self.recorded = True
        else:
            self.writable()
            for mine, theirs in zip(self._tensors(), other._tensors(), strict=True):
                mine.index_copy_(0, index, theirs)
        lengths = list(self.lengths)
        for row, length in zip(rows, other.lengths, strict=True):
            lengths[row] = length
        self.lengths = tuple(lengths)

    @staticmethod
    def cat(caches: Sequence["KVCache"]) -> "KVCache":
        """All rows of all caches, in order, in buffers of their own."""
        shapes = {one._shape_of_a_row() for one in caches}
        if len(shapes) != 1:
            raise ValueError(f"rows of different shapes, {sorted(shapes)}, do not fit into one cache")
        lists = [
            [torch.cat(parts) for parts in zip(*each, strict=True)]
            for each in zip(*(one._lists() for one in caches), strict=True)
        ]
        lengths = tuple(length for one in caches for length in one.lengths)
        recorded = torch.is_grad_enabled() and any(one.recorded for one in caches)
        return KVCache(lists[0], lists[1], lengths, lists[2], recorded)

    # All of it.

    def clone(self) -> "KVCache":
        """A copy with buffers of its own."""
        return self._map(Tensor.clone, self.lengths)

    def branch(self) -> "KVCache":
        """The same tensors in a container of its own: what is stored into one while autograd records, the other does
        not see.
        """
        return self._map(lambda one: one)

    def detach(self) -> "KVCache":
        """The same values, cut off from the graph that made them."""
        return self._map(Tensor.detach)

    def to(self, *args: Any, **kwargs: Any) -> "KVCache":
        """On another device, or in another dtype; the same tensors where nothing changes."""
        return self._map(lambda one: one.to(*args, **kwargs))

    def map(self, function: Callable[[Tensor], Tensor]) -> "KVCache":
        """The same with `function` of every tensor."""
        return self._map(function)

    def tensors(self) -> list[Tensor]:
        """All that it holds."""
        return self._tensors()

    def make_room(self, capacity: int) -> None:
        """Move everything into larger buffers, if there are fewer than `capacity` places."""
        more = capacity - self.capacity
        if more > 0:
            for each in (self.keys, self.values):
                each[:] = [torch.nn.functional.pad(one, (0, 0, 0, more)) for one in each]

    def rewind(self) -> None:
        """Forget all positions; the buffers are kept."""
        self.lengths = (0,) * len(self.lengths)
        if self.inputs:
            if self.recorded or torch.is_grad_enabled():
                self.inputs = [torch.zeros_like(one) for one in self.inputs]
            else:
                self.writable()
                for one in self.inputs:
                    one.zero_()

    def writable(self) -> None:
        """Copy what may not be written into: tensors of a graph, and of `inference_mode` outside it."""
        of_inference = self.keys[0].is_inference() and not torch.is_inference_mode_enabled()
        if self.recorded or of_inference:
            for each in self._lists():
                each[:] = [one.detach().clone() for one in each]
            self.recorded = False

    def _lists(self) -> tuple[list[Tensor], list[Tensor], list[Tensor]]:
        return self.keys, self.values, self.inputs

    def _tensors(self) -> list[Tensor]:
        return [*self.keys, *self.values, *self.inputs]

    def _map(self, change: Callable[[Tensor], Tensor], copied: tuple[int, ...] | None = None) -> "KVCache":
        """All tensors changed; with the lengths of the rows where they are copies, which no graph has seen yet."""
        keys, values, inputs = ([change(one) for one in each] for each in self._lists())
        recorded = self.recorded and (copied is None or torch.is_grad_enabled())
        return KVCache(keys, values, self.lengths if copied is None else copied, inputs, recorded)

    def _shape_of_a_row(self) -> tuple[tuple[int, ...], ...]:
        return tuple(tuple(one.shape[1:]) for one in self._tensors())


class Continuation:
    """The next m positions of every row of a cache, of which row i has `counts[i]`: where each goes, and what it may
    look at. All layers share it, and `finish` counts the positions.

    While autograd records (`recording`) a store replaces the tensors of the cache. Otherwise it writes into them.
    """

    def __init__(self, cache: KVCache, m: int, counts: Sequence[int] | None = None, *, recording: bool = False) -> None:
        self.cache = cache
        self.m = m
        self.recording = recording
        self.counts: tuple[int, ...] | None = None
        """How many of the m positions count in each row; None for all."""
        self.start: int | None = cache.length
        """Where the new positions begin, if that is one place for all rows and all of them count."""
        self.counted: Bool[Tensor, "b m"] | None = None
        """Which positions count; None for all."""
        if counts is not None:
            if len(counts) != cache.batch_size or not all(0 <= count <= m for count in counts):
                raise ValueError(
                    f"counts {tuple(counts)} for {cache.batch_size} rows of {m} positions; each row has one, of 0 "
                    f"to {m}"
                )
            if min(counts, default=m) < m:
                self.counts, self.start = tuple(counts), None
        if self.start is not None:
            self.end: int = self.start + m
        else:
            added = self.counts or (m,) * cache.batch_size
            self.end = max((length + count for length, count in zip(cache.lengths, added, strict=True)), default=0)
        if self.end > cache.capacity:
            raise ValueError(f"{self.end} positions do not fit a cache of {cache.capacity}")
        if self.start is None:
            self._place()
        if recording:
            cache.recorded = True
        else:
            cache.writable()

    def _place(self) -> None:
        """Rows that differ: flat indices of what is stored, and the last place that each position looks at."""
        cache, m = self.cache, self.m
        # On the host, which knows all of it; a device gets it in one go.
        lengths = np.array(cache.lengths, dtype=np.int64)[:, None]
        places = lengths + np.arange(m)
        rows = np.repeat(np.arange(cache.batch_size), m)
        device = cache.keys[0].device

        def there(values: Any) -> Tensor:
            return torch.tensor(values.tolist() if device.type == "meta" else values, device=device)

        if self.counts is None:
            self.sources: Tensor | None = None
            self.rows, self.places = there(np.stack((rows, places.ravel())))
            self.reach: Int[Tensor, "b m"] = self.places.view(cache.batch_size, m)
        else:
            counts = np.array(self.counts, dtype=np.int64)[:, None]
            counted = np.arange(m) < counts
            chosen = np.flatnonzero(counted)
            self.sources = there(chosen)
            self.counted = there(counted)
            self.rows, self.places = there(np.stack((rows, places.ravel()))[:, chosen])
            # What does not count looks at what is there, and always at something: an empty softmax is not a number.
            self.reach = there(np.minimum(places, lengths + counts - 1).clip(min=0))

    def store(self, layer: int, keys: Tensor, values: Tensor) -> tuple[Tensor, Tensor]:
        """Store the keys and values of the new positions of a layer; returns those of all positions that may now be
        looked at.
        """
        cache = self.cache
        return self._stored(cache.keys, layer, keys), self._stored(cache.values, layer, values)

    def _stored(self, buffers: list[Tensor], layer: int, new: Float[Tensor, "b h m size"]) -> Tensor:
        buffer = buffers[layer]
        if self.start is not None:
            if self.recording:
                buffers[layer] = buffer = buffer.slice_scatter(new.to(buffer.dtype), 2, self.start, self.end)
            else:
                buffer[:, :, self.start : self.end] = new
        else:
            # Unlike a slice, an index does not convert what autocast returned.
            flat = new.transpose(1, 2).flatten(0, 1).to(buffer.dtype)
            flat = flat if self.sources is None else flat[self.sources]
            if self.recording:
                buffers[layer] = buffer = buffer.clone()
            buffer[self.rows, :, self.places] = flat
        return buffer[:, :, : self.end]

    def past(self, place: int) -> Float[Tensor, "b before channels"]:
        """The inputs of a convolution before the new positions."""
        return self.cache.inputs[place]

    def carry(self, place: int, inputs: Float[Tensor, "b before channels"]) -> None:
        """Keep the last inputs of a convolution for later."""
        held = self.cache.inputs[place]
        if self.recording:
            self.cache.inputs[place] = inputs.to(held.dtype)
        else:
            held.copy_(inputs)

    def mask(self, queries: int) -> Tensor | None:
        """What the last `queries` of the new positions look at: themselves and what is before; None for everything."""
        device = self.cache.keys[0].device
        if self.start is None:
            return torch.arange(self.end, device=device) <= self.reach[:, None, self.m - queries :, None]
        return None if queries in (0, 1) else causal_mask(queries, self.end, device)

    def finish(self) -> None:
        """Count the positions that every layer has stored."""
        cache = self.cache
        if self.start is not None:
            cache.lengths = (self.end,) * len(cache.lengths)
        else:
            counts = self.counts or (self.m,) * len(cache.lengths)
            cache.lengths = tuple(length + count for length, count in zip(cache.lengths, counts, strict=True))


def causal_mask(queries: int, keys: int, device: torch.device) -> Tensor | None:
    """The last `queries` of `keys` positions, each of which looks at itself and what is before it.

    None where nothing is hidden, and where all positions ask: that is the causal attention that kernels have built in.
    """
    if queries in (0, 1, keys):
        return None
    return torch.ones(queries, keys, dtype=torch.bool, device=device).tril(keys - queries)
