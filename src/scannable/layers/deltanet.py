"""DeltaNet (Schlag et al. 2021, "Linear transformers are secretly fast weight programmers"; Yang et al. 2024)."""

import torch
from torch import Tensor
from torch.nn import functional

from scannable.layers.affine.chunkwise import DeltaRule
from scannable.layers.affine.layer import HeadedLayer, Prepared
from scannable.layers.layer import check_sizes
from scannable.layers.recurrent import Parts
from scannable.nn.head_norm import HeadNorm
from scannable.nn.projection import projection
from scannable.nn.short_convolution import ShortConvolution


class DeltaNet(HeadedLayer):
    """A key forgets what it recalled before it learns its new value.

        S_t = (I - β_t k_t k_tᵀ) S_(t-1) + β_t k_t v_tᵀ     y_t = S_tᵀ q_t     β_t = σ(w x_t)

    Short convolutions with SiLU before q, k and v, unit-length q and k, and a norm for each head after, as in Yang et
    al. 2024; the paper of 2021 normalised keys by their sum. The table writes the state transposed, (value, key).
    Weights of flash-linear-attention can be read (see `scannable.hf.fla_weights`).

    Args:
        negative_eigenvalues: let β_t reach 2, so that I - β k kᵀ has eigenvalues in (-1, 1] instead of (0, 1] and can
            reflect (Grazzi et al. 2024, "Unlocking state-tracking in linear RNNs through negative eigenvalues").
        key_size: of a head; None: width / heads.
        value_size: of a head; None: width / heads.
        convolution: positions that the short convolutions see.
        eps: of the norm of each head.

    >>> layer = sc.zoo.DeltaNet(width=16, heads=2, negative_eigenvalues=True)
    >>> y, state = layer.extend(torch.randn(1, 50, 16), layer.initial_state(1))
    >>> y.shape, state.position
    (torch.Size([1, 50, 16]), 50)
    """

    title = "DeltaNet"
    action = "projector I - b k kᵀ"

    def __init__(
        self,
        width: int,
        heads: int = 4,
        *,
        negative_eigenvalues: bool = False,
        key_size: int | None = None,
        value_size: int | None = None,
        convolution: int = 4,
        eps: float = 1e-5,
    ) -> None:
        super().__init__(width, heads, key_size=key_size, value_size=value_size)
        check_sizes(convolution=convolution)
        self.negative_eigenvalues: bool = negative_eigenvalues
        keys, values = heads * self.key_size, heads * self.value_size
        self.sizes: tuple[int, ...] = (keys, keys, values)
        self.query_key_value = projection(width, sum(self.sizes))
        self.convolution = ShortConvolution(sum(self.sizes), convolution)
        self.strength = projection(width, heads)
        self.norm = HeadNorm(heads, self.value_size, eps)
        self.out = projection(values, width)

    def empty(self, batch_size: int) -> Parts:
        past = self.zeros(batch_size, self.convolution.length - 1, sum(self.sizes))
        return {**super().empty(batch_size), "past": past}

    def prepare(self, x: Tensor, parts: Parts, keep: Tensor | None) -> Prepared:
        mixed, past = self.convolution(self.query_key_value(x), parts["past"], keep)
        q, k, v = (self.split(part) for part in functional.silu(mixed).split(self.sizes, -1))
        strength = strengths(self.strength(x), self.negative_eigenvalues)
        q = unit(q) * self.key_size**-0.5
        return Prepared(self.rule(x, q, unit(k), v, strength), self.gate(x), {"past": past})

    def rule(self, x: Tensor, q: Tensor, k: Tensor, v: Tensor, strength: Tensor) -> DeltaRule:
        return DeltaRule(q, k, v, strength)

    def gate(self, x: Tensor) -> Tensor | None:
        return None

    def read_out(self, outputs: Tensor, gate: Tensor | None) -> Tensor:
        return self.out(self.norm(outputs, gate))


def strengths(logits: Tensor, negative_eigenvalues: bool) -> Tensor:
    """β in (0, 1), or in (0, 2) where eigenvalues 1 - β may be negative."""
    return 2 * logits.sigmoid() if negative_eigenvalues else logits.sigmoid()


def unit(x: Tensor) -> Tensor:
    """Vectors of length 1."""
    return x * torch.rsqrt(x.square().sum(-1, keepdim=True) + 1e-6)
