"""The element-wise gated RNN: QRNN (Bradbury et al. 2017) and SRU (Lei et al. 2018) are of this kind."""

import torch
from torch import Tensor
from torch.nn import functional

from scannable.layers.affine.elementwise import Elementwise
from scannable.layers.affine.layer import AffineLayer, Prepared
from scannable.layers.recurrent import Parts
from scannable.nn.projection import projection
from scannable.nn.short_convolution import last_inputs


class GatedRNN(AffineLayer):
    """Gates that do not look at the state, so that it is affine.

        h_t = f_t ⊙ h_(t-1) + (1 - f_t) ⊙ z_t     y_t = o_t ⊙ h_t     z, f, o from x_(t-1) and x_t

    QRNN's fo-pooling with a window of two: z_t through tanh, f_t and o_t through σ. Every channel is its own head.

    >>> layer = sc.zoo.GatedRNN(width=16, heads=2)
    >>> y, state = layer.extend(torch.randn(1, 50, 16), layer.initial_state(1))
    >>> y.shape, state.position
    (torch.Size([1, 50, 16]), 50)
    """

    title = "Gated RNN (QRNN)"
    action = "diagonal gate f_t"

    def __init__(self, width: int, heads: int = 4) -> None:
        super().__init__(width, heads)
        self.gates = projection(2 * width, 3 * width, bias=True)

    def empty(self, batch_size: int) -> Parts:
        return {
            "s": self.zeros(batch_size, self.width, dtype=self.memory_dtype),
            "past": self.zeros(batch_size, 1, self.width),
        }

    def prepare(self, x: Tensor, parts: Parts, keep: Tensor | None) -> Prepared:
        window = torch.cat((parts["past"], x), 1)
        z, f, o = self.gates(torch.cat((window[:, :-1], x), -1)).chunk(3, -1)
        recurrence = Elementwise(functional.logsigmoid(f), (-f).sigmoid() * z.tanh())
        return Prepared(recurrence, o.sigmoid(), {"past": last_inputs(window, 1, keep)})

    def read_out(self, outputs: Tensor, gate: Tensor) -> Tensor:
        return outputs.to(gate.dtype) * gate
