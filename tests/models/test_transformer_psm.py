"""What helps a Transformer-PSM in training, and is not there otherwise."""

from typing import Any

import pytest
import torch

import scannable as sc
from scannable.models.transformer_psm import TransformerAgg


def model_of(**changes: Any) -> sc.TransformerPSM:
    torch.manual_seed(0)
    return sc.TransformerPSM(
        sc.TransformerPSMConfig(7, 32, **{"chunk_length": 2, "agg_layers": 1, "inf_layers": 1, "heads": 2, **changes})
    )


@pytest.mark.parametrize("compress", ["right_half", "projection"])
def test_noise_is_on_what_agg_returns_and_only_in_training(compress: str) -> None:
    noisy, plain = model_of(state_noise=0.3, compress=compress), model_of(compress=compress)
    older, newer = torch.randn(2, 500, 2, 32).unbind(0)
    for gain in (1.0, 7.0):
        for model in (noisy, plain):
            model.state_dict()["layer.agg.transformer.norm.weight"].fill_(gain)
        states = plain.agg(older, newer).detach()
        noise = (noisy.agg(older, newer).detach() - states) / states.square().mean((1, 2), keepdim=True).sqrt()
        assert abs(float(noise.std()) - 0.3) < 0.01
        assert abs(float(noise.mean())) < 0.01
    assert not torch.equal(noisy.agg(older, newer), noisy.agg(older, newer))
    assert torch.equal(noisy.eval().agg(older, newer), plain.eval().agg(older, newer))


def test_noise_is_an_attribute_of_agg() -> None:
    noisy = model_of(state_noise=0.4)
    assert isinstance(noisy.agg, TransformerAgg) and noisy.agg.noise == 0.4
    older, newer = torch.randn(2, 500, 2, 32).unbind(0)
    noisy.agg.noise = 0.0
    assert torch.equal(noisy.agg(older, newer), model_of().agg(older, newer))
    assert noisy.state_dict().keys() == model_of().state_dict().keys()


@pytest.mark.parametrize("compress", ["right_half", "projection"])
def test_unit_states_have_the_direction_of_the_others_and_a_mean_square_of_one(compress: str) -> None:
    unit, plain = model_of(unit_states=True, compress=compress), model_of(compress=compress)
    older, newer = torch.randn(2, 50, 2, 32).unbind(0)
    for gain in (1.0, 7.0):
        for model in (unit, plain):
            model.state_dict()["layer.agg.transformer.norm.weight"].fill_(gain)
        states, free = unit.agg(older, newer).detach(), plain.agg(older, newer).detach()
        torch.testing.assert_close(states.square().mean(-1), torch.ones(50, 2))
        torch.testing.assert_close(torch.cosine_similarity(states, free, -1), torch.ones(50, 2))
    sc.verify_duality(unit, torch.randint(7, (2, 21)), dtype=torch.float64).raise_if_failed()


def test_the_projection_starts_as_the_sum_of_both_halves_a_place_apart() -> None:
    agg = model_of(compress="projection", chunk_length=4).agg
    assert isinstance(agg, TransformerAgg)
    older, newer = torch.randn(2, 50, 4, 32).unbind(0)
    left, right = agg.transformer(torch.cat((older, newer), -2)).chunk(2, -2)
    for place, before in ((0, 3), (1, 0), (2, 1), (3, 2)):
        torch.testing.assert_close(agg(older, newer)[:, place], (left[:, place] + right[:, before]) / 2**0.5)


def test_noise_leaves_duality_as_it_is() -> None:
    sc.verify_duality(model_of(state_noise=0.5), torch.randint(7, (2, 21)), dtype=torch.float64).raise_if_failed()


def test_agg_starts_from_a_copy_of_inf() -> None:
    model = model_of()
    tokens = torch.randint(7, (2, 9))
    before = model(tokens)
    names = model.start_agg_from_inf()
    assert not torch.equal(model(tokens), before)
    agg, inf = (
        {name[len(part) :]: weight for name, weight in model.state_dict().items() if name.startswith(part)}
        for part in ("layer.agg.transformer.", "layer.inf.transformer.")
    )
    assert all(torch.equal(agg[name], inf[name]) for name in inf)
    assert set(names) == {f"layer.agg.transformer.{name}" for name in agg}
    assert agg["norm.weight"].data_ptr() != inf["norm.weight"].data_ptr()


def test_agg_cannot_start_from_an_inf_of_another_kind() -> None:
    torch.manual_seed(0)
    model = sc.TransformerPSM(sc.TransformerPSMConfig(7, 32, chunk_length=2, agg_layers=2, inf_layers=1, heads=2))
    with pytest.raises(ValueError, match=r"layers and heads of Inf, \(1, 2\), but it has \(2, 2\)"):
        model.start_agg_from_inf()
    with pytest.raises(ValueError, match=r"windows of Inf, 6 positions, but it has 4; choose recent=0"):
        model_of(recent=1).start_agg_from_inf()
    rotary = model_of(recent=1, positions="rotary")
    assert rotary.start_agg_from_inf()
    model.layer.inf = torch.nn.Identity()
    with pytest.raises(TypeError, match="copies a TransformerInf into a TransformerAgg, not a Identity into a"):
        model.start_agg_from_inf()


def test_what_does_not_fit_is_refused() -> None:
    with pytest.raises(ValueError, match=r"state_noise=-1.0 must be 0 or above"):
        sc.TransformerPSMConfig(7, state_noise=-1.0)


def test_a_model_of_a_seed_gives_the_numbers_that_it_gave_before_it_was_made_of_a_layer() -> None:
    torch.manual_seed(0)
    config = sc.TransformerPSMConfig(vocab_size=11, width=16, chunk_length=4, heads=2)
    model = sc.TransformerPSM(config).double().eval()
    outputs = model((torch.arange(46) * 7 % 11).view(2, 23)).detach()
    recorded = torch.tensor([0.129620769995609, -0.119443860917283, 1.128619644476401], dtype=torch.float64)
    torch.testing.assert_close(outputs[1, 22, :3], recorded, rtol=1e-12, atol=1e-12)
    assert abs(float(outputs.square().sum()) - 433.289429187949) < 1e-9
