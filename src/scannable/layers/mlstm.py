"""mLSTM (Beck et al. 2024, "xLSTM: extended long short-term memory")."""

import torch
from torch import Tensor
from torch.nn import functional

from scannable.layers.affine.actions import Scalar
from scannable.layers.affine.chunkwise import OuterProduct
from scannable.layers.affine.layer import HeadedLayer, Prepared
from scannable.layers.linear_attention import with_one
from scannable.layers.recurrent import Parts
from scannable.nn.device import widest
from scannable.nn.head_norm import HeadNorm
from scannable.nn.projection import projection

LOWEST_LOG_FORGET = -1e4
"""Below this a gate is 0 in every dtype, and sums of many are still exact enough to be subtracted in float64."""


class MLSTM(HeadedLayer):
    """Exponential input gates, kept in range by a running maximum.

        C_t = f_t C_(t-1) + i_t k_t v_tᵀ     n_t = f_t n_(t-1) + i_t k_t     y_t = C_tᵀ q_t / max(|n_tᵀ q_t|, 1)
        i_t = exp(ĩ_t)                       f_t = σ(f̃_t)

    i_t overflows, so C_t and n_t are held times exp(-m_t), where m_t = max(m_(t-1) + log f_t, ĩ_t) is the stabiliser;
    the table's f_t and i_t are then f_t exp(m_(t-1) - m_t) and i_t exp(-m_t), neither above 1. n is one more value of
    the memory. Gates are capped softly at 15 and outputs gated by σ(W x_t), as in xLSTM-7B, which has no convolution.

    >>> layer = sc.zoo.MLSTM(width=16, heads=2)
    >>> y, state = layer.extend(torch.randn(1, 50, 16), layer.initial_state(1))
    >>> y.shape, state.position
    (torch.Size([1, 50, 16]), 50)
    """

    title = "mLSTM"
    action = "scalar gate f"
    eps = 1e-6
    cap = 15.0

    def __init__(self, width: int, heads: int = 4) -> None:
        super().__init__(width, heads)
        self.query_key_value = projection(width, 3 * width)
        self.gates = projection(width, 2 * heads, bias=True)
        with torch.no_grad():
            # Inputs are let in cautiously and the past is kept: the authors' start.
            self.gates.bias[:heads].fill_(-10.0)
            self.gates.bias[heads:].copy_(torch.linspace(3.0, 6.0, heads))
            self.gates.weight.mul_(0.1)
        self.out_gate = projection(width, width)
        self.norm = HeadNorm(heads, self.value_size)
        self.out = projection(width, width)

    def empty(self, batch_size: int) -> Parts:
        memory = self.zeros(batch_size, self.heads, self.key_size, self.value_size + 1, dtype=self.memory_dtype)
        return {"s": memory, "stabiliser": self.zeros(batch_size, self.heads, dtype=self.memory_dtype)}

    def prepare(self, x: Tensor, parts: Parts, keep: Tensor | None) -> Prepared:
        q, k, v = (self.split(part) for part in self.query_key_value(x).chunk(3, -1))
        log_input, log_forget = self.log_gates(x)
        if keep is not None:
            log_input = log_input.where(keep[..., None], -torch.inf)
            log_forget = log_forget.where(keep[..., None], 0)
        recurrence, stabiliser = stabilised(q * self.key_size**-0.5, k, v, log_input, log_forget, parts["stabiliser"])
        return Prepared(recurrence, (stabiliser, self.out_gate(x).sigmoid()), {"stabiliser": stabiliser[:, -1]})

    def log_gates(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """ĩ_t, and log f_t."""
        log_input, forget = (self.cap * torch.tanh(self.gates(x).to(self.memory_dtype) / self.cap)).chunk(2, -1)
        return log_input, functional.logsigmoid(forget)

    def read_out(self, outputs: Tensor, gate: tuple[Tensor, Tensor]) -> Tensor:
        stabiliser, out_gate = gate
        return self.out(self.norm(normalised(outputs, stabiliser, self.eps), out_gate))


def stabilised(
    q: Tensor, k: Tensor, v: Tensor, log_input: Tensor, log_forget: Tensor, start: Tensor
) -> tuple[OuterProduct, Tensor]:
    """The recurrence of C and n times exp(-m_t), and m_t at every t; `start` is m before the first."""
    total, highest = running(log_input, log_forget)
    m = (total + torch.maximum(highest, start[:, None].to(total.dtype))).to(start.dtype)
    before = torch.cat((start[:, None], m[:, :-1]), 1)
    write = (log_input - m).exp()[..., None]
    return OuterProduct(q, k * write, with_one(v), Scalar(log_forget + before - m)), m


def running(log_input: Tensor, log_forget: Tensor) -> tuple[Tensor, Tensor]:
    """F_t and max_j (ĩ_j - F_j), with F the sum of log f: m is a recurrence too, over (max, +).

        m_t = F_t + max(m_start, max_j (ĩ_j - F_j))

    In float64, because F grows with the length; a rough m would change no output, but it keeps less in range.
    """
    total = log_forget.to(widest(log_forget.device)).clamp(min=LOWEST_LOG_FORGET).cumsum(1)
    return total, (log_input - total).cummax(1).values


def normalised(outputs: Tensor, stabiliser: Tensor, eps: float) -> Tensor:
    """C_tᵀ q_t / max(|n_tᵀ q_t|, 1), from both times exp(-m_t)."""
    total, weight = outputs[..., :-1], outputs[..., -1:]
    return total / (torch.maximum(weight.abs(), (-stabiliser).exp()[..., None]) + eps)
