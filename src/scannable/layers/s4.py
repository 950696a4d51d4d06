"""S4 with a diagonal state (Gu, Goel, Ré 2022; the diagonal form S4D of Gu et al. 2022)."""

import math

import torch
from torch import Tensor, nn
from torch.nn import functional

from scannable.layers.affine.invariant import DiagonalInvariant
from scannable.layers.affine.layer import AffineLayer, Prepared
from scannable.layers.recurrent import Parts
from scannable.nn.decay import undecayed
from scannable.nn.projection import projection


class S4(AffineLayer):
    """N/2 damped oscillators for each channel, the same at every t: a convolution that can also be stepped.

        s_t = e^(Δ A) ⊙ s_(t-1) + B̄ x_t     y_t = 2 Re(Cᵀ s_t) + D x_t     B̄ = (e^(Δ A) - 1) / A

    A is complex with a negative real part, started at -1/2 + iπ n (S4D-Lin); one of each conjugate pair is kept, hence
    2 Re. B is 1, absorbed in C. The table's e^(-α) is e^(Δ A), which does not depend on t here; S6 is the row where it
    does. GELU and a gated linear unit follow, as published. Every channel is its own head.

    >>> layer = sc.zoo.S4(width=16, heads=2, state_size=8)
    >>> y, state = layer.extend(torch.randn(1, 50, 16), layer.initial_state(1))
    >>> y.shape, state.position
    (torch.Size([1, 50, 16]), 50)
    """

    title = "S4 (diagonal)"
    action = "diagonal gate, constant"

    def __init__(self, width: int, heads: int = 4, *, state_size: int = 64) -> None:
        super().__init__(width, heads)
        if state_size < 2 or state_size % 2:
            raise ValueError(f"state_size={state_size} must be even: states come in conjugate pairs")
        pairs = state_size // 2
        self.log_step_size = nn.Parameter(torch.empty(width).uniform_(math.log(1e-3), math.log(0.1)))
        self.log_damping = nn.Parameter(torch.full((pairs, width), 0.5).log())
        self.frequency = nn.Parameter(math.pi * torch.arange(pairs)[:, None].repeat(1, width))
        self.weight = nn.Parameter(torch.randn(pairs, width, 2) * 0.5**0.5)
        self.skip = nn.Parameter(torch.randn(width))
        undecayed(self, "log_step_size", "log_damping", "frequency", "skip")
        self.out = projection(width, 2 * width, bias=True)

    def empty(self, batch_size: int) -> Parts:
        dtype = torch.complex128 if self.memory_dtype == torch.float64 else torch.complex64
        return {"s": self.zeros(batch_size, *self.frequency.shape, dtype=dtype)}

    def prepare(self, x: Tensor, parts: Parts, keep: Tensor | None) -> Prepared:
        kind = self.memory_dtype
        rate = torch.complex(-self.log_damping.to(kind).exp(), self.frequency.to(kind))
        log_decay = rate * self.log_step_size.to(kind).exp()
        gain = _expm1(log_decay) / rate
        weight = torch.view_as_complex(self.weight.to(kind))
        return Prepared(DiagonalInvariant(x, log_decay, gain, weight), x)

    def read_out(self, outputs: Tensor, gate: Tensor) -> Tensor:
        y = functional.gelu(outputs.to(gate.dtype) + self.skip * gate)
        return functional.glu(self.out(y), -1)


def _expm1(z: Tensor) -> Tensor:
    """e^z - 1 of complex numbers, with all digits where z is small."""
    real = torch.expm1(z.real) * z.imag.cos() - 2 * (z.imag / 2).sin().square()
    return torch.complex(real, z.real.exp() * z.imag.sin())
