"""An MLP that sees a few positions: what the blocks of Transformer-PSM have behind attention, as a layer of its own."""

from torch import Tensor

from scannable.layers.affine.recurrence import Mode
from scannable.layers.layer import check_sizes
from scannable.layers.recurrent import Parts, RecurrentLayer, owned
from scannable.nn.block_config import MLP, BlockConfig
from scannable.nn.mlp import activated
from scannable.nn.projection import projection
from scannable.nn.short_convolution import ShortConvolution


class ConvolvedMLP(RecurrentLayer):
    """An MLP with short causal convolutions before it and inside it.

        z_t = W_in (x_t + conv(x)_t)     y_t = W_out a(z_t + conv(z)_t)

    These are points C and D of Canon layers (arXiv 2512.17351); `Attention` has A and B. In a stack both in turn are
    the blocks of Transformer-PSM, so that they can be compared with attention over everything. It needs no heads.

    Args:
        activation: "gelu" of four times the width; "swiglu" of as many parameters; or "relu2".
        convolution: positions that each convolution looks at, at least 2.
        bias: of the projections.

    >>> layer = sc.zoo.ConvolvedMLP(width=16)
    >>> y, state = layer.extend(torch.randn(1, 50, 16), layer.initial_state(1))
    >>> y.shape, state.position
    (torch.Size([1, 50, 16]), 50)
    """

    title = "MLP with convolutions"
    action = "no state update: inputs kept"
    usual_mlp = False

    def __init__(
        self, width: int, heads: int = 4, *, activation: MLP = "gelu", convolution: int = 4, bias: bool = True
    ) -> None:
        super().__init__(width, heads)
        check_sizes(convolution=convolution)
        if convolution < 2:
            raise ValueError("convolution=1 sees no other position; choose 2 or more, or with_mlp of another layer")
        if type(bias) is not bool:
            raise ValueError(f"bias={bias!r} must be True or False")
        inner = BlockConfig(mlp=activation).inner(width)
        self.activation: str = activation
        self.into = projection(width, 2 * inner if activation == "swiglu" else inner, bias=bias)
        self.out = projection(inner, width, bias=bias)
        self.convolution = ShortConvolution(width, convolution)
        self.inner_convolution = ShortConvolution(self.into.out_features, convolution)

    def empty(self, batch_size: int) -> Parts:
        before = self.convolution.length - 1
        return {
            "past": self.zeros(batch_size, before, self.width),
            "inner_past": self.zeros(batch_size, before, len(self.inner_convolution.weight)),
        }

    def go_on(self, x: Tensor, parts: Parts, keep: Tensor | None, mode: Mode) -> tuple[Tensor, Parts]:
        if keep is not None:
            # Before anything is computed from it: what is not a number stays that, times 0.
            x = x.where(keep[..., None], 0)
        seen, past = self.convolution(x, parts["past"], keep)
        inner = self.into(x + seen)
        seen, inner_past = self.inner_convolution(inner, parts["inner_past"], keep)
        y = self.out(activated(inner + seen, self.activation))
        return y, owned({"past": past, "inner_past": inner_past})
