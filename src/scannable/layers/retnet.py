"""RetNet (Sun et al. 2023, "Retentive network")."""

import math

import torch
from jaxtyping import Int
from torch import Tensor
from torch.nn import functional

from scannable.layers.affine.actions import Scalar
from scannable.layers.affine.chunkwise import OuterProduct
from scannable.layers.affine.layer import HeadedLayer, Prepared
from scannable.layers.layer import head_size
from scannable.layers.recurrent import Parts
from scannable.nn.head_norm import HeadNorm
from scannable.nn.projection import projection


class RetNet(HeadedLayer):
    """A decay that never changes, a different one for each head.

        S_t = γ S_(t-1) + k_t v_tᵀ     y_t = S_tᵀ q_t     γ = 1 - 2^(-5 - head)

    q and k are rotated by their position (with the angles of rotary embeddings), values are twice as wide as keys,
    heads are normalised, and SiLU(W x_t) gates the output: as published. The state carries the position of each row.

    >>> layer = sc.zoo.RetNet(width=16, heads=2)
    >>> y, state = layer.extend(torch.randn(1, 50, 16), layer.initial_state(1))
    >>> y.shape, state.position
    (torch.Size([1, 50, 16]), 50)
    """

    title = "RetNet"
    action = "scalar gate gamma"

    def __init__(self, width: int, heads: int = 4) -> None:
        super().__init__(width, heads, value_size=2 * head_size(width, heads))
        if self.key_size % 2:
            raise ValueError(
                f"width={width} with heads={heads} makes keys of {self.key_size}; rotation needs even ones"
            )
        self.query_key = projection(width, 2 * width)
        self.value_gate = projection(width, 4 * width)
        self.norm = HeadNorm(heads, self.value_size)
        self.out = projection(2 * width, width)

    def empty(self, batch_size: int) -> Parts:
        return {**super().empty(batch_size), "position": self.zeros(batch_size, dtype=torch.int64)}

    def prepare(self, x: Tensor, parts: Parts, keep: Tensor | None) -> Prepared:
        b, n, _ = x.shape
        place = parts["position"][:, None] + torch.arange(n, device=x.device)
        q, k = (rotated(self.split(part), place) for part in self.query_key(x).chunk(2, -1))
        v, gate = self.value_gate(x).chunk(2, -1)
        head = torch.arange(self.heads, device=x.device, dtype=self.memory_dtype)
        decay = Scalar(torch.log1p(-torch.exp2(-5 - head)).expand(b, n, -1))
        consumed = n if keep is None else keep.sum(1)
        return Prepared(
            OuterProduct(q, k * self.key_size**-0.5, self.split(v), decay),
            functional.silu(gate),
            {"position": parts["position"] + consumed},
        )

    def read_out(self, outputs: Tensor, gate: Tensor) -> Tensor:
        return self.out(self.norm(outputs, gate))


def rotated(x: Tensor, place: Int[Tensor, "b n"], base: float = 10_000.0) -> Tensor:
    """Each pair (x_i, x_(i + size/2)) turned by place · base^(-2i / size)."""
    half = x.shape[-1] // 2
    # At a million positions float32 has lost the fast pairs' angle. So in whole parts of a turn, 2^64 to each: int64
    # goes round as an angle does.
    parts = [round(2**64 * base ** (-i / half) / math.tau) for i in range(half)]
    turned = (place[..., None] * torch.tensor(parts, device=x.device))[:, :, None]
    angle = turned.to(torch.promote_types(x.dtype, torch.float32)) * (math.tau / 2**64)
    cosine, sine = angle.cos().to(x.dtype), angle.sin().to(x.dtype)
    first, second = x[..., :half], x[..., half:]
    return torch.cat((first * cosine - second * sine, first * sine + second * cosine), -1)
