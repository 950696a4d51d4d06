"""A norm for each head by itself."""

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.nn import functional


class HeadNorm(nn.Module):
    """RMSNorm over each head by itself, with one weight for each channel; then times a gate, if there is one."""

    def __init__(self, heads: int, size: int, eps: float = 1e-5) -> None:
        super().__init__()
        if not eps > 0:
            raise ValueError(f"eps={eps!r} must be above 0")
        self.eps: float = eps
        self.weight = nn.Parameter(torch.ones(heads, size))

    def forward(
        self, x: Float[Tensor, "b n h v"], gate: Float[Tensor, "b n w"] | None = None
    ) -> Float[Tensor, "b n w"]:
        y = functional.rms_norm(x, x.shape[-1:], eps=self.eps) * self.weight
        y = y.flatten(2).to(self.weight.dtype)
        return y if gate is None else y * gate
