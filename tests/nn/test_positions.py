"""Noise or sinusoids, in every model that learns positions."""

import pytest
import torch
from torch import Tensor

import scannable as sc
from scannable.baselines import GPT2Baseline, GPT2BaselineConfig
from scannable.models.lm import LM
from scannable.models.lm_config import LMConfig
from scannable.nn.positions import starting_positions


def misfit_of_one_map_back(positions: Tensor, back: int) -> float:
    """How far the best linear map from every position to the one `back` before it is off, relative to their size."""
    here, before = positions[back:].double(), positions[:-back].double()
    best = torch.linalg.pinv(here) @ before
    return float((here @ best - before).norm() / before.norm())


@pytest.mark.parametrize("back", [1, 5])
def test_one_map_goes_back_everywhere_among_sinusoids_and_not_among_noise(back: int) -> None:
    assert misfit_of_one_map_back(starting_positions(64, 16, sinusoids=True), back) < 1e-5
    torch.manual_seed(0)
    assert misfit_of_one_map_back(starting_positions(64, 16, sinusoids=False), back) > 0.5


def test_both_have_the_size_of_elements_and_sinusoids_are_all_different() -> None:
    torch.manual_seed(0)
    assert starting_positions(500, 64, sinusoids=False).square().mean() == pytest.approx(1, abs=0.05)
    sinusoids = starting_positions(500, 64, sinusoids=True)
    assert torch.allclose(sinusoids.square().mean(-1), torch.ones(500), atol=1e-5)
    apart = torch.cdist(sinusoids, sinusoids) + 100 * torch.eye(500)
    assert float(apart.min()) > 1


@pytest.mark.parametrize(("count", "width"), [(1, 1), (1, 8), (2, 7), (7, 1)])
def test_small_and_odd_sizes(count: int, width: int) -> None:
    positions = starting_positions(count, width, sinusoids=True)
    assert positions.shape == (count, width) and positions.isfinite().all()


def test_every_model_with_positions_can_start_so() -> None:
    psm = sc.TransformerPSM(sc.TransformerPSMConfig(9, width=8, chunk_length=3, heads=2, sinusoids=True))
    for part in ("agg", "inf"):
        positions = psm.state_dict()[f"layer.{part}.transformer.positions"]
        assert torch.equal(positions, starting_positions(6, 8, sinusoids=True))
    gpt = LM(LMConfig(9, ("attention",), 8, positions=20, sinusoids=True))
    assert gpt.positions is not None
    assert torch.equal(gpt.positions, starting_positions(20, 8, sinusoids=True))
    gpt2 = GPT2Baseline(GPT2BaselineConfig(9, 8, layers=1, heads=2, context=20, init_std=0.5, sinusoids=True))
    assert torch.equal(gpt2.transformer.wpe.weight, 0.5 * starting_positions(20, 8, sinusoids=True))
    assert gpt2.transformer.wpe.weight.requires_grad
