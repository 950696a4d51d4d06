"""The LSTM (Hochreiter and Schmidhuber 1997), for contrast: it streams, but it is not affine in its state."""

from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence

from scannable.layers.affine.recurrence import Mode
from scannable.layers.layer import LayerState, SequenceLayer


class LSTM(SequenceLayer):
    """Gates that look at the previous output: no scan computes this, and every mode goes step by step.

        c_t = f_t ⊙ c_(t-1) + i_t ⊙ g_t     h_t = o_t ⊙ tanh(c_t)     all gates from x_t and h_(t-1)

    Parallel depth is n, so it has no SPD class.
    """

    title = "LSTM"
    action = "not affine"
    spd_class = "none"

    def __init__(self, width: int, heads: int = 4) -> None:
        super().__init__(width, heads)
        self.cell = nn.LSTM(width, width, batch_first=True)

    def initial_state(self, batch_size: int) -> LayerState:
        return {"h": self.zeros(1, batch_size, self.width), "c": self.zeros(1, batch_size, self.width)}

    def extend(
        self,
        x: Float[Tensor, "b n d"],
        state: LayerState,
        *,
        lengths: Int[Tensor, " b"] | None = None,
        mode: Mode = "chunkwise",
    ) -> tuple[Float[Tensor, "b n d"], LayerState]:
        self.check(x, lengths, mode)
        self.check_state(state, x.shape[0])
        if x.numel() == 0:
            return x, state
        lengths = None if lengths is None else torch.as_tensor(lengths, device=x.device)
        # Not every CPU has an LSTM for autocast.
        with torch.autocast(x.device.type, enabled=False):
            return self._run(x.to(state["h"].dtype), state, lengths)

    def _run(self, x: Tensor, state: LayerState, lengths: Tensor | None) -> tuple[Tensor, LayerState]:
        if lengths is None:
            y, (h, c) = self.cell(x, (state["h"], state["c"]))
            return y, {"h": h, "c": c}
        # A packed sequence has no rows of length 0: those go through for one position, and keep their old state.
        packed: Any = pack_padded_sequence(x, lengths.clamp(min=1).cpu(), batch_first=True, enforce_sorted=False)
        outputs, (h, c) = self.cell(packed, (state["h"], state["c"]))
        y, _ = pad_packed_sequence(outputs, batch_first=True, total_length=x.shape[1])
        moved = (lengths > 0)[:, None]
        return y, {"h": torch.where(moved, h, state["h"]), "c": torch.where(moved, c, state["c"])}
