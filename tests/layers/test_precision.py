"""Computing in float32 is exact to the last digits of float32, and no float64 is made on the way."""

import math
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from scannable.layers import LAYERS, attention, mlstm
from scannable.layers.affine.chunkwise import ScalarDecay
from scannable.layers.retnet import rotated
from scannable.nn import rotary
from scannable.nn.device import widest

GATES = {
    "mild": lambda x: -1e-3 * x,
    "of 0.5": lambda x: -x,
    "of 0 among mild ones": lambda x: torch.where(x < 0.1, -torch.inf, -0.02 * x),
    "of exp(-50) among those of 1": lambda x: torch.where(x < 0.2, -50.0, 0.0),
    "of 1": torch.zeros_like,
    "almost of 1": lambda x: -1e-30 * x,
}


def products(log_decay: Tensor, rows: int) -> Tensor:
    """exp(log_decay_(j+1) + ... + log_decay_t) for the last `rows` t and all j, one sum at a time."""
    c = len(log_decay)
    sums = [[math.fsum(log_decay[j + 1 : t + 1].tolist()) if j <= t else -math.inf for j in range(c)] for t in range(c)]
    return torch.tensor(sums[c - rows :], dtype=torch.float64).exp()


@pytest.mark.parametrize("rows", [64, 3])
@pytest.mark.parametrize("gates", GATES)
def test_products_of_scalar_gates_are_exact_to_the_last_digits_of_float32(gates: str, rows: int) -> None:
    torch.manual_seed(0)
    log_decay = GATES[gates](torch.rand(64))
    decays = ScalarDecay(log_decay[None, None, None], rows)
    truth = products(log_decay, rows)
    # One rounding of the sum, whose size the relative error of its exponential is in, and a few of the rest.
    bound = 2**-23 * truth * (2 + truth.clamp(min=1e-300).log().abs())
    assert bool(((decays.between[0, 0, 0] - truth).abs() <= bound + 1e-37).all())
    assert decays.between.dtype == torch.float32


@pytest.mark.parametrize("rows", [64, 3])
@pytest.mark.parametrize("gates", GATES)
def test_gradients_of_scalar_gates_are_sums_without_cancellation(gates: str, rows: int) -> None:
    torch.manual_seed(0)
    log_decay = GATES[gates](torch.rand(64)).requires_grad_()
    weight, start_weight = torch.rand(rows, 64), torch.rand(rows, 1)
    decays = ScalarDecay(log_decay[None, None, None], rows)
    loss = (decays.between[0, 0, 0] * weight).sum() + (decays.since_start[0, 0, 0] * start_weight).sum()
    (found,) = torch.autograd.grad(loss, log_decay)
    between = products(log_decay.detach(), rows) * weight
    # From before the first: one more position in front, where nothing is forgotten.
    longer = torch.cat((torch.zeros(1), log_decay.detach()))
    from_start = products(longer, rows)[:, 0] * start_weight[:, 0]
    for i in range(64):
        asks = slice(max(0, i - (64 - rows)), None)
        truth = between[asks, :i].sum() + from_start[asks].sum()
        # All weights are positive: each sum is exact to its own size, however small that is.
        assert abs(found[i] - truth) <= 1e-5 * truth + 1e-36, i


def test_gradients_of_scalar_gates_have_gradients() -> None:
    torch.manual_seed(0)
    log_decay = -torch.rand(1, 1, 1, 5, dtype=torch.float64).requires_grad_()

    def function(x: Tensor) -> tuple[Tensor, Tensor]:
        decays = ScalarDecay(x)
        return decays.between, decays.since_start

    assert torch.autograd.gradcheck(function, log_decay)
    assert torch.autograd.gradgradcheck(function, log_decay)


class NoFloat64(TorchDispatchMode):
    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        for x in result if isinstance(result, (tuple, list)) else (result,):
            wide = isinstance(x, Tensor) and x.dtype in (torch.float64, torch.complex128)
            assert not wide, f"{func} makes {x.dtype}"
        return result


@pytest.mark.parametrize("name", LAYERS)
def test_a_layer_in_float32_makes_no_float64(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    # As on a device that has none.
    for module in (mlstm, rotary, attention):
        monkeypatch.setattr(module, "widest", lambda device: torch.float32)
    rotary.rotations.cache_clear()
    layer = LAYERS[name](16, 2)
    x = torch.randn(2, 70, 16, requires_grad=True)
    with NoFloat64():
        y, state = layer.extend(x, layer.initial_state(2))
        layer.step(x[:, 0], state)
        y.sum().backward()


def test_a_device_without_float64_is_known() -> None:
    assert widest(torch.device("cpu")) == widest(torch.device("cuda")) == torch.float64
    assert widest(torch.device("mps")) == torch.float32


def test_a_rough_stabiliser_changes_no_output_of_mlstm(monkeypatch: pytest.MonkeyPatch) -> None:
    torch.manual_seed(0)
    layer: Any = LAYERS["mlstm"](16, 2)
    with torch.no_grad():
        layer.get_parameter("gates.weight").mul_(50)
    x = torch.randn(1, 4096, 16)
    truth = layer.double()(x.double())
    layer.float()
    monkeypatch.setattr(mlstm, "widest", lambda device: torch.float32)
    torch.testing.assert_close(layer(x).double(), truth, rtol=1e-3, atol=1e-4)


@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float32, 4e-7), (torch.float64, 1e-9)])
def test_a_rotation_is_as_exact_at_ten_million_positions_as_at_the_first(dtype: torch.dtype, tolerance: float) -> None:
    place, half, base = 10_000_019, 8, 10_000.0
    x = torch.zeros(1, 1, 1, 2 * half, dtype=dtype)
    x[..., :half] = 1
    turned = rotated(x, torch.tensor([[place]]), base)[0, 0, 0].double()
    angles = [math.remainder(place * base ** (-i / half), math.tau) for i in range(half)]
    truth = torch.tensor([*map(math.cos, angles), *map(math.sin, angles)], dtype=torch.float64)
    # The angle itself, place times a power of the base, is known to 2^-53 of its 10^7.
    assert (turned - truth).abs().max() <= tolerance + 1e-8
