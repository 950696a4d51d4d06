"""Gated random feature attention (Peng et al. 2021, "Random feature attention")."""

import torch
from torch import Tensor
from torch.nn import functional

from scannable.layers.affine.actions import Scalar
from scannable.layers.affine.chunkwise import OuterProduct
from scannable.layers.affine.layer import HeadedLayer, Prepared
from scannable.layers.deltanet import unit
from scannable.layers.layer import check_sizes, head_size
from scannable.layers.linear_attention import with_one
from scannable.layers.recurrent import Parts
from scannable.nn.decay import undecayed
from scannable.nn.projection import projection


class GatedRFA(HeadedLayer):
    """Softmax attention by random features, with a gate between the past and the present.

        S_t = g_t S_(t-1) + (1 - g_t) φ(k_t) v_tᵀ     z_t = g_t z_(t-1) + (1 - g_t) φ(k_t)
        y_t = S_tᵀ φ(q_t) / z_tᵀ φ(q_t)               φ(x) = [sin(W x), cos(W x)] / √D,  rows of W ~ N(0, σ²)

    φ(q)ᵀφ(k) is the Gaussian kernel of the unit vectors q and k, in the mean over W. It may come out near 0 or below,
    so the divisor is kept away from 0. W is drawn once and saved with the weights; the authors draw it anew in
    training. σ is learned for each key coordinate.

    >>> layer = sc.zoo.GatedRFA(width=16, heads=2, features=8)
    >>> y, state = layer.extend(torch.randn(1, 50, 16), layer.initial_state(1))
    >>> y.shape, state.position
    (torch.Size([1, 50, 16]), 50)
    """

    title = "Gated RFA"
    action = "scalar gate g"
    lowest = 0.1
    """Least magnitude of the divisor; φ(k)ᵀφ(k) is 1."""

    def __init__(self, width: int, heads: int = 4, *, features: int | None = None) -> None:
        size = head_size(width, heads)
        features = 2 * size if features is None else features
        check_sizes(features=features)
        super().__init__(width, heads, key_size=2 * features)
        self.query_key_value = projection(width, 3 * width)
        self.gate = projection(width, heads, bias=True)
        self.log_scale = torch.nn.Parameter(torch.zeros(heads, 1, size))
        undecayed(self, "log_scale")
        self.out = projection(width, width)
        self.random: Tensor
        self.register_buffer("random", torch.randn(heads, features, size))

    def empty(self, batch_size: int) -> Parts:
        return {"s": self.zeros(batch_size, self.heads, self.key_size, self.value_size + 1, dtype=self.memory_dtype)}

    def prepare(self, x: Tensor, parts: Parts, keep: Tensor | None) -> Prepared:
        q, k, v = (self.split(part) for part in self.query_key_value(x).chunk(3, -1))
        gate = self.gate(x)
        write = (-gate).sigmoid()[..., None]
        decay = Scalar(functional.logsigmoid(gate))
        return Prepared(OuterProduct(self._features(q), write * self._features(k), with_one(v), decay))

    def _features(self, x: Tensor) -> Tensor:
        angle = torch.einsum("bnhd,hfd->bnhf", unit(x), self.random * self.log_scale.exp())
        return torch.cat((angle.sin(), angle.cos()), -1) * self.random.shape[1] ** -0.5

    def read_out(self, outputs: Tensor, gate: None) -> Tensor:
        total, weight = outputs[..., :-1], outputs[..., -1:]
        divisor = torch.where(weight < 0, -1.0, 1.0) * weight.abs().clamp(min=self.lowest)
        return self.out((total / divisor).flatten(2).to(self.out.weight.dtype))
