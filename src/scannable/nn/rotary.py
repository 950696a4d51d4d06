"""Rotary positions (arXiv 2104.09864): queries and keys turned by angles that grow with their place."""

from functools import cache as remembered

import torch
from jaxtyping import Float
from torch import Tensor

from scannable.nn.device import widest

Rotation = tuple[Tensor, Tensor]
"""Cosines and sines of the angles at some places, (..., n, size / 2)."""

LONGEST_WAVE = 10_000.0


@remembered
def rotations(count: int, size: int, device: torch.device, dtype: torch.dtype) -> Rotation:
    """Those of places 0 to count - 1: pair i of `size` channels turns by 10000^(-2 i / size) from place to place."""
    # They are kept for later, when autograd may have to save them.
    with torch.inference_mode(False), torch.no_grad():
        kind = widest(device)
        speeds = LONGEST_WAVE ** (-torch.arange(0, size, 2, dtype=kind, device=device) / size)
        angles = torch.arange(count, dtype=kind, device=device)[:, None] * speeds
        return angles.cos().to(dtype), angles.sin().to(dtype)


def rotate(x: Float[Tensor, "b h n size"], rotation: Rotation) -> Float[Tensor, "b h n size"]:
    """Channels i and i + size / 2, as one complex number, times e^(i angle)."""
    cosines, sines = rotation
    real, imaginary = x.chunk(2, -1)
    return torch.cat((real * cosines - imaginary * sines, real * sines + imaginary * cosines), -1)
