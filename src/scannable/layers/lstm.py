"""The LSTM (Hochreiter and Schmidhuber 1997), for contrast: it streams, but it is not affine in its state."""

import torch
from torch import Tensor, nn

from scannable.layers.affine.recurrence import Mode
from scannable.layers.recurrent import Parts, RecurrentLayer
from scannable.nn.device import without_autocast
from scannable.nn.state_noise import with_noise

SHUT = 1e4
"""Beside it no other input of a gate is seen."""


class LSTM(RecurrentLayer):
    """Gates that look at the previous output: no scan computes this, and every mode goes step by step.

        c_t = f_t ⊙ c_(t-1) + i_t ⊙ g_t     h_t = o_t ⊙ tanh(c_t)     all gates from x_t and h_(t-1)

    Parallel depth is n, so it has no SPD class.

    Args:
        state_noise: Gaussian noise on the h and on the c that each position starts from, in training only, as a
            fraction of the size of each. `noise` is that of now; `recipes.aids.GrowingStateNoise` lets it grow from
            nothing.

    >>> layer = sc.zoo.LSTM(width=16, heads=2)
    >>> y, state = layer.extend(torch.randn(1, 50, 16), layer.initial_state(1))
    >>> y.shape, state.position
    (torch.Size([1, 50, 16]), 50)
    """

    title = "LSTM"
    action = "not affine"
    spd_class = "none"

    def __init__(self, width: int, heads: int = 4, *, state_noise: float = 0.0) -> None:
        super().__init__(width, heads)
        if not 0 <= state_noise < float("inf"):
            raise ValueError(f"state_noise={state_noise!r} must be 0 or above: a fraction of the size of the state")
        self.cell = nn.LSTM(width, width, batch_first=True)
        self.state_noise: float = state_noise
        self.noise: float = state_noise

    def empty(self, batch_size: int) -> Parts:
        return {"h": self.zeros(batch_size, self.width), "c": self.zeros(batch_size, self.width)}

    def go_on(self, x: Tensor, parts: Parts, keep: Tensor | None, mode: Mode) -> tuple[Tensor, Parts]:
        # Not every CPU has an LSTM for autocast.
        with without_autocast(x.device):
            start = (parts["h"][None], parts["c"][None])
            run = self._noisily if self.training and self.noise else self._run
            y, h, c = run(x.to(parts["h"].dtype), start, keep)
            return y, {"h": h, "c": c[0]}

    def _run(self, x: Tensor, start: tuple[Tensor, Tensor], keep: Tensor | None) -> tuple[Tensor, Tensor, Tensor]:
        if keep is None:
            y, (h, c) = self.cell(x, start)
            return y, h[0], c
        # One more input that shuts the input gate and opens the forget gate where nothing counts: σ(±SHUT) is exactly 0
        # and 1, so c stays. A packed sequence would be one more copy, and would wait for the lengths.
        x = torch.cat((x.where(keep[..., None], 0), (~keep)[..., None].to(x.dtype)), -1)
        into, across, *biases = self.cell.all_weights[0]
        shut = into.new_zeros(4, self.width)
        shut[0], shut[1] = -SHUT, SHUT
        weights = [torch.cat((into, shut.reshape(-1, 1)), 1), across, *biases]
        y, _, c = torch.lstm(x, start, weights, True, 1, 0.0, self.training, False, True)
        lengths = keep.sum(1)
        last = y.gather(1, (lengths - 1).clamp(min=0)[:, None, None].expand(-1, 1, self.width))[:, 0]
        return y, torch.where((lengths > 0)[:, None], last, start[0][0]), c

    def _noisily(self, x: Tensor, start: tuple[Tensor, Tensor], keep: Tensor | None) -> tuple[Tensor, Tensor, Tensor]:
        """The same cell at one position after another, each with noise on the state that it starts from."""
        if keep is not None:
            x = x.where(keep[..., None], 0)
        (h, c), noises = (part[0] for part in start), (torch.randn_like(x), torch.randn_like(x))
        outputs: list[Tensor] = []
        for t, (of_h, of_c) in enumerate(zip(*(noise.unbind(1) for noise in noises), strict=True)):
            before = [with_noise(part, self.noise, (-1,), of) for part, of in ((h, of_h), (c, of_c))]
            new = torch.lstm_cell(x[:, t], before, *self.cell.all_weights[0])
            h, c = new if keep is None else (a.where(keep[:, t, None], b) for a, b in zip(new, (h, c), strict=True))
            outputs.append(h)
        return torch.stack(outputs, 1), h, c[None]
