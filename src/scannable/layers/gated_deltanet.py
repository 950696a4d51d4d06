"""Gated DeltaNet (Yang, Kautz, Hatamizadeh 2024, "Gated delta networks")."""

import torch
from torch import Tensor, nn
from torch.nn import functional

from scannable.layers.affine.chunkwise import DeltaRule
from scannable.layers.deltanet import DeltaNet
from scannable.nn.decay import undecayed
from scannable.nn.projection import projection, step_size_bias


class GatedDeltaNet(DeltaNet):
    """The delta rule on a memory that fades, and an output gate.

        S_t = α_t (I - β_t k_t k_tᵀ) S_(t-1) + β_t k_t v_tᵀ     α_t = exp(-exp(a) softplus(w x_t + b))

    The decay is that of Mamba-2. Around it: the parts of DeltaNet, and SiLU(W x_t) times the normalised output.

    >>> layer = sc.zoo.GatedDeltaNet(width=16, heads=2)
    >>> y, state = layer.extend(torch.randn(1, 50, 16), layer.initial_state(1))
    >>> y.shape, state.position
    (torch.Size([1, 50, 16]), 50)
    """

    title = "Gated DeltaNet"
    action = "scalar gate times projector"

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
        super().__init__(
            width,
            heads,
            negative_eigenvalues=negative_eigenvalues,
            key_size=key_size,
            value_size=value_size,
            convolution=convolution,
            eps=eps,
        )
        self.step_size = projection(width, heads)
        self.step_size_bias = step_size_bias(heads)
        self.log_rate = nn.Parameter(torch.empty(heads).uniform_(1, 16).log())
        undecayed(self, "log_rate")
        self.out_gate = projection(width, heads * self.value_size)

    def rule(self, x: Tensor, q: Tensor, k: Tensor, v: Tensor, strength: Tensor) -> DeltaRule:
        log_decay = -self.log_rate.exp() * functional.softplus(self.step_size(x) + self.step_size_bias)
        return DeltaRule(q, k, v, strength, log_decay)

    def gate(self, x: Tensor) -> Tensor:
        return functional.silu(self.out_gate(x))
