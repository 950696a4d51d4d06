"""Mamba (Gu and Dao 2023, "Mamba: linear-time sequence modeling with selective state spaces")."""

from torch import Tensor
from torch.nn import functional

from scannable.layers.affine.layer import AffineLayer, Prepared
from scannable.layers.layer import check_sizes
from scannable.layers.recurrent import Parts
from scannable.layers.s6 import SelectiveStateSpace
from scannable.nn.projection import projection
from scannable.nn.short_convolution import ShortConvolution


class Mamba(AffineLayer):
    """S6 behind a short convolution, gated; wider inside than outside, and with no MLP beside it.

        x_t, z_t = W u_t     y_t = W_out (S6(SiLU(conv(x)))_t ⊙ SiLU(z_t))

    Every channel is its own head. Weights can be exchanged with `transformers` (see `scannable.hf.mamba_weights`).

    >>> layer = sc.zoo.Mamba(width=16, heads=2, state_size=8)
    >>> y, state = layer.extend(torch.randn(1, 50, 16), layer.initial_state(1))
    >>> y.shape, state.position
    (torch.Size([1, 50, 16]), 50)
    """

    title = "Mamba"
    action = "diagonal gate Ā(x_t)"
    usual_mlp = False

    def __init__(
        self,
        width: int,
        heads: int = 4,
        *,
        state_size: int = 16,
        expand: int = 2,
        step_rank: int | None = None,
        convolution: int = 4,
        convolution_bias: bool = True,
        bias: bool = False,
    ) -> None:
        super().__init__(width, heads)
        check_sizes(state_size=state_size, expand=expand, convolution=convolution)
        self.inner: int = expand * width
        self.state_size: int = state_size
        self.into = projection(width, 2 * self.inner, bias=bias)
        self.convolution = ShortConvolution(self.inner, convolution, bias=convolution_bias)
        self.space = SelectiveStateSpace(self.inner, state_size, -(-width // 16) if step_rank is None else step_rank)
        self.out = projection(self.inner, width, bias=bias)

    def empty(self, batch_size: int) -> Parts:
        return {
            "s": self.zeros(batch_size, self.state_size, self.inner, dtype=self.memory_dtype),
            "past": self.zeros(batch_size, self.convolution.length - 1, self.inner),
        }

    def prepare(self, x: Tensor, parts: Parts, keep: Tensor | None) -> Prepared:
        inner, gate = self.into(x).chunk(2, -1)
        inner, past = self.convolution(inner, parts["past"], keep)
        inner = functional.silu(inner)
        return Prepared(self.space.recurrence(inner), (inner, gate), {"past": past})

    def read_out(self, outputs: Tensor, gate: tuple[Tensor, Tensor]) -> Tensor:
        inner, out_gate = gate
        return self.out(self.space.read(outputs, inner) * functional.silu(out_gate))
