"""One pre-norm block, GPT-2's unless told, which can leave out what will be thrown away."""

from typing import Protocol, cast, runtime_checkable

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.nn import functional as F

from scannable.nn.block_config import BlockConfig, check_rotary
from scannable.nn.cache import Continuation
from scannable.nn.decay import undecayed
from scannable.nn.mlp import activated
from scannable.nn.rotary import Rotation, rotate
from scannable.nn.short_convolution import ShortConvolution

GPT2 = BlockConfig()
CONVOLUTIONS = ("before attention", "queries", "keys and values", "before the MLP", "inside the MLP")
"""The convolutions of a block, in the order in which a cache holds their inputs."""


@runtime_checkable
class Memory(Protocol):
    """Keys and values of earlier positions, to which a layer adds its new ones."""

    def store(self, layer: int, keys: Tensor, values: Tensor) -> tuple[Tensor, Tensor]:
        """Those of all positions that may be looked at, the new ones last."""
        ...


class Attention(nn.Module):
    """Multi-head softmax attention through `scaled_dot_product_attention`."""

    def __init__(self, width: int, heads: int, dropout: float, config: BlockConfig = GPT2) -> None:
        super().__init__()
        if width % heads:
            raise ValueError(f"width {width} is not a multiple of {heads} heads; choose heads that divide it")
        check_rotary(config.positions, width, heads)
        self.heads: int = heads
        self.dropout: float = dropout
        self.query = nn.Linear(width, width)
        self.key_value = nn.Linear(width, 2 * width)
        self.out = nn.Linear(width, width)
        self.gain = nn.Parameter(torch.ones(heads)) if config.qk_norm else None
        undecayed(self, *(["gain"] if config.qk_norm else []))
        self.query_convolution = convolution(width, config)
        self.key_value_convolution = convolution(2 * width, config)

    def forward(
        self,
        x: Float[Tensor, "b n d"],
        kept: int,
        *,
        causal: bool,
        mask: Tensor | None,
        cache: Memory | None,
        layer: int,
        rotation: Rotation | None = None,
        before: tuple[Tensor, Tensor] | None = None,
    ) -> Float[Tensor, "b m d"]:
        """What the last `kept` positions gather from all positions, those `before` the first included."""
        keys, values = self.keys_and_values(x, rotation, cache, layer)
        if before is not None:
            keys, values = (torch.cat(pair, -2) for pair in zip(before, (keys, values), strict=True))
        if cache is not None:
            keys, values = cache.store(layer, keys, values)
        if kept == 0:
            return x[:, :0]
        gathered = F.scaled_dot_product_attention(
            self.queries(x, kept, rotation, cache, layer),
            keys,
            values,
            attn_mask=mask,
            is_causal=causal and mask is None and kept == keys.shape[-2],
            dropout_p=self.dropout if self.training else 0.0,
        )
        return self.out(gathered.transpose(1, 2).flatten(2))

    def keys_and_values(
        self, x: Float[Tensor, "b n d"], rotation: Rotation | None, cache: Memory | None = None, layer: int = 0
    ) -> tuple[Float[Tensor, "b h n size"], Float[Tensor, "b h n size"]]:
        """Those of new positions at the places that `rotation` has."""
        both = convolved(self.key_value_convolution, self.key_value(x), cache, layer, 2)
        keys, values = (self._heads(half) for half in both.chunk(2, -1))
        if self.gain is not None:
            keys = F.rms_norm(keys, keys.shape[-1:])
        return (keys if rotation is None else rotate(keys, rotation)), values

    def queries(
        self, x: Float[Tensor, "b n d"], kept: int, rotation: Rotation | None, cache: Memory | None, layer: int
    ) -> Float[Tensor, "b h m size"]:
        """Those of the last `kept` positions."""
        n = x.shape[1]
        if self.query_convolution is None:
            queries = self.query(x[:, n - kept :])
        else:
            # The first ones that are kept look at a few before them.
            first = max(0, n - kept - self.query_convolution.length + 1)
            queries = convolved(self.query_convolution, self.query(x[:, first:]), cache, layer, 1)
            queries = queries[:, queries.shape[1] - kept :]
        queries = self._heads(queries)
        if self.gain is not None:
            queries = F.rms_norm(queries, queries.shape[-1:]) * self.gain[:, None, None]
        if rotation is not None:
            cosines, sines = rotation
            queries = rotate(queries, (cosines[..., n - kept :, :], sines[..., n - kept :, :]))
        return queries

    def _heads(self, x: Tensor) -> Tensor:
        return x.unflatten(-1, (self.heads, -1)).transpose(1, 2)


