"""How the linear maps of recurrent layers start."""

from math import log

import torch
from torch.nn import functional

from scannable.nn.projection import projection, step_size_bias


def test_weights_have_the_variance_of_their_fan_in_and_biases_are_none() -> None:
    torch.manual_seed(0)
    linear = projection(400, 500, bias=True)
    # 200,000 numbers: the error of their deviation is 1 in sqrt(400,000).
    assert abs(float(linear.weight.detach().std()) * 20 - 1) < 4 * 400_000**-0.5
    assert not linear.bias.any() and projection(4, 5).bias is None


def test_step_sizes_are_even_in_their_logarithm_from_a_thousandth_to_a_tenth() -> None:
    torch.manual_seed(0)
    sizes = functional.softplus(step_size_bias(40_000).detach().double()).log()
    low, high = log(1e-3), log(0.1)
    assert low - 1e-3 < float(sizes.min()) < low + 1e-2 and high - 1e-2 < float(sizes.max()) < high + 1e-3
    # Of a uniform distribution; four standard errors.
    assert abs(float(sizes.mean()) - (low + high) / 2) < 4 * (high - low) / 12**0.5 / 200
