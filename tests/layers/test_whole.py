"""A stretch of time is one affine map of the state before it."""

import pytest
import torch

from scannable.layers import LAYERS
from scannable.layers.affine.layer import AffineLayer
from scannable.layers.affine.whole import whole

ROWS = [name for name, layer in LAYERS.items() if issubclass(layer, AffineLayer)]


@pytest.mark.parametrize("n", [1, 70])
@pytest.mark.parametrize("name", ROWS)
def test_the_map_of_a_stretch_takes_any_state_to_the_one_behind_it(name: str, n: int) -> None:
    torch.manual_seed(0)
    layer = LAYERS[name](8, 2).double()
    assert isinstance(layer, AffineLayer)
    parts = layer.empty(3)
    recurrence = layer.prepare(torch.randn(3, n, 8, dtype=torch.float64), parts, None).recurrence
    start = torch.randn_like(parts["s"])
    torch.testing.assert_close(
        whole(recurrence, start)(start), recurrence.run(start, "step")[1], rtol=1e-11, atol=1e-11
    )


@pytest.mark.usefixtures("shapes_unchecked")
def test_a_recurrence_that_nobody_knows_is_named() -> None:
    with pytest.raises(TypeError, match="str does not say what it does to a state"):
        whole("x", torch.zeros(1))  # pyright: ignore
