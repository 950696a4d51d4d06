"""A Transformer over a window, whose positions are local to the window."""

from collections.abc import Callable, Sequence
from functools import cache as remembered
from typing import Any, cast

import torch
from jaxtyping import Float
from torch import Tensor, nn

from scannable.nn.block import GPT2, Block, initialise, norm
from scannable.nn.block_config import BlockConfig
from scannable.nn.cache import Continuation, KVCache, causal_mask
from scannable.nn.decay import undecayed
from scannable.nn.decode import apply_norm, can_decode, decode
from scannable.nn.positions import starting_positions
from scannable.nn.rotary import Rotation, rotations

CPU_SLICE = 4096
"""Positions that go through the blocks together on a CPU: larger activations leave its caches, and the allocator maps
and unmaps them page by page on every pass. A GPU takes a whole level at once."""
Backend = str | Callable[..., Any]
"""As `torch.compile` takes it."""


class Transformer(nn.Module):
    """Positions, blocks and a final norm, over windows of at most `window` positions, causal or not.

    The blocks are GPT-2's, unless `block` says otherwise.
    """

    def __init__(
        self,
        *,
        width: int,
        layers: int,
        heads: int,
        window: int,
        causal: bool,
        dropout: float = 0.0,
        sinusoids: bool = False,
        block: BlockConfig = GPT2,
    ) -> None:
        super().__init__()
        self.causal: bool = causal
        self.heads: int = heads
        self.width: int = width
        self.window: int = window
        self.backend: Backend | None = None
        """What compiles the blocks; None for nothing. `compile_transformers` sets it."""
        self.rotary: bool = block.positions == "rotary"
        # Of the scale of the elements they are added to, so that left and right half can be told apart.
        start = starting_positions(window, width, sinusoids=sinusoids) if block.positions == "learned" else None
        self.positions = None if start is None else nn.Parameter(start)
        undecayed(self, *([] if start is None else ["positions"]))
        self.dropout = nn.Dropout(dropout)
        self.blocks = nn.ModuleList(Block(width, heads, dropout, block) for _ in range(layers))
        self.norm = norm(width, block)
        self.lookback: int = 2 * max(0, block.convolution - 1)
        """Positions before those that are kept, which the convolutions of the last block look at."""
        for each in self.blocks:
            initialise(cast(Block, each), layers)

    def forward(
        self,
        x: Float[Tensor, "*batch n d"],
        *,
        kept: int | None = None,
        cache: KVCache | None = None,
        counts: Sequence[int] | None = None,
        memory: Float[Tensor, "*batch p d"] | None = None,
    ) -> Float[Tensor, "*batch m d"]:
        """The last `kept` positions (all, unless told), computing nothing in the last block for the others.

        With a `cache`, `x` (b, n, d) continues the windows that the cache holds, which is updated: its rows may be at
        different lengths. With `counts` too, only the first counts[i] positions of row i are there; what stands behind
        them changes nothing, whatever it is, and the outputs there mean nothing.

        A `memory` stands at the first places of the window. It gives keys and values to every layer as it is, instead
        of being carried through the layers; into a cache it goes by `remember`.
        """
        if cache is not None:
            if memory is not None:
                raise ValueError("a cache has its memory already, or none; put it there with remember(memory, cache)")
            return self._continue(x, kept, cache, counts)
        *batch, n, width = x.shape
        kept = n if kept is None else kept
        windows = x.reshape(-1, n, width)
        behind = None if memory is None else memory.reshape(-1, *memory.shape[-2:])
        slice_length = max(1, CPU_SLICE // (n + (0 if behind is None else behind.shape[1])))
        # Dropout is drawn for all windows at once: a step of training gives each sample its own, in any batch.
        random = self.training and self.dropout.p > 0
        if x.device.type == "cpu" and len(windows) > slice_length and not random:
            parts = windows.split(slice_length)
            behinds = [None] * len(parts) if behind is None else behind.split(slice_length)
            y = torch.cat([self._run(*pair, kept) for pair in zip(parts, behinds, strict=True)])
        else:
            y = self._run(windows, behind, kept)
        return y.reshape(*batch, kept, width)

    def _run(
        self, x: Float[Tensor, "b n d"], memory: Float[Tensor, "b p d"] | None, kept: int
    ) -> Float[Tensor, "b m d"]:
        rotation = self._rotation(x)
        # A graph for any number of windows is not one for a single window, which would be one more to compile.
        if self.backend is None or len(x) < 2:
            return self._windows(x, memory, kept, rotation)
        # No view in the eyes of autograd: a graph for a view is one for its base, whose batch axes vary too.
        given = [x] if memory is None else [x, memory]
        for i, one in enumerate(given):
            given[i] = torch.ops.aten._unsafe_view(one.contiguous(), one.shape)
            torch._dynamo.maybe_mark_dynamic(given[i], 0)
        return _compiled(self.backend)(self, given[0], None if memory is None else given[1], kept, rotation)

    def _windows(
        self,
        x: Float[Tensor, "b n d"],
        memory: Float[Tensor, "b p d"] | None,
        kept: int,
        rotation: Rotation | None,
    ) -> Float[Tensor, "b m d"]:
        n, p = x.shape[1], 0 if memory is None else memory.shape[1]
        if rotation is not None:
            rotation = rotation[0][: p + n], rotation[1][: p + n]
        if self.positions is not None:
            x = x + self.positions[p : p + n]
            memory = None if memory is None else memory + self.positions[:p]
        memory = None if memory is None else self.dropout(memory)
        y = self.dropout(x)
        asking = min(n, kept + self.lookback)
        for layer, block in enumerate(self.blocks):
            queries = asking if layer == len(self.blocks) - 1 else n
            mask = causal_mask(queries, p + n, x.device) if self.causal else None
            y = block(y, queries, causal=self.causal, mask=mask, rotation=rotation, memory=memory)
        return self.norm(y[:, asking - kept :])

    # Piece by piece.

    def new_cache(self, batch: int) -> KVCache:
        """Unfilled buffers for `batch` windows."""
        if not self.causal:
            raise ValueError("a window that is not causal cannot be read in pieces: early positions look at later ones")
        size = self.width // self.heads
        return KVCache.empty(len(self.blocks), batch, self.heads, self.window, size, self._weight, self._carried())

    def cache_nbytes(self, batch: int) -> int:
        """What `new_cache` allocates: keys and values of every layer for the whole window, inputs of convolutions."""
        numbers = 2 * len(self.blocks) * self.window * self.width + sum(m * channels for m, channels in self._carried())
        return batch * numbers * self._weight.itemsize

    @torch.no_grad()
    def _carried(self) -> list[tuple[int, int]]:
        shorts = (short for block in self.blocks for short in cast(Block, block).convolutions())
        return [(short.length - 1, len(short.weight)) for short in shorts]

    @property
    def _weight(self) -> Tensor:
        return cast(Block, self.blocks[0]).mlp_out.weight

    def remember(self, memory: Float[Tensor, "b p d"], cache: KVCache) -> None:
        """Put a memory at the first places of the windows of an unfilled cache."""
        if any(cache.lengths):
            raise ValueError(
                f"a memory stands at the first places, but the cache has {cache.lengths} positions already"
            )
        new = Continuation(cache, memory.shape[1], recording=self._recording(memory, cache))
        if self.positions is not None:
            memory = memory + self.positions[: new.m]
        memory = self.dropout(memory)
        rotation = self._places(new, memory)
        for layer, block in enumerate(self.blocks):
            new.store(layer, *cast(Block, block).keys_and_values(memory, rotation))
        new.finish()

    def _continue(
        self, x: Float[Tensor, "b n d"], kept: int | None, cache: KVCache, counts: Sequence[int] | None
    ) -> Float[Tensor, "b m d"]:
        n = x.shape[1]
        kept = n if kept is None else kept
        new = Continuation(cache, n, counts, recording=self._recording(x, cache))
        if not n or (new.counts is not None and not any(new.counts)):
            return x.new_zeros(len(x), kept, x.shape[-1])
        if new.counted is not None:
            # Not a number would come back from every sum over positions, of gradients too.
            x = x.masked_fill(~new.counted[..., None], 0)
        if self.positions is not None:
            x = x + self.positions[new.start : new.end] if new.start is not None else x + self.positions[new.reach]
        rotation = self._places(new, x)
        if n == kept == 1 and not (self.training or new.recording or new.counts):
            return self._next(x, new, rotation)
        y = self.dropout(x) if self.training else x
        # What convolutions carry on lies at another place in each row.
        asking = n if new.counted is not None and self.lookback else min(n, kept + self.lookback)
        last = len(self.blocks) - 1
        mask = new.mask(n) if last or asking == n else None
        for layer, block in enumerate(self.blocks):
            if layer == last and asking != n:
                mask = new.mask(asking)
            queries = asking if layer == last else n
            y = block(y, queries, causal=True, mask=mask, cache=new, layer=layer, rotation=rotation)
        new.finish()
        return self.norm(y if asking == kept else y[:, asking - kept :])

    def _next(self, x: Float[Tensor, "b 1 d"], new: Continuation, rotation: Rotation | None) -> Float[Tensor, "b 1 d"]:
        """One more position of every row: what decoding does all the time."""
        mask = new.mask(1)
        for layer, block in enumerate(self.blocks):
            if can_decode(block):
                x = decode(block, x, new, layer, mask, rotation)
            else:
                x = block(x, 1, causal=True, mask=mask, cache=new, layer=layer, rotation=rotation)
        new.finish()
        return apply_norm(self.norm, x)

    def _rotation(self, like: Tensor) -> Rotation | None:
        """Of all places of the window."""
        if not self.rotary:
            return None
        return rotations(self.window, self.width // self.heads, like.device, self._weight.dtype)

    def _places(self, new: Continuation, like: Tensor) -> Rotation | None:
        """The rotations of new positions."""
        rotation = self._rotation(like)
        if rotation is None:
            return None
        if new.start is None:
            return rotation[0][new.reach][:, None], rotation[1][new.reach][:, None]
        return rotation[0][new.start : new.end], rotation[1][new.start : new.end]

    def _recording(self, x: Tensor, cache: KVCache) -> bool:
        """Whether autograd follows what is stored."""
        if not torch.is_grad_enabled():
            return False
        return x.requires_grad or cache.recorded or any(weight.requires_grad for weight in self.parameters())


@remembered
def _compiled(backend: Backend) -> Callable[..., Tensor]:
    # Of the class, not of an instance: a copy of a module must not run the weights of the first.
    return torch.compile(Transformer._windows, backend=backend)


def compile_transformers(model: nn.Module, *, backend: Backend = "inductor") -> int:
    """Compile the blocks of every `Transformer` in a model, in place; returns how many there are.

    Of a prefix-scannable model that is all of Agg and Inf. The scan stays Python: a level is one call with another
    number of windows, which is the graph's one free dimension. So the number of graphs is that of Transformers, once
    for training and once for evaluation, whatever the lengths of the sequences; compiling the whole model makes a graph
    for each length, and after 8 of them torch goes back to running without. Streams, which go window by window through
    a cache, are not compiled. The first step of a toy model (width 32, one layer each) took 52 s to compile with
    inductor on two busy cores of a CPU, and 22 s for a second one of another width.
    """
    parts = [module for module in model.modules() if isinstance(module, Transformer)]
    for part in parts:
        part.backend = backend
    return len(parts)