class Block(nn.Module):
    """x + Attention(norm(x)), then x + MLP(norm(x)); as in GPT-2, LayerNorm and a tanh GELU of four times the width,
    unless told.
    """

    def __init__(self, width: int, heads: int, dropout: float, config: BlockConfig = GPT2) -> None:
        super().__init__()
        self.attention_norm = norm(width, config)
        self.attention = Attention(width, heads, dropout, config)
        self.mlp_norm = norm(width, config)
        inner = config.inner(width)
        self.mlp: str = config.mlp
        self.mlp_in = nn.Linear(width, 2 * inner if config.mlp == "swiglu" else inner)
        self.mlp_out = nn.Linear(inner, width)
        self.dropout = nn.Dropout(dropout)
        self.attention_convolution = convolution(width, config)
        self.mlp_convolution = convolution(width, config)
        self.inner_convolution = convolution(self.mlp_in.out_features, config)

    def forward(
        self,
        x: Float[Tensor, "b n d"],
        kept: int,
        *,
        causal: bool,
        mask: Tensor | None = None,
        cache: Memory | None = None,
        layer: int = 0,
        rotation: Rotation | None = None,
        memory: Float[Tensor, "b p d"] | None = None,
    ) -> Float[Tensor, "b m d"]:
        """The last `kept` positions of the block's output; the others are keys and values only.

        Args:
            mask: takes the place of `causal`; it is needed where not all positions ask.
            cache: has the keys and values of earlier positions, as layer number `layer`.
            rotation: of all places, those of the memory first.
            memory: what stands before the window, and gives keys and values alone.

        Where fewer positions are kept than there are, the convolutions after attention do not see what is in front of
        those: ask for 2 (convolution - 1) positions more than are needed, and drop them.
        """
        before = None
        if memory is not None:
            p = memory.shape[1]
            first = None if rotation is None else (rotation[0][:p], rotation[1][:p])
            rotation = None if rotation is None else (rotation[0][p:], rotation[1][p:])
            before = self.keys_and_values(memory, first)
        normed = convolved(self.attention_convolution, self.attention_norm(x), cache, layer, 0)
        gathered = self.attention(
            normed, kept, causal=causal, mask=mask, cache=cache, layer=layer, rotation=rotation, before=before
        )
        if kept == 0:
            return gathered
        n = x.shape[1]
        y = (x if kept == n else x[:, n - kept :]) + self._dropped(gathered)
        normed = convolved(self.mlp_convolution, self.mlp_norm(y), cache, layer, 3)
        inner = convolved(self.inner_convolution, self.mlp_in(normed), cache, layer, 4)
        return y + self._dropped(self.mlp_out(activated(inner, self.mlp)))

    def keys_and_values(self, memory: Float[Tensor, "b p d"], rotation: Rotation | None) -> tuple[Tensor, Tensor]:
        """Those of positions that are not carried through the layers."""
        normed = convolved(self.attention_convolution, self.attention_norm(memory), None, 0, 0)
        return self.attention.keys_and_values(normed, rotation)

    def convolutions(self) -> list[ShortConvolution]:
        """Those that the block has, in the order of `CONVOLUTIONS`."""
        inside = self.attention.query_convolution, self.attention.key_value_convolution
        every = (self.attention_convolution, *inside, self.mlp_convolution, self.inner_convolution)
        return [one for one in every if one is not None]

    def _dropped(self, x: Tensor) -> Tensor:
        return self.dropout(x) if self.dropout.training else x


def norm(width: int, config: BlockConfig) -> nn.Module:
    """Over the channels of a position."""
    return nn.LayerNorm(width) if config.norm == "layer" else nn.RMSNorm(width, eps=1e-5)


def convolution(channels: int, config: BlockConfig) -> ShortConvolution | None:
    """A short convolution, if blocks have any."""
    return ShortConvolution(channels, config.convolution) if config.convolution else None


def convolved(
    short: ShortConvolution | None,
    x: Float[Tensor, "b n d"],
    cache: Memory | None,
    layer: int,
    point: int,
) -> Float[Tensor, "b n d"]:
    """The sum x + conv(x), behind the inputs that a cache holds of the layer's `CONVOLUTIONS[point]`, or x alone.

    Without a cache zeros stand in front.
    """
    if short is None:
        return x
    new = cast(Continuation | None, cache)
    past = None if new is None else new.past(layer * len(CONVOLUTIONS) + point).to(x.dtype)
    y, last = short(x, past, None if new is None else new.counted)
    if new is not None:
        new.carry(layer * len(CONVOLUTIONS) + point, last)
    return x + y


@torch.no_grad()
def initialise(block: Block, depth: int) -> None:
    """GPT-2's scheme with the fan-in in place of the fixed 0.02: N(0, 1/fan_in), residual outputs by 1/sqrt(2 depth).

    GPT-2's 0.02 is close to 1/sqrt(fan_in) at its widths (0.036 at 768) and four times too small at width 128: a
    block then starts as almost the identity, and an Agg that returns its right half learns nothing of its left one.
    """
    for module in block.modules():
        if isinstance(module, nn.Linear):
            nn.init.normal_(module.weight, std=module.in_features**-0.5)
            nn.init.zeros_(module.bias)
    for residual in (block.attention.out, block.mlp_out):
        residual.weight.mul_((2 * depth) ** -0.5)
