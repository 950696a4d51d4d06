"""RWKV-7 (Peng et al. 2025, "RWKV-7 'Goose' with expressive dynamic state evolution")."""

import math

import torch
from torch import Tensor, nn
from torch.nn import functional

from scannable.layers.affine.actions import DiagonalPlusRankOne
from scannable.layers.affine.chunkwise import OuterProduct
from scannable.layers.affine.layer import HeadedLayer, Prepared
from scannable.layers.recurrent import Parts
from scannable.nn.decay import undecayed
from scannable.nn.projection import projection
from scannable.nn.short_convolution import last_inputs


class RWKV7(HeadedLayer):
    """A diagonal decay and a delta rule whose strength is a vector.

        S_t = (diag(w_t) - (a_t ⊙ κ_t) κ_tᵀ) S_(t-1) + k_t v_tᵀ     y_t = S_tᵀ r_t
        w_t = exp(-e^(-1/2) σ(·))     a_t = σ(·)     κ_t = k_t ⊙ ξ, of unit length

    The time mixing of the paper: each projection sees its own mix of x_t and x_(t-1), w, a and the output gate come
    through low-rank maps, heads are normalised, and (r_t ⊙ ρ)ᵀ k_t v_t is added to what is read. Left out: the values
    of the first layer that later ones mix in, for a layer stands alone here. The paper writes the state transposed.

    >>> layer = sc.zoo.RWKV7(width=16, heads=2, rank=4)
    >>> y, state = layer.extend(torch.randn(1, 50, 16), layer.initial_state(1))
    >>> y.shape, state.position
    (torch.Size([1, 50, 16]), 50)
    """

    title = "RWKV-7"
    action = "diagonal gate plus rank one"
    mixes = ("r", "w", "k", "v", "a", "g")

    def __init__(self, width: int, heads: int = 4, *, rank: int = 32) -> None:
        super().__init__(width, heads)
        self.mix = nn.Parameter(torch.linspace(0, 1, width).repeat(len(self.mixes), 1))
        self.receptance = projection(width, width)
        self.key = projection(width, width)
        self.value = projection(width, width)
        self.decay = _low_rank(width, rank, nn.Tanh(), torch.linspace(-6, 0, width))
        self.strength = _low_rank(width, rank, nn.Identity())
        self.gate = nn.Sequential(projection(width, rank), nn.Sigmoid(), projection(rank, width))
        self.erased_key = nn.Parameter(torch.full((width,), 0.85))
        self.strength_in_key = nn.Parameter(torch.ones(width))
        self.bonus = nn.Parameter(torch.zeros(heads, self.key_size))
        undecayed(self, "mix", "erased_key", "strength_in_key", "bonus")
        self.norm = nn.GroupNorm(heads, width, eps=64e-5)
        self.out = projection(width, width)

    def empty(self, batch_size: int) -> Parts:
        return {**super().empty(batch_size), "past": self.zeros(batch_size, 1, self.width)}

    def prepare(self, x: Tensor, parts: Parts, keep: Tensor | None) -> Prepared:
        window = torch.cat((parts["past"], x), 1)
        change = window[:, :-1] - x
        r_in, w_in, k_in, v_in, a_in, g_in = (torch.addcmul(x, change, mix) for mix in self.mix)
        r, k, v = self.split(self.receptance(r_in)), self.key(k_in), self.split(self.value(v_in))
        log_decay = self.split(-(math.e**-0.5) * self.decay(w_in).sigmoid())
        strength = self.strength(a_in).sigmoid()
        erased = functional.normalize(self.split(k * self.erased_key), dim=-1)
        k = self.split(k * (1 + (strength - 1) * self.strength_in_key))
        action = DiagonalPlusRankOne(log_decay, erased * self.split(strength), -erased)
        bonus = (r * k * self.bonus).sum(-1, keepdim=True) * v
        return Prepared(OuterProduct(r, k, v, action), (bonus, self.gate(g_in)), {"past": last_inputs(window, 1, keep)})

    def read_out(self, outputs: Tensor, gate: tuple[Tensor, Tensor]) -> Tensor:
        bonus, out_gate = gate
        y = self.norm(outputs.flatten(2).flatten(0, 1).to(bonus.dtype)).unflatten(0, outputs.shape[:2])
        return self.out((y + bonus.flatten(2)) * out_gate)


def _low_rank(width: int, rank: int, between: nn.Module, bias: Tensor | float = 0.0) -> nn.Sequential:
    last = projection(rank, width, bias=True)
    with torch.no_grad():
        last.bias.add_(bias)
    return nn.Sequential(projection(width, rank), between, last)
