"""A GPT-2-style Transformer over a window with learned positions that are local to the window."""

from collections.abc import Callable, Sequence
from functools import cache as remembered
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor, nn

from scannable.nn.block import Block, initialise
from scannable.nn.cache import Continuation, KVCache, causal_mask
from scannable.nn.positions import starting_positions

CPU_SLICE = 4096
"""Positions that go through the blocks together on a CPU: larger activations leave its caches, and the allocator maps
and unmaps them page by page on every pass. A GPU takes a whole level at once."""
Backend = str | Callable[..., Any]
"""As `torch.compile` takes it."""


class Transformer(nn.Module):
    """Positions, blocks and a final LayerNorm, over windows of at most `window` positions, causal or not."""

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
    ) -> None:
        super().__init__()
        self.causal: bool = causal
        self.heads: int = heads
        self.backend: Backend | None = None
        """What compiles the blocks; None for nothing. `compile_transformers` sets it."""
        # Of the scale of the elements they are added to, so that left and right half can be told apart.
        self.positions = nn.Parameter(starting_positions(window, width, sinusoids=sinusoids))
        self.dropout = nn.Dropout(dropout)
        self.blocks = nn.ModuleList(Block(width, heads, dropout) for _ in range(layers))
        self.norm = nn.LayerNorm(width)
        for block in self.blocks:
            initialise(block, layers)  # pyright: ignore[reportArgumentType]

    def forward(
        self,
        x: Float[Tensor, "*batch n d"],
        *,
        kept: int | None = None,
        cache: KVCache | None = None,
        counts: Sequence[int] | None = None,
    ) -> Float[Tensor, "*batch m d"]:
        """The last `kept` positions (all, unless told), computing nothing in the last block for the others.

        With a `cache`, `x` (b, n, d) continues the windows that the cache holds, which is updated: its rows may be at
        different lengths. With `counts` too, only the first counts[i] positions of row i are there; what stands behind
        them changes nothing, whatever it is, and the outputs there mean nothing.
        """
        if cache is not None:
            return self._continue(x, kept, cache, counts)
        *batch, n, width = x.shape
        kept = n if kept is None else kept
        windows = x.reshape(-1, n, width)
        slice_length = max(1, CPU_SLICE // n)
        # Dropout is drawn for all windows at once: a step of training gives each sample its own, in any batch.
        random = self.training and self.dropout.p > 0
        if x.device.type == "cpu" and len(windows) > slice_length and not random:
            y = torch.cat([self._run(part, kept) for part in windows.split(slice_length)])
        else:
            y = self._run(windows, kept)
        return y.reshape(*batch, kept, width)

    def _run(self, x: Float[Tensor, "b n d"], kept: int) -> Float[Tensor, "b m d"]:
        # A graph for any number of windows is not one for a single window, which would be one more to compile.
        if self.backend is None or len(x) < 2:
            return self._windows(x, kept)
        # No view in the eyes of autograd: a graph for a view is one for its base, whose batch axes vary too.
        x = torch.ops.aten._unsafe_view(x.contiguous(), x.shape)
        torch._dynamo.maybe_mark_dynamic(x, 0)
        return _compiled(self.backend)(self, x, kept)

    def _windows(self, x: Float[Tensor, "b n d"], kept: int) -> Float[Tensor, "b m d"]:
        n = x.shape[1]
        y = self.dropout(x + self.positions[:n])
        for layer, block in enumerate(self.blocks):
            queries = kept if layer == len(self.blocks) - 1 else n
            mask = causal_mask(queries, n, x.device) if self.causal else None
            y = block(y, queries, causal=self.causal, mask=mask)
        return self.norm(y)

    # Piece by piece.

    def new_cache(self, batch: int) -> KVCache:
        """Unfilled buffers for `batch` windows."""
        if not self.causal:
            raise ValueError("a window that is not causal cannot be read in pieces: early positions look at later ones")
        window, width = self.positions.shape
        return KVCache.empty(len(self.blocks), batch, self.heads, window, width // self.heads, like=self.positions)

    def cache_nbytes(self, batch: int) -> int:
        """What `new_cache` allocates: keys and values of every layer for the whole window."""
        return 2 * len(self.blocks) * batch * self.positions.nbytes

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
        y = self.dropout(x + self._positions(new))
        last = len(self.blocks) - 1
        mask = new.mask(n) if last or kept == n else None
        for layer, block in enumerate(self.blocks):
            if layer == last and kept != n:
                mask = new.mask(kept)
            y = block(y, kept if layer == last else n, causal=True, mask=mask, cache=new, layer=layer)
        new.finish()
        return self.norm(y)

    def _recording(self, x: Tensor, cache: KVCache) -> bool:
        """Whether autograd follows what is stored."""
        if not torch.is_grad_enabled():
            return False
        return x.requires_grad or cache.recorded or any(weight.requires_grad for weight in self.parameters())

    def _positions(self, new: Continuation) -> Tensor:
        if new.start is None:
            return self.positions[new.reach]
        return self.positions[new.start : new.end]


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
