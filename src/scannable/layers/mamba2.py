"""Mamba-2 (Dao and Gu 2024, "Transformers are SSMs")."""

from collections.abc import Sequence

import torch
from torch import Tensor, nn
from torch.nn import functional

from scannable.layers.affine.actions import Scalar
from scannable.layers.affine.chunkwise import OuterProduct
from scannable.layers.affine.layer import AffineLayer, Prepared
from scannable.layers.layer import check_sizes
from scannable.layers.recurrent import Parts
from scannable.nn.decay import undecayed
from scannable.nn.projection import projection, step_size_bias
from scannable.nn.short_convolution import ShortConvolution


class Mamba2(AffineLayer):
    """Mamba with one decay for each head, which makes it linear attention with a scalar gate.

        S_t = exp(-a Δ_t) S_(t-1) + B_t (Δ_t x_t)ᵀ     y_t = S_tᵀ C_t + D x_t     Δ_t = softplus(w u_t + b)

    B_t is the key and C_t the query, shared by all heads of a group. One short convolution runs over x, B and C
    together; SiLU(z) gates the output before its norm. Weights can be exchanged with `transformers`.

    >>> layer = sc.zoo.Mamba2(width=16, heads=2, state_size=8)
    >>> y, state = layer.extend(torch.randn(1, 50, 16), layer.initial_state(1))
    >>> y.shape, state.position
    (torch.Size([1, 50, 16]), 50)
    """

    title = "Mamba-2"
    action = "scalar gate e^(-a Δ_t)"
    usual_mlp = False

    def __init__(
        self,
        width: int,
        heads: int = 4,
        *,
        state_size: int = 128,
        expand: int = 2,
        groups: int = 1,
        convolution: int = 4,
        convolution_bias: bool = True,
        bias: bool = False,
        eps: float = 1e-5,
        step_size_limits: Sequence[float | None] = (0.0, None),
    ) -> None:
        super().__init__(width, heads)
        check_sizes(state_size=state_size, expand=expand, groups=groups, convolution=convolution)
        self.inner: int = expand * width
        if self.inner % heads or heads % groups:
            raise ValueError(
                f"expand * width = {self.inner} must be a multiple of heads={heads}, and that one of groups={groups}"
            )
        self.groups: int = groups
        self.state_size: int = state_size
        self.limits: tuple[float | None, float | None] = (step_size_limits[0], step_size_limits[1])
        mixed = self.inner + 2 * groups * state_size
        self.sizes: tuple[int, int, int] = (self.inner, mixed, heads)
        self.into = projection(width, sum(self.sizes), bias=bias)
        self.convolution = ShortConvolution(mixed, convolution, bias=convolution_bias)
        self.step_size_bias = step_size_bias(heads)
        self.log_rate = nn.Parameter(torch.arange(1, heads + 1).log())
        self.skip = nn.Parameter(torch.ones(heads))
        undecayed(self, "log_rate", "skip")
        self.norm = nn.RMSNorm(self.inner, eps=eps)
        self.out = projection(self.inner, width, bias=bias)

    def empty(self, batch_size: int) -> Parts:
        head_size = self.inner // self.heads
        return {
            "s": self.zeros(batch_size, self.heads, self.state_size, head_size, dtype=self.memory_dtype),
            "past": self.zeros(batch_size, self.convolution.length - 1, self.sizes[1]),
        }

    def prepare(self, x: Tensor, parts: Parts, keep: Tensor | None) -> Prepared:
        gate, mixed, step = self.into(x).split(self.sizes, -1)
        mixed, past = self.convolution(mixed, parts["past"], keep)
        keys = self.groups * self.state_size
        inner, key, query = functional.silu(mixed).split((self.inner, keys, keys), -1)
        inner = inner.unflatten(-1, (self.heads, -1))
        step_size = functional.softplus(step + self.step_size_bias).clamp(min=self.limits[0], max=self.limits[1])
        decay = Scalar(-self.log_rate.exp() * step_size)
        recurrence = OuterProduct(self._of_heads(query), self._of_heads(key), inner * step_size[..., None], decay)
        return Prepared(recurrence, (inner, gate), {"past": past})

    def _of_heads(self, x: Tensor) -> Tensor:
        """One for each head; where all share one, it stays one."""
        x = x.unflatten(-1, (self.groups, self.state_size))
        return x if self.groups == 1 else x.repeat_interleave(self.heads // self.groups, 2)

    def read_out(self, outputs: Tensor, gate: tuple[Tensor, Tensor]) -> Tensor:
        inner, out_gate = gate
        y = torch.addcmul(outputs.to(inner.dtype), self.skip[:, None], inner).flatten(2)
        return self.out(self.norm(y * functional.silu(out_gate)))
