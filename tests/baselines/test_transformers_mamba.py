"""The Mamba baseline is transformers' Mamba, and our own Mamba is the same function."""

import warnings
from pathlib import Path
from typing import Any

import pytest
import torch

from scannable.baselines import MambaBaseline, MambaBaselineConfig
from scannable.hf.mamba_weights import load_mamba

with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    from transformers import MambaConfig, MambaForCausalLM

pytestmark = pytest.mark.filterwarnings("ignore")


def model_of(*, tie_weights: bool) -> MambaBaseline:
    """Away from its start, where the convolutions have no bias and the recurrences all the same rates."""
    torch.manual_seed(0)
    model = MambaBaseline(MambaBaselineConfig(40, width=16, layers=2, state_size=4, tie_weights=tie_weights))
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(0.1 * torch.randn_like(parameter))
    return model.eval()


def theirs(model: MambaBaseline) -> Any:
    """The language model of transformers with the weights of the baseline."""
    config = MambaConfig(
        vocab_size=40,
        hidden_size=16,
        num_hidden_layers=2,
        state_size=4,
        tie_word_embeddings=model.config.tie_weights,
    )
    raw: Any = MambaForCausalLM(config)
    raw.backbone.load_state_dict(model.backbone.state_dict())
    if not model.config.tie_weights:
        raw.lm_head.load_state_dict(model.head.state_dict())
    return raw.eval()


@pytest.mark.parametrize("tie_weights", [False, True])
def test_logits_and_gradients_are_those_of_transformers(tie_weights: bool) -> None:
    model, tokens = model_of(tie_weights=tie_weights), torch.randint(40, (3, 33))
    raw = theirs(model)
    expected, found = raw(tokens).logits, model(tokens)
    torch.testing.assert_close(found, expected, rtol=0, atol=1e-6)
    weight = torch.randn(expected.shape)
    (expected * weight).sum().backward()
    (found * weight).sum().backward()
    for name, parameter in model.backbone.named_parameters():
        torch.testing.assert_close(parameter.grad, raw.backbone.get_parameter(name).grad, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("tie_weights", [False, True])
def test_the_zoo_has_the_same_mamba(tie_weights: bool, tmp_path: Path) -> None:
    model, tokens = model_of(tie_weights=tie_weights), torch.randint(40, (3, 33))
    theirs(model).save_pretrained(tmp_path)
    ours = load_mamba(tmp_path)
    torch.testing.assert_close(ours(tokens), model(tokens), rtol=0, atol=1e-5)
    _, state = model.prefill(tokens, model.initial_state(3))
    _, our_state = ours.prefill(tokens, ours.initial_state(3))
    torch.testing.assert_close(
        ours.step(tokens[:, 0], our_state)[0], model.step(tokens[:, 0], state)[0], rtol=0, atol=1e-5
    )


def test_a_step_leaves_the_state_it_started_from_as_it_was() -> None:
    model, tokens = model_of(tie_weights=True), torch.randint(40, (2, 9))
    _, state = model.prefill(tokens, model.initial_state(2))
    before = [part.clone() for part in state.tensors()]
    _, after = model.prefill(tokens, state)
    assert all(map(torch.equal, before, state.tensors()))
    assert not torch.equal(after["recurrence 0"], state["recurrence 0"])


def test_the_shape_of_the_mixer_is_the_one_asked_for() -> None:
    model: Any = MambaBaseline(MambaBaselineConfig(40, width=16, layers=1, state_size=3, expand=3, convolution=2))
    assert model.backbone.layers[0].mixer.conv1d.weight.shape == (48, 1, 2)
    assert model.backbone.layers[0].mixer.A_log.shape == (48, 3)
    assert float(model.head.weight.std()) == pytest.approx(model.backbone.config.initializer_range, rel=0.1)
