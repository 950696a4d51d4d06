"""S6, the selective state space (Gu and Dao 2023), without the block that Mamba puts around it."""

import torch
from torch import Tensor, nn
from torch.nn import functional

from scannable.layers.affine.layer import AffineLayer, Prepared
from scannable.layers.affine.selective import Selective
from scannable.layers.layer import check_sizes
from scannable.layers.recurrent import Parts
from scannable.nn.decay import undecayed
from scannable.nn.projection import projection, step_size_bias


class SelectiveStateSpace(nn.Module):
    """Δ, B and C as functions of the input, A and D as parameters: what S6 and Mamba share.

        S_t = exp(Δ_t A) ⊙ S_(t-1) + B_t (Δ_t x_t)ᵀ     y_t = S_tᵀ C_t + D x_t     Δ_t = softplus(W_Δ W x_t + b)

    The input's B̄ is Δ B, the first order of the exact (e^(ΔA) - 1)/A B, as in the authors' code.
    """

    def __init__(self, channels: int, state_size: int, step_rank: int) -> None:
        super().__init__()
        self.sizes: tuple[int, int, int] = (step_rank, state_size, state_size)
        self.selection = projection(channels, sum(self.sizes))
        self.step_size = projection(step_rank, channels)
        self.step_size_bias = step_size_bias(channels)
        self.log_rate = nn.Parameter(torch.arange(1, state_size + 1).log().repeat(channels, 1))
        self.skip = nn.Parameter(torch.ones(channels))
        undecayed(self, "log_rate", "skip")

    def recurrence(self, x: Tensor) -> Selective:
        step, key, query = self.selection(x).split(self.sizes, -1)
        step_size = functional.softplus(self.step_size(step) + self.step_size_bias)
        return Selective(x, step_size, -self.log_rate.T.exp().contiguous(), key, query)

    def read(self, outputs: Tensor, x: Tensor) -> Tensor:
        return torch.addcmul(outputs.to(x.dtype), self.skip, x)


class S6(AffineLayer):
    """The selective state space on the input itself, and a linear map after it. Every channel is its own head.

    >>> layer = sc.zoo.S6(width=16, heads=2, state_size=8)
    >>> y, state = layer.extend(torch.randn(1, 50, 16), layer.initial_state(1))
    >>> y.shape, state.position
    (torch.Size([1, 50, 16]), 50)
    """

    title = "S6"
    action = "diagonal gate e^(-alpha_t)"

    def __init__(self, width: int, heads: int = 4, *, state_size: int = 16) -> None:
        super().__init__(width, heads)
        check_sizes(state_size=state_size)
        self.space = SelectiveStateSpace(width, state_size, max(1, -(-width // 16)))
        self.state_size: int = state_size
        self.out = projection(width, width)

    def empty(self, batch_size: int) -> Parts:
        return {"s": self.zeros(batch_size, self.state_size, self.width, dtype=self.memory_dtype)}

    def prepare(self, x: Tensor, parts: Parts, keep: Tensor | None) -> Prepared:
        return Prepared(self.space.recurrence(x), x)

    def read_out(self, outputs: Tensor, gate: Tensor) -> Tensor:
        return self.out(self.space.read(outputs, gate))
