"""Linear attention (Katharopoulos et al. 2020, "Transformers are RNNs")."""

import torch
from torch import Tensor
from torch.nn import functional

from scannable.layers.affine.actions import Identity
from scannable.layers.affine.chunkwise import OuterProduct
from scannable.layers.affine.layer import HeadedLayer, Prepared
from scannable.layers.recurrent import Parts
from scannable.nn.projection import projection


class LinearAttention(HeadedLayer):
    """Nothing is forgotten, and what is read is normalised.

        S_t = S_(t-1) + φ(k_t) v_tᵀ     z_t = z_(t-1) + φ(k_t)     y_t = S_tᵀ φ(q_t) / z_tᵀ φ(q_t)     φ = elu + 1

    The normaliser z is one more value of every memory, always 1 where it is written. Many later papers leave φ and z
    out; here they are as published.

    >>> layer = sc.zoo.LinearAttention(width=16, heads=2)
    >>> y, state = layer.extend(torch.randn(1, 50, 16), layer.initial_state(1))
    >>> y.shape, state.position
    (torch.Size([1, 50, 16]), 50)
    """

    title = "Linear attention"
    action = "identity"
    eps = 1e-6

    def __init__(self, width: int, heads: int = 4) -> None:
        super().__init__(width, heads)
        self.query_key_value = projection(width, 3 * width)
        self.out = projection(width, width)

    def empty(self, batch_size: int) -> Parts:
        return {"s": self.zeros(batch_size, self.heads, self.key_size, self.value_size + 1, dtype=self.memory_dtype)}

    def prepare(self, x: Tensor, parts: Parts, keep: Tensor | None) -> Prepared:
        q, k, v = (self.split(part) for part in self.query_key_value(x).chunk(3, -1))
        return Prepared(OuterProduct(functional.elu(q) + 1, functional.elu(k) + 1, with_one(v), Identity()))

    def read_out(self, outputs: Tensor, gate: None) -> Tensor:
        total, weight = outputs.split((self.value_size, 1), -1)
        return self.out((total / (weight + self.eps)).flatten(2).to(self.out.weight.dtype))


def with_one(value: Tensor) -> Tensor:
    """Values with one more coordinate that is 1: what is added up there normalises the others."""
    return torch.cat((value, torch.ones_like(value[..., :1])), -1)
