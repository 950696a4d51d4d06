"""What the tests check of every call, while they run: the shapes in its signature."""

import pytest
import torch
from jaxtyping import TypeCheckError

import checked_shapes
from scannable import zoo


def test_a_wrong_shape_is_noticed_in_the_first_calls_and_in_those_of_the_next_test() -> None:
    layer, flat = zoo.Attention(8, heads=2), torch.randn(3, 8)
    with pytest.raises(TypeCheckError, match=r"Float\[Tensor, 'b n d'\]"):
        layer(flat)
    good = torch.randn(1, 2, 8)
    for _ in range(checked_shapes.FIRST):
        layer(good)
    with pytest.raises(ValueError, match="x"):
        layer(flat)
    checked_shapes.from_here()
    with pytest.raises(TypeCheckError):
        layer(flat)
