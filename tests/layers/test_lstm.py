"""The LSTM with noise on its states: what is the cell of torch without it."""

import pytest
import torch
from torch import Tensor

import scannable as sc


def run(layer: sc.zoo.LSTM, x: Tensor, keep: Tensor | None, *, noisily: bool) -> tuple[Tensor, ...]:
    start = (torch.full((1, len(x), 8), 0.3, dtype=x.dtype), torch.full((1, len(x), 8), -0.2, dtype=x.dtype))
    return (layer._noisily if noisily else layer._run)(x, start, keep)


@pytest.mark.parametrize("n", [1, 7, 63])
@pytest.mark.parametrize("ragged", [False, True])
def test_without_noise_position_by_position_is_the_cell_of_torch(n: int, ragged: bool) -> None:
    torch.manual_seed(n)
    layer = sc.zoo.LSTM(8).double()
    x = torch.randn(3, n, 8, dtype=torch.float64, requires_grad=True)
    lengths = torch.tensor([n, (n + 1) // 2, 0])
    keep = torch.arange(n) < lengths[:, None] if ragged else None
    counts = torch.ones(3, n, 1) if keep is None else keep[..., None]
    found = list[list[Tensor]]()
    for noisily in (True, False):
        y, h, c = run(layer, x, keep, noisily=noisily)
        outputs = (y * counts, h, c)
        weights = [torch.linspace(-1, 2, part.numel()).view_as(part) for part in outputs]
        found.append([*outputs, *torch.autograd.grad(outputs, (x, *layer.parameters()), weights)])
    for ours, theirs in zip(*found, strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-10, atol=1e-12)


def test_noise_is_on_the_state_that_a_position_starts_from_and_as_large_as_said() -> None:
    torch.manual_seed(0)
    layer = sc.zoo.LSTM(8, state_noise=0.5).train()
    # Only the forget gate is open: c goes on as it came, noise and all.
    for parameter in layer.cell.parameters():
        parameter.data.zero_()
    for name, parameter in layer.cell.named_parameters():
        if name == "bias_ih_l0":
            parameter.data[8:16] = 100.0
    started = {"c": torch.randn(4000, 8), "h": torch.zeros(4000, 8)}
    _, parts = layer.go_on(torch.zeros(4000, 1, 8), started, None, "chunkwise")
    noise = (parts["c"].detach() - started["c"]) / started["c"].square().mean(1, keepdim=True).sqrt()
    assert abs(float(noise.std()) - 0.5) < 0.01 and abs(float(noise.mean())) < 0.01


def test_noise_is_for_training_alone_and_can_be_turned_off() -> None:
    torch.manual_seed(0)
    layer, x = sc.zoo.LSTM(8, state_noise=0.5), torch.randn(2, 9, 8)
    assert not torch.equal(layer.train()(x), layer(x))
    layer.noise = 0.0
    quiet = layer(x)
    layer.noise = 0.5
    assert torch.equal(layer.eval()(x), quiet) and torch.equal(layer(x), quiet)


@pytest.mark.parametrize("noise", [-0.1, float("nan"), float("inf")])
def test_noise_that_is_no_size_is_refused(noise: float) -> None:
    with pytest.raises(ValueError, match=r"must be 0 or above: a fraction of the size of the state"):
        sc.zoo.LSTM(8, state_noise=noise)


def test_nothing_is_nothing_with_noise_too() -> None:
    layer = sc.zoo.LSTM(8, state_noise=0.5).train()
    y, state = layer.extend(torch.zeros(2, 0, 8), layer.initial_state(2))
    assert y.shape == (2, 0, 8) and state.position == 0
