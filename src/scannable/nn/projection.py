"""How the linear maps of recurrent layers start."""

import math

import torch
from torch import nn


def projection(width_in: int, width_out: int, *, bias: bool = False) -> nn.Linear:
    """A linear map with weights of variance 1 / fan-in."""
    linear = nn.Linear(width_in, width_out, bias=bias)
    nn.init.normal_(linear.weight, std=width_in**-0.5)
    if bias:
        nn.init.zeros_(linear.bias)
    return linear


def step_size_bias(count: int, lowest: float = 1e-3, highest: float = 0.1) -> nn.Parameter:
    """A bias under a softplus that makes step sizes of `lowest` to `highest`, evenly in their logarithm."""
    size = torch.empty(count).uniform_(math.log(lowest), math.log(highest)).exp()
    return nn.Parameter(size + torch.log(-torch.expm1(-size)))
