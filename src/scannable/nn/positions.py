"""How learned positions start."""

import torch
from jaxtyping import Float
from torch import Tensor


def starting_positions(count: int, width: int, *, sinusoids: bool) -> Float[Tensor, "n d"]:
    """Vectors of mean square 1: noise, or sines and cosines of waves from 2 pi to 2 pi `count` positions long.

    "One position back" is the same rotation everywhere among sinusoids, and something else at each place of noise: a
    head that looks at the token before is learned once instead of `count` times.
    """
    if not sinusoids:
        return torch.randn(count, width)
    frequencies = torch.tensor(float(count)) ** (-torch.arange(0, width, 2) / width)
    angles = torch.arange(count)[:, None] * frequencies
    return 2**0.5 * torch.stack((angles.sin(), angles.cos()), -1).flatten(1)[:, :width]
