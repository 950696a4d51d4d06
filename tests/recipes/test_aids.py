"""What helps a Transformer-PSM, in a recipe and in a loop of one's own."""

from typing import Any

import pytest
import torch

import scannable as sc
from scannable.models.layer_options import LSTMOptions, PSMOptions
from scannable.recipes.aids import AggFromInf, GrowingStateNoise


def model_of(**options: Any) -> sc.TransformerPSM:
    torch.manual_seed(0)
    return sc.TransformerPSM(
        sc.TransformerPSMConfig(7, 32, chunk_length=2, agg_layers=1, inf_layers=1, heads=2, **options)
    )


def test_noise_grows_with_the_progress_of_a_run() -> None:
    model = model_of(state_noise=0.4)
    older, newer = torch.randn(2, 500, 2, 32).unbind(0)
    states = model_of().agg(older, newer).detach()
    for over, start, progress, expected in (
        (0.5, 0.0, 0.0, 0.0),
        (0.5, 0.0, 0.25, 0.2),
        (0.5, 0.0, 0.5, 0.4),
        (0.5, 0.0, 1.0, 0.4),
        (1.0, 0.0, 0.5, 0.2),
        (0.4, 0.5, 0.25, 0.0),
        (0.4, 0.5, 0.5, 0.0),
        (0.4, 0.5, 0.8, 0.3),
        (0.4, 0.5, 0.95, 0.4),
    ):
        GrowingStateNoise(over, start).before_step(model, progress)
        assert model.agg.noise == pytest.approx(expected)
        noise = (model.agg(older, newer).detach() - states) / states.square().mean((1, 2), keepdim=True).sqrt()
        assert abs(float(noise.std()) - expected) < 0.01


def test_noise_grows_in_every_layer_that_has_some() -> None:
    layers = (LSTMOptions(state_noise=0.4), PSMOptions(chunk_length=4, state_noise=0.2), "lstm", "mamba")
    model: Any = sc.LM(sc.LMConfig(7, layers, width=16, heads=2))
    GrowingStateNoise(over=0.5).before_step(model, 0.25)
    noises = {part.state_noise: part.noise for part in model.modules() if hasattr(part, "state_noise")}
    assert noises == {0.4: pytest.approx(0.2), 0.2: pytest.approx(0.1), 0.0: 0.0}


def test_noise_is_refused_where_there_is_none() -> None:
    model = model_of()
    model.layer.agg = torch.nn.Identity()
    with pytest.raises(TypeError, match="such as the Agg of a Transformer-PSM, or an LSTM; TransformerPSM"):
        GrowingStateNoise().before_step(model, 0.5)
    for over in (0.0, 1.5, float("nan")):
        with pytest.raises(ValueError, match="over="):
            GrowingStateNoise(over)
    for start in (-0.1, 0.6):
        with pytest.raises(ValueError, match=r"must lie in \[0, 0.5\], so that over=0.5 is still to come"):
            GrowingStateNoise(0.5, start)
    with pytest.raises(ValueError, match="over='half' is no float"):
        GrowingStateNoise(over="half")  # pyright: ignore[reportArgumentType]
    assert type(GrowingStateNoise(over=1).over) is float
    assert GrowingStateNoise(over=0.9, start=0.1).start == 0.1


def test_agg_starts_from_inf_when_the_curriculum_leaves_its_first_length() -> None:
    model = model_of()
    assert list(AggFromInf().begin_stage(model, 2)) == []
    names = AggFromInf().begin_stage(model, 1)
    agg, inf = (dict(model.get_submodule(f"layer.{part}.transformer").named_parameters()) for part in ("agg", "inf"))
    assert set(names) == {f"layer.agg.transformer.{name}" for name in agg}
    assert all(torch.equal(agg[name], inf[name]) for name in inf)
