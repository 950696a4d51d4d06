"""One pre-LayerNorm GPT-2 block, which can leave out what will be thrown away."""

from typing import Protocol, runtime_checkable

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.nn import functional as F


@runtime_checkable
class Memory(Protocol):
    """Keys and values of earlier positions, to which a layer adds its new ones."""

    def store(self, layer: int, keys: Tensor, values: Tensor) -> tuple[Tensor, Tensor]:
        """Those of all positions that may be looked at, the new ones last."""
        ...


class Attention(nn.Module):
    """Multi-head softmax attention through `scaled_dot_product_attention`."""

    def __init__(self, width: int, heads: int, dropout: float) -> None:
        super().__init__()
        if width % heads:
            raise ValueError(f"width {width} is not a multiple of {heads} heads; choose heads that divide it")
        self.heads: int = heads
        self.dropout: float = dropout
        self.query = nn.Linear(width, width)
        self.key_value = nn.Linear(width, 2 * width)
        self.out = nn.Linear(width, width)

    def forward(
        self,
        x: Float[Tensor, "b n d"],
        kept: int,
        *,
        causal: bool,
        mask: Tensor | None,
        cache: Memory | None,
        layer: int,
    ) -> Float[Tensor, "b m d"]:
        """What the last `kept` positions gather from all positions."""
        keys, values = (self._heads(half) for half in self.key_value(x).chunk(2, -1))
        if cache is not None:
            keys, values = cache.store(layer, keys, values)
        if kept == 0:
            return x[:, :0]
        queries = self._heads(self.query(x[:, x.shape[1] - kept :]))
        gathered = F.scaled_dot_product_attention(
            queries,
            keys,
            values,
            attn_mask=mask,
            is_causal=causal and mask is None and queries.shape[-2] == keys.shape[-2],
            dropout_p=self.dropout if self.training else 0.0,
        )
        return self.out(gathered.transpose(1, 2).flatten(2))

    def _heads(self, x: Tensor) -> Tensor:
        return x.unflatten(-1, (self.heads, -1)).transpose(1, 2)


class Block(nn.Module):
    """x + Attention(LN(x)), then x + MLP(LN(x)) with a tanh GELU and four times the width."""

    def __init__(self, width: int, heads: int, dropout: float) -> None:
        super().__init__()
        self.attention_norm = nn.LayerNorm(width)
        self.attention = Attention(width, heads, dropout)
        self.mlp_norm = nn.LayerNorm(width)
        self.mlp_in = nn.Linear(width, 4 * width)
        self.mlp_out = nn.Linear(4 * width, width)
        self.dropout = nn.Dropout(dropout)

    def forward(
        self,
        x: Float[Tensor, "b n d"],
        kept: int,
        *,
        causal: bool,
        mask: Tensor | None = None,
        cache: Memory | None = None,
        layer: int = 0,
    ) -> Float[Tensor, "b m d"]:
        """The last `kept` positions of the block's output; the others are keys and values only.

        A `mask` takes the place of `causal`; it is needed where not all positions ask.
        """
        gathered = self.attention(self.attention_norm(x), kept, causal=causal, mask=mask, cache=cache, layer=layer)
        y = x[:, x.shape[1] - kept :] + self.dropout(gathered)
        return y + self.dropout(self.mlp_out(F.gelu(self.mlp_in(self.mlp_norm(y)), approximate="tanh")))


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
