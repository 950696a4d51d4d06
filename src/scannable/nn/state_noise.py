"""Gaussian noise on the states of a model in training: a state that holds in spite of it absorbs small errors, which
otherwise grow with the length.

Kin to arXiv 2507.02782 (Buitrago Ruiz and Gu), where recurrent models that start from noisy states in training go on
beyond its lengths.
"""

import torch
from torch import Tensor


def with_noise(states: Tensor, noise: float, axes: tuple[int, ...], drawn: Tensor | None = None) -> Tensor:
    """The states, with noise of `noise` times their size over these axes.

    Args:
        drawn: normal numbers in the shape of the states; drawn here, unless given.
    """
    # Relative, or states would grow until the noise no longer matters.
    size = states.detach().square().mean(axes, keepdim=True).sqrt()
    return states + noise * size * (torch.randn_like(states) if drawn is None else drawn)
