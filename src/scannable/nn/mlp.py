"""What stands between the two maps of an MLP."""

from torch import Tensor
from torch.nn import functional as F


def activated(inner: Tensor, kind: str) -> Tensor:
    """A tanh GELU, relu(z)^2, or with SwiGLU silu(z) * z' of both halves."""
    if kind == "gelu":
        return F.gelu(inner, approximate="tanh")
    if kind == "relu2":
        return F.relu(inner).square()
    gate, value = inner.chunk(2, -1)
    return F.silu(gate) * value
