"""Agg and Inf of Sec. "Transformer-PSM": GPT-2-style Transformers over two chunks."""

from collections.abc import Sequence
from typing import Literal, Protocol, runtime_checkable

import torch
from jaxtyping import Float
from torch import Tensor, nn

from scannable.nn.block_config import MLP, BlockConfig, Norm, Positions
from scannable.nn.cache import KVCache
from scannable.nn.transformer import Transformer


@runtime_checkable
class Choices(Protocol):
    """What a configuration says of Agg and Inf; `TransformerPSMConfig` explains each."""

    @property
    def width(self) -> int: ...
    @property
    def chunk_length(self) -> int: ...
    @property
    def agg_layers(self) -> int: ...
    @property
    def inf_layers(self) -> int: ...
    @property
    def heads(self) -> int: ...
    @property
    def agg_heads(self) -> int | None: ...
    @property
    def dropout(self) -> float: ...
    @property
    def compress(self) -> Literal["right_half", "projection"]: ...
    @property
    def agg_causal(self) -> bool: ...
    @property
    def sinusoids(self) -> bool: ...
    @property
    def state_noise(self) -> float: ...
    @property
    def unit_states(self) -> bool: ...
    @property
    def positions(self) -> Positions: ...
    @property
    def norm(self) -> Norm: ...
    @property
    def mlp(self) -> MLP: ...
    @property
    def qk_norm(self) -> bool: ...
    @property
    def convolution(self) -> int: ...
    @property
    def prefix(self) -> Literal["carried", "memory"]: ...
    @property
    def recent(self) -> int: ...


def block_of(config: Choices) -> BlockConfig:
    """The blocks of Agg and Inf."""
    return BlockConfig(config.positions, config.norm, config.mlp, config.qk_norm, config.convolution)


class TransformerAgg(nn.Module):
    """Agg(x_i, x_j) = RH(GPT_b([x_i | x_j])): two chunks of c tokens to one.

    Bidirectional over the 2c tokens. Of the last layer only the right half is computed, being all that is kept; with
    a projection all 2c tokens are, and LayerNorm and a learned map over the token axis bring them to c.
    """

    def __init__(self, config: Choices) -> None:
        super().__init__()
        c = config.chunk_length
        self.unit: bool = config.unit_states
        self.noise: float = config.state_noise
        """Deviation of the Gaussian noise on what Agg returns in training, as a fraction of its size; 0 for none. May
        be set at any time, and is not saved with the weights."""
        self.transformer = Transformer(
            width=config.width,
            layers=config.agg_layers,
            heads=config.agg_heads or config.heads,
            window=2 * c,
            causal=config.agg_causal,
            dropout=config.dropout,
            sinusoids=config.sinusoids,
            block=block_of(config),
        )
        self.projection: nn.Linear | None = None
        if config.compress == "projection":
            self.projection = nn.Linear(2 * c, c)
            # The sum of both halves, place by place: what is mixed from the start is hard to tell apart again.
            halves = torch.eye(c).repeat(1, 2) * 0.5**0.5
            self.projection.weight.data.copy_(halves)
            nn.init.zeros_(self.projection.bias)

    def forward(self, older: Float[Tensor, "*b c d"], newer: Float[Tensor, "*b c d"]) -> Float[Tensor, "*b c d"]:
        if older.ndim > 3:
            # The rows of the batch outermost, as everywhere else: a training step seeds noise by the row.
            return self._rows_first(older.movedim(-3, 0), newer.movedim(-3, 0)).movedim(0, -3)
        return self._rows_first(older, newer)

    def _rows_first(self, older: Tensor, newer: Tensor) -> Tensor:
        pair = torch.cat((older, newer), -2)
        if self.projection is None:
            both = self.transformer(pair, kept=newer.shape[-2])
        else:
            both = self.projection(self.transformer(pair).transpose(-1, -2)).transpose(-1, -2)
        if self.unit:
            both = nn.functional.rms_norm(both, both.shape[-1:])
        return self._with_noise(both) if self.training and self.noise else both

    def _with_noise(self, states: Float[Tensor, "*b c d"]) -> Float[Tensor, "*b c d"]:
        # Relative, or the gain of the last LayerNorm would grow until the noise no longer matters.
        size = states.detach().square().mean((-1, -2), keepdim=True).sqrt()
        return states + self.noise * size * torch.randn_like(states)


class TransformerInf(nn.Module):
    """Inf(s, x) = RH(GPT_c([s | x])): causal, so output j sees the prefix and tokens 0 to j of its chunk.

    With `recent` = k the window has the k chunks before the last one too, each as it was: [s | x_(i-k) | ... | x_i].
    With a prefix that is a memory, s gives keys and values to every layer as it is, and only the chunks are carried
    through the layers, which is half of the work.

    A chunk may be read piece by piece, many chunks beside each other and each as far as it is:

        cache = inf.begin(prefix)                            # every row has read its prefix
        y, cache = inf.read(x, cache, counts=[3, 0, 1])      # the next positions of each row
    """

    def __init__(self, config: Choices) -> None:
        super().__init__()
        self.before: int = config.recent * config.chunk_length
        """Positions of recent chunks."""
        self.memory: bool = config.prefix == "memory"
        self.transformer = Transformer(
            width=config.width,
            layers=config.inf_layers,
            heads=config.heads,
            window=(2 + config.recent) * config.chunk_length,
            causal=True,
            dropout=config.dropout,
            sinusoids=config.sinusoids,
            block=block_of(config),
        )

    def forward(self, prefix: Float[Tensor, "*b c d"], x: Float[Tensor, "*b n d"]) -> Float[Tensor, "*b m d"]:
        """The outputs of the last chunk; `x` has the recent chunks in front of it."""
        kept = x.shape[-2] - self.before
        if self.memory:
            return self.transformer(x, kept=kept, memory=prefix)
        return self.transformer(torch.cat((prefix, x), -2), kept=kept)

    def begin(
        self,
        prefix: Float[Tensor, "b c d"],
        recent: Float[Tensor, "b p d"] | None = None,
        reuse: KVCache | None = None,
    ) -> KVCache:
        """A cache whose rows have read their prefixes, and behind each the `recent` positions.

        `reuse` is a cache that nobody needs any more. Where autograd does not record, its buffers are overwritten.
        """
        if reuse is not None and reuse.batch_size == len(prefix) and not torch.is_grad_enabled():
            cache = reuse
            cache.rewind()
        else:
            cache = self.transformer.new_cache(len(prefix))
        if self.memory:
            self.transformer.remember(prefix, cache)
            carried = recent
        else:
            carried = prefix if recent is None else torch.cat((prefix, recent), 1)
        if carried is not None:
            self.transformer(carried, kept=0, cache=cache)
        return cache

    def read(
        self, x: Float[Tensor, "b m d"], cache: KVCache, counts: Sequence[int] | None = None
    ) -> tuple[Float[Tensor, "b m d"], KVCache]:
        """The outputs for the next m positions, and the cache behind them; of row i, only the first counts[i].

        Where autograd does not record, the cache that is returned is the given one.
        """
        if torch.is_grad_enabled():
            cache = cache.branch()
        return self.transformer(x, cache=cache, counts=counts), cache

    def cache_nbytes(self, batch: int) -> int:
        """Bytes of a cache for `batch` chunks."""
        return self.transformer.cache_nbytes(batch)
