"""Agg and Inf of Sec. "Transformer-PSM": GPT-2-style Transformers over two chunks."""

from collections.abc import Sequence
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor, nn

from scannable.layers.layer import check_sizes, head_size
from scannable.layers.psm import PSMLayer
from scannable.layers.psm_choices import PSMChoices
from scannable.nn.block_config import BlockConfig, check_block
from scannable.nn.cache import KVCache
from scannable.nn.state_noise import with_noise
from scannable.nn.transformer import Transformer


def block_of(choices: PSMChoices) -> BlockConfig:
    """The blocks of Agg and Inf."""
    return BlockConfig(choices.positions, choices.norm, choices.mlp, choices.qk_norm, choices.convolution)


class TransformerAgg(nn.Module):
    """Agg(x_i, x_j) = RH(GPT_b([x_i | x_j])): two chunks of c tokens to one.

    Bidirectional over the 2c tokens. Of the last layer only the right half is computed, being all that is kept; with
    a projection all 2c tokens are, and LayerNorm and a learned map over the token axis bring them to c.
    """

    def __init__(self, width: int, heads: int, choices: PSMChoices) -> None:
        super().__init__()
        c = choices.chunk_length
        self.unit: bool = choices.unit_states
        self.state_noise: float = choices.state_noise
        self.noise: float = choices.state_noise
        """Deviation of the Gaussian noise on what Agg returns in training, as a fraction of its size; 0 for none. May
        be set at any time, and is not saved with the weights."""
        self.transformer = Transformer(
            width=width,
            layers=choices.agg_layers,
            heads=choices.agg_heads or heads,
            window=2 * c,
            causal=choices.agg_causal,
            dropout=choices.dropout,
            sinusoids=choices.sinusoids,
            block=block_of(choices),
        )
        self.projection: nn.Linear | None = None
        if choices.compress == "projection":
            self.projection = nn.Linear(2 * c, c)
            # The sum of both halves: what is mixed from the start is hard to tell apart again. The right one is a
            # place further: with place on place, recall of pairs ends at one of the two values that share a place.
            older = torch.eye(c)
            halves = torch.cat((older, older.roll(1, 0)), 1)
            self.projection.weight.data.copy_(halves * 0.5**0.5)
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
        return with_noise(both, self.noise, (-1, -2)) if self.training and self.noise else both


class TransformerInf(nn.Module):
    """Inf(s, x) = RH(GPT_c([s | x])): causal, so output j sees the prefix and tokens 0 to j of its chunk.

    With `recent` = k the window has the k chunks before the last one too, each as it was: [s | x_(i-k) | ... | x_i].
    With a prefix that is a memory, s gives keys and values to every layer as it is, and only the chunks are carried
    through the layers, which is half of the work.

    A chunk may be read piece by piece, many chunks beside each other and each as far as it is:

        cache = inf.begin(prefix)                            # every row has read its prefix
        y, cache = inf.read(x, cache, counts=[3, 0, 1])      # the next positions of each row
    """

    def __init__(self, width: int, heads: int, choices: PSMChoices) -> None:
        super().__init__()
        self.before: int = choices.recent * choices.chunk_length
        """Positions of recent chunks."""
        self.memory: bool = choices.prefix == "memory"
        self.transformer = Transformer(
            width=width,
            layers=choices.inf_layers,
            heads=heads,
            window=(2 + choices.recent) * choices.chunk_length,
            causal=True,
            dropout=choices.dropout,
            sinusoids=choices.sinusoids,
            block=block_of(choices),
        )

    def forward(self, prefix: Float[Tensor, "*b c d"], x: Float[Tensor, "*b n d"]) -> Float[Tensor, "*b m d"]:
        """The outputs of the last chunk; `x` has the recent chunks in front of it."""
        kept = x.shape[-2] - self.before
        if self.memory:
            return self.transformer(x, kept=kept, memory=prefix)
        return self.transformer(torch.cat((prefix, x), -2), kept=kept)

    def new_cache(self, batch: int) -> KVCache:
        """A cache for so many chunks, none of which has read anything."""
        return self.transformer.new_cache(batch)

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


class TransformerPSMLayer(PSMLayer):
    """The paper's choice of Agg and Inf as a layer on vectors.

        layer = TransformerPSMLayer(width=256, heads=4, chunk_length=64, agg_layers=1, inf_layers=1)

    Args:
        width, heads: of Agg and Inf alike.
        choices: the fields of `PSMChoices`; one layer of Agg and one of Inf, unless told.

    >>> layer = sc.TransformerPSMLayer(width=16, heads=2, chunk_length=4)
    >>> y, state = layer.extend(torch.randn(2, 10, 16), layer.initial_state(2))
    >>> y.shape, state.positions
    (torch.Size([2, 10, 16]), (10, 10))
    """

    title = "Transformer-PSM"
    action = "not affine"
    usual_mlp = False

    def __init__(self, width: int, heads: int = 4, **choices: Any) -> None:
        head_size(width, heads)
        chosen = PSMChoices(**{"agg_layers": 1, "inf_layers": 1, **choices})
        check_sizes(chunk_length=chosen.chunk_length, agg_layers=chosen.agg_layers, inf_layers=chosen.inf_layers)
        check_block(chosen)
        super().__init__(
            TransformerAgg(width, heads, chosen),
            TransformerInf(width, heads, chosen),
            nn.Parameter(torch.randn(chosen.chunk_length, width)),
            chosen.chunk_length,
            recent=chosen.recent,
            literal_identity=chosen.literal_identity,
            checkpoint=chosen.checkpoint,
        )
