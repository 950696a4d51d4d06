"""A layer goes on from a state of its own, for as many rows as there are, and says so otherwise."""

from dataclasses import replace
from typing import Any

import pytest
import torch

import scannable as sc
from scannable.layers.state import TensorState

ROWS = sc.zoo.LAYERS
each = pytest.mark.parametrize("row", ROWS)
pytestmark = pytest.mark.usefixtures("shapes_unchecked")


def layer_of(row: str, width: int = 16) -> Any:
    torch.manual_seed(0)
    return ROWS[row](width, 2)


@each
def test_a_state_of_another_batch_is_refused(row: str) -> None:
    layer = layer_of(row)
    _, two = layer.extend(torch.randn(2, 70, 16), layer.initial_state(2))
    for rows in (1, 3):
        for call in (layer.extend, lambda x, s: layer.step(x[:, 0], s)):
            with pytest.raises(ValueError, match=rf"another model or batch made it: .* initial_state\({rows}\)"):
                call(torch.randn(rows, 1, 16), two)


@each
def test_a_state_of_another_layer_is_refused(row: str) -> None:
    layer = layer_of(row)
    x = torch.randn(2, 1, 16)
    with pytest.raises(ValueError, match=r"another (layer|model or batch) made it: start from .* initial_state\(2\)"):
        layer.extend(x, layer_of("log_linear" if row != "log_linear" else "gla").initial_state(2))
    with pytest.raises(ValueError, match="another model or batch made it"):
        layer.extend(x, layer_of(row, 32).initial_state(2))
    with pytest.raises(
        ValueError, match=r"torch\.(float64|complex128), expected (.* )?torch\.(float32|complex64); another model"
    ):
        layer.extend(x, layer_of(row).double().initial_state(2))
    layer.extend(x, layer.initial_state(2))
    layer.double().extend(x.double(), layer.initial_state(2))


@each
def test_a_state_that_lacks_something_or_is_none_is_refused(row: str) -> None:
    layer = layer_of(row)
    x, whole = torch.randn(2, 1, 16), layer.initial_state(2)
    parts = whole.parts if isinstance(whole, TensorState) else {}
    for missing in parts:
        part = {name: value for name, value in parts.items() if name != missing}
        with pytest.raises(ValueError, match=rf"that of {type(layer).__name__} .*{missing}.*; another layer made it"):
            layer.extend(x, TensorState(whole.positions, part))
    with pytest.raises(ValueError, match="another layer made it"):
        layer.extend(x, TensorState(whole.positions, {**parts, "more": x}))
    for wrong in (None, x, (x,), dict(parts)):
        with pytest.raises(TypeError, match=rf"{type(layer).__name__} goes on from a state of its initial_state"):
            layer.extend(x, wrong)


def test_the_roots_of_a_counter_are_of_the_batch_too() -> None:
    layer = layer_of("log_linear")
    _, one = layer.extend(torch.randn(1, 70, 16), layer.initial_state(1))
    _, two = layer.extend(torch.randn(2, 70, 16), layer.initial_state(2))
    group = replace(two.groups[0], counter=one.groups[0].counter)
    with pytest.raises(ValueError, match=r"'root' has the shape \(1, 2, 8, 8\) .* expected \(2, 2, 8, 8\)"):
        layer.extend(torch.randn(2, 1, 16), replace(two, groups=(group,)))
