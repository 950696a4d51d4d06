"""DeltaProduct (Siems et al. 2025, "Improving state-tracking in linear RNNs via Householder products")."""

import torch
from torch import Tensor, nn
from torch.nn import functional

from scannable.layers.affine.delta_product import DeltaProductRule
from scannable.layers.affine.layer import HeadedLayer, Prepared
from scannable.layers.deltanet import strengths, unit
from scannable.layers.layer import check_sizes
from scannable.layers.recurrent import Parts
from scannable.nn.head_norm import HeadNorm
from scannable.nn.projection import projection, step_size_bias
from scannable.nn.short_convolution import ShortConvolution


class DeltaProduct(HeadedLayer):
    """Several steps of the delta rule for each token, each with its own key, value and strength.

        S_t = E_t S_(t-1) + f_t     E_t = α_t Π_j (I - β_(t,j) k_(t,j) k_(t,j)ᵀ)     y_t = S_tᵀ q_t

    A product of s generalised Householder matrices: with β up to 2, s steps make every orthogonal matrix that differs
    from I in at most s dimensions, such as a rotation (two steps) or a permutation of s + 1 things. Around it are the
    parts of DeltaNet, which is one step without negative eigenvalues.

    Args:
        steps_per_token: s, the paper's n_h.
        negative_eigenvalues: let β reach 2, so that a step can reflect.
        gated: fade the memory once a token, and gate the output, both as in Gated DeltaNet; α_t = 1 otherwise.

    >>> layer = sc.zoo.DeltaProduct(width=16, heads=2, steps_per_token=3)
    >>> y, state = layer.extend(torch.randn(1, 50, 16), layer.initial_state(1))
    >>> y.shape, state.position
    (torch.Size([1, 50, 16]), 50)
    """

    title = "DeltaProduct"
    action = "product of projectors"

    def __init__(
        self,
        width: int,
        heads: int = 4,
        *,
        steps_per_token: int = 2,
        negative_eigenvalues: bool = True,
        gated: bool = False,
    ) -> None:
        super().__init__(width, heads)
        check_sizes(steps_per_token=steps_per_token)
        self.steps_per_token: int = steps_per_token
        self.negative_eigenvalues: bool = negative_eigenvalues
        self.gated: bool = gated
        # Query, then the keys of all steps, then their values.
        channels = (1 + 2 * steps_per_token) * width
        self.query_key_value = projection(width, channels)
        self.convolution = ShortConvolution(channels)
        self.strength = projection(width, steps_per_token * heads)
        if gated:
            self.step_size = projection(width, heads)
            self.step_size_bias = step_size_bias(heads)
            self.log_rate = nn.Parameter(torch.empty(heads).uniform_(1, 16).log())
            self.out_gate = projection(width, width)
        self.norm = HeadNorm(heads, self.value_size)
        self.out = projection(width, width)

    def empty(self, batch_size: int) -> Parts:
        past = self.zeros(batch_size, self.convolution.length - 1, self.query_key_value.out_features)
        return {**super().empty(batch_size), "past": past}

    def prepare(self, x: Tensor, parts: Parts, keep: Tensor | None) -> Prepared:
        steps = self.steps_per_token
        mixed, past = self.convolution(self.query_key_value(x), parts["past"], keep)
        channels = functional.silu(mixed).unflatten(-1, (1 + 2 * steps, self.heads, -1))
        q, k, v = channels.split((1, steps, steps), 2)
        strength = strengths(self.strength(x), self.negative_eigenvalues).unflatten(-1, (steps, self.heads))
        q = unit(q[:, :, 0]) * self.key_size**-0.5
        log_decay = gate = None
        if self.gated:
            log_decay = -self.log_rate.exp() * functional.softplus(self.step_size(x) + self.step_size_bias)
            gate = functional.silu(self.out_gate(x))
        return Prepared(DeltaProductRule(q, unit(k), v, strength, log_decay), gate, {"past": past})

    def read_out(self, outputs: Tensor, gate: Tensor | None) -> Tensor:
        return self.out(self.norm(outputs, gate))
