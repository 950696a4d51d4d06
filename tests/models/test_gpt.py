"""GPT-2 and a sliding window are lines of configuration: attention layers in the frame of all models."""

import warnings
from dataclasses import replace
from typing import Any, cast

import pytest
import torch
from torch import nn

import scannable as sc
from scannable.models.layer_options import AttentionOptions
from scannable.models.lm import LM
from scannable.models.lm_config import LMConfig

with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    from transformers import GPT2Config, GPT2LMHeadModel

pytestmark = pytest.mark.filterwarnings("ignore")

GPT2 = LMConfig(40, ("attention",) * 2, width=16, heads=2, positions=64, norm="layer", tie_weights=True)
WINDOW = replace(GPT2, layers=(AttentionOptions(window=5),) * 2)


def model_of(config: LMConfig) -> LM:
    torch.manual_seed(0)
    return LM(config)


def theirs() -> Any:
    """GPT-2 with all of transformers' defaults but its sizes, and without dropout; away from its start."""
    torch.manual_seed(1)
    sizes: dict[str, Any] = {"vocab_size": 40, "n_embd": 16, "n_layer": 2, "n_head": 2, "n_positions": 64}
    quiet: dict[str, Any] = dict.fromkeys(("resid_pdrop", "embd_pdrop", "attn_pdrop"), 0.0)
    model: Any = GPT2LMHeadModel(GPT2Config(**sizes, **quiet)).double()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(0.2 * torch.randn_like(parameter))
    return model


def renamed(weights: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """The weights of transformers' GPT-2 under our names; its matrices are transposed, and queries, keys and values one."""
    names = {
        "ln_1": "norm",
        "ln_2": "mlp_norm",
        "attn.c_proj": "mixer.attention.out",
        "mlp.c_fc": "mlp.into",
        "mlp.c_proj": "mlp.out",
    }
    ours = {"embedding.weight": weights["wte.weight"], "positions": weights["wpe.weight"]}
    for name, weight in weights.items():
        part, _, kind = name.rpartition(".")
        if part == "ln_f":
            ours[f"norm.{kind}"] = weight
        if not part.startswith("h."):
            continue
        _, layer, part = part.split(".", 2)
        if weight.ndim == 2:
            weight = weight.T
        if part == "attn.c_attn":
            query, both = weight.split([16, 32])
            ours[f"blocks.{layer}.mixer.attention.query.{kind}"] = query
            ours[f"blocks.{layer}.mixer.attention.key_value.{kind}"] = both
        else:
            ours[f"blocks.{layer}.{names[part]}.{kind}"] = weight
    return ours


@pytest.mark.parametrize("positions", ["learned", "none"])
def test_logits_and_gradients_are_those_of_transformers(positions: str) -> None:
    raw = theirs()
    if positions == "none":
        # A table of zeros is the same as no table.
        nn.init.zeros_(raw.transformer.wpe.weight)
        config = replace(GPT2, positions=0, layers=(AttentionOptions(positions="none"),) * 2)
    else:
        config = GPT2
    ours = model_of(config).double()
    weights = renamed(raw.transformer.state_dict())
    if positions == "none":
        del weights["positions"]
    ours.load_state_dict(weights)
    tokens = torch.randint(40, (3, 33))
    expected, found = raw(tokens).logits, ours(tokens)
    torch.testing.assert_close(found, expected, rtol=0, atol=1e-12)
    weight = torch.randn(expected.shape, dtype=torch.float64)
    (expected * weight).sum().backward()
    (found * weight).sum().backward()
    slopes = renamed({name: parameter.grad for name, parameter in raw.transformer.named_parameters()})
    for name, parameter in ours.named_parameters():
        torch.testing.assert_close(parameter.grad, slopes[name], rtol=0, atol=1e-10, msg=name)


def test_weights_start_as_those_of_gpt2_or_with_the_fan_in() -> None:
    sizes: dict[str, Any] = {"width": 128, "heads": 4, "positions": 256, "vocab_size": 500, "tie_weights": False}
    for std in (0.02, 0.1):
        model: Any = model_of(replace(GPT2, **sizes, init_std=std))
        block = model.blocks[0]
        for weight in (
            model.embedding.weight,
            model.positions,
            model.head.weight,
            block.mixer.attention.query.weight,
            block.mixer.attention.key_value.weight,
            block.mlp.into.weight,
        ):
            assert float(weight.std()) == pytest.approx(std, rel=0.05)
        for weight in (block.mixer.out.weight, block.mlp.out.weight):
            assert float(weight.std()) == pytest.approx(std / 2, rel=0.05)
    block = cast(Any, model_of(replace(GPT2, **sizes)).blocks[0])
    assert float(block.mixer.attention.query.weight.std()) == pytest.approx(128**-0.5, rel=0.05)
    assert float(block.mlp.out.weight.std()) == pytest.approx(512**-0.5 / 2, rel=0.05)


@pytest.mark.parametrize("config", [GPT2, WINDOW], ids=["gpt2", "window"])
def test_more_tokens_than_positions_are_refused_before_anything_is_written(config: LMConfig) -> None:
    model, tokens = model_of(replace(config, positions=50)), torch.randint(40, (2, 51))
    for refused in (lambda: model(tokens), lambda: model(tokens, starts=[0]), lambda: model(tokens, lengths=[51, 2])):
        with pytest.raises(ValueError, match="51 tokens are more than the 50 positions this model has learned; build"):
            refused()
    assert model(tokens, lengths=[50, 7]).shape == model(tokens, starts=[0, 25]).shape == (2, 51, 40)
    _, state = model.prefill(tokens[:, :49], model.initial_state(2))
    with pytest.raises(ValueError, match="51 tokens are more than the 50 positions"):
        model.prefill(tokens[:, 49:], state)
    last, state = model.step(tokens[:, 49], state)
    torch.testing.assert_close(last, model(tokens[:, :50])[:, -1])
    with pytest.raises(ValueError, match="51 tokens are more than the 50 positions"):
        model.step(tokens[:, 50], state)


@pytest.mark.parametrize("window", [1, 2, 8, 100, None])
def test_duality_holds_for_every_window(window: int | None) -> None:
    config = replace(GPT2, layers=(AttentionOptions(window=window), AttentionOptions(window=window, convolution=4)))
    report = sc.verify_duality(model_of(config), torch.randint(40, (2, 37)), dtype=torch.float64)
    report.raise_if_failed()
    assert report.nbytes == report.nbytes_bound


def test_attention_has_rotary_positions_unless_the_model_learns_some() -> None:
    def chosen(config: LMConfig) -> list[tuple[str, float]]:
        return [(options.arguments()["positions"], options.arguments()["dropout"]) for options in config.options()]

    assert chosen(GPT2) == [("none", 0.0)] * 2 and chosen(replace(GPT2, positions=0)) == [("rotary", 0.0)] * 2
    told = replace(GPT2, layers=(AttentionOptions(positions="rotary", dropout=0.0), "attention"), dropout=0.1)
    assert chosen(told) == [("rotary", 0.0), ("none", 0.1)]


def test_dropout_is_for_training_only() -> None:
    model, tokens = model_of(replace(GPT2, dropout=0.5)), torch.randint(40, (2, 9))
    assert not torch.equal(model.train()(tokens), model(tokens))
    assert torch.equal(model.eval()(tokens), model(tokens))
