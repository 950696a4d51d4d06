"""The linear time-invariant dynamical system of the paper's appendix, with a dense matrix."""

import torch
from torch import Tensor, nn

from scannable.layers.affine.invariant import DenseInvariant
from scannable.layers.affine.layer import AffineLayer, Prepared
from scannable.layers.recurrent import Parts
from scannable.nn.projection import projection


class DenseLTI(AffineLayer):
    """Any matrix A, the same at every t.

        s_(t+1) = A s_t + B x_t     y_t = C s_t + D x_t     s_0 = 0

    Output t reads the state before x_t enters it, as in the definition; x_t itself comes through D. A starts as a
    rotation times 0.99, so that a state neither explodes nor is gone at once. The state is one vector: heads change
    nothing.

    >>> layer = sc.zoo.DenseLTI(width=16, heads=2)
    >>> y, state = layer.extend(torch.randn(1, 50, 16), layer.initial_state(1))
    >>> y.shape, state.position
    (torch.Size([1, 50, 16]), 50)
    """

    title = "Dense LTI system"
    action = "dense matrix, constant"

    def __init__(self, width: int, heads: int = 4) -> None:
        super().__init__(width, heads)
        self.matrix = nn.Parameter(torch.empty(width, width))
        if not self.matrix.is_meta:
            nn.init.orthogonal_(self.matrix, gain=0.99)
        self.into = projection(width, width)
        self.out = projection(width, width)
        self.skip = projection(width, width)

    def empty(self, batch_size: int) -> Parts:
        return {"s": self.zeros(batch_size, self.width, 1, dtype=self.memory_dtype)}

    def prepare(self, x: Tensor, parts: Parts, keep: Tensor | None) -> Prepared:
        return Prepared(DenseInvariant(self.matrix, self.into(x)), x)

    def read_out(self, outputs: Tensor, gate: Tensor) -> Tensor:
        return self.out(outputs.to(gate.dtype)) + self.skip(gate)
