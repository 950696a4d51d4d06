"""The LSTM with noise on its states: what is the cell of torch without it."""

import pytest
import torch
from torch import Tensor

import scannable as sc
from scannable.models.layer_options import LSTMOptions
from scannable.training.noise import SeededBySample


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
    counts = torch.ones(3, n, 1, dtype=torch.bool) if keep is None else keep[..., None]
    found = list[list[Tensor]]()
    for noisily in (True, False):
        # What stands behind a row never matters, not for gradients either.
        y, h, c = run(layer, x.where(counts, torch.nan), keep, noisily=noisily)
        outputs = (y.where(counts, 0), h, c)
        weights = [torch.linspace(-1, 2, part.numel()).view_as(part) for part in outputs]
        found.append([*outputs, *torch.autograd.grad(outputs, (x, *layer.parameters()), weights)])
    for ours, theirs in zip(*found, strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-10, atol=1e-12)


def test_noise_is_on_both_parts_of_the_state_that_a_position_starts_from_and_as_large_as_said() -> None:
    torch.manual_seed(0)
    layer, without = sc.zoo.LSTM(8, state_noise=0.5).train(), sc.zoo.LSTM(8)
    # This cell adds h to c. Both are so small that tanh changes nothing.
    for name, parameter in layer.cell.named_parameters():
        parameter.data.zero_()
        if name == "bias_ih_l0":
            parameter.data[:16] = 100.0
        elif name == "weight_hh_l0":
            parameter.data[16:24] = torch.eye(8)
    without.load_state_dict(layer.state_dict())
    start = {"h": torch.randn(4000, 8) / 1000, "c": torch.randn(4000, 8) / 1000}
    noisy, quiet = (one.go_on(torch.zeros(4000, 1, 8), start, None, "chunkwise")[1]["c"] for one in (layer, without))
    # The noises are independent, so that their squares add up; one draw for both would be larger by two fifths.
    expected = 0.5 * sum(part.square().mean(1, keepdim=True) for part in start.values()) ** 0.5
    found = ((noisy - quiet) / expected).detach()
    assert abs(float(found.std()) - 1) < 0.02 and abs(float(found.mean())) < 0.02


def test_rows_without_a_token_keep_their_state_bit_for_bit() -> None:
    torch.manual_seed(0)
    layer = sc.zoo.LSTM(8, state_noise=0.5).train()
    start = {"h": torch.randn(3, 8), "c": torch.randn(3, 8)}
    keep = torch.tensor([[True, True], [True, False], [False, False]])
    _, parts = layer.go_on(torch.randn(3, 2, 8), start, keep, "chunkwise")
    for name, before in start.items():
        assert torch.equal(parts[name][2], before[2]) and not torch.equal(parts[name][1], before[1])


def test_a_row_has_the_same_noise_beside_any_others() -> None:
    torch.manual_seed(0)
    layer, x = sc.zoo.LSTM(8, state_noise=0.5).double().train(), torch.randn(6, 9, 8, dtype=torch.float64)

    def outputs(rows: list[int]) -> Tensor:
        torch.manual_seed(1)
        with SeededBySample(rows, torch.device("cpu")):
            return layer(x[rows]).detach()

    whole = outputs(list(range(6)))
    for rows in ([0], [1, 4, 5], [3, 2]):
        torch.testing.assert_close(outputs(rows), whole[rows], rtol=0, atol=1e-12)


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


def test_a_configuration_refuses_it_before_anything_is_built() -> None:
    with pytest.raises(ValueError, match=r"state_noise=-1.0 must be 0 or above"):
        LSTMOptions(state_noise=-1.0)
