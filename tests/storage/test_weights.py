"""A file of weights bounds what is built for it, before memory is taken."""

import pytest
import torch
from torch import nn

from scannable.storage.weights import _few_parameters


def test_a_model_may_have_twice_the_numbers_of_a_file_and_no_more() -> None:
    weights = {"a": torch.zeros(2), "b": torch.zeros(1)}
    with _few_parameters(weights):
        nn.Linear(3, 2, bias=False)
    with (
        pytest.raises(ValueError, match="its weights are more than twice the 3 numbers of the file"),
        _few_parameters(weights),
    ):
        nn.Linear(7, 1, bias=False)
    # Not any more.
    nn.Linear(7, 1, bias=False)


def test_a_tied_weight_counts_once() -> None:
    with _few_parameters({"a": torch.zeros(6)}):
        one, other = nn.Linear(3, 2, bias=False), nn.Linear(3, 2, bias=False)
        other.weight = one.weight
        with pytest.raises(ValueError, match="more than twice the 6 numbers"):
            nn.Linear(1, 1, bias=False)
