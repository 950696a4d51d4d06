"""Weights of `transformers` make the same model here, and go back unchanged."""

import json
import re
import warnings
from pathlib import Path
from typing import Any

import pytest
import torch

import scannable as sc
from scannable.hf.mamba_weights import INSIDE, OUTSIDE, load_mamba, save_mamba
from scannable.models.layer_options import MambaOptions

with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    from transformers import Mamba2Config, Mamba2ForCausalLM, MambaConfig, MambaForCausalLM

pytestmark = pytest.mark.filterwarnings("ignore")

SIZES: dict[str, Any] = {"vocab_size": 97, "hidden_size": 48, "num_hidden_layers": 2}
MODELS = {
    "mamba": (MambaForCausalLM, MambaConfig, {"state_size": 8}),
    "mamba, biases the other way, untied": (
        MambaForCausalLM,
        MambaConfig,
        {"state_size": 4, "use_bias": True, "use_conv_bias": False, "tie_word_embeddings": False, "time_step_rank": 5},
    ),
    "mamba-2, one group": (
        Mamba2ForCausalLM,
        Mamba2Config,
        {
            "state_size": 16,
            "num_heads": 6,
            "head_dim": 16,
            "n_groups": 1,
            "tie_word_embeddings": True,
            "chunk_size": 32,
        },
    ),
    "mamba-2, groups, limits": (
        Mamba2ForCausalLM,
        Mamba2Config,
        {"state_size": 16, "num_heads": 6, "head_dim": 16, "n_groups": 2, "time_step_limit": (0.01, 0.3)},
    ),
}


def theirs(name: str, folder: Path) -> Any:
    """A model of transformers, away from its start, saved into `folder`."""
    torch.manual_seed(0)
    model_class, config_class, changes = MODELS[name]
    model: Any = model_class(config_class(**SIZES, **changes)).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(0.1 * torch.randn_like(parameter))
    model.save_pretrained(folder)
    return model


@pytest.mark.parametrize("name", MODELS)
def test_logits_and_gradients_are_those_of_transformers(name: str, tmp_path: Path) -> None:
    model = theirs(name, tmp_path)
    ours: Any = load_mamba(tmp_path)
    tokens = torch.randint(0, 97, (3, 70))
    expected = model(tokens).logits
    found = ours(tokens)
    torch.testing.assert_close(found, expected, rtol=0, atol=1e-4)
    weight = torch.randn(expected.shape)
    (expected * weight).sum().backward()
    (found * weight).sum().backward()
    outside, inside = (
        {mine: their for their, mine in names.items()} for names in (OUTSIDE, INSIDE[ours.config.options()[0].layer])
    )
    for name, parameter in ours.named_parameters():
        block = re.fullmatch(r"blocks\.(\d+)\.(.*)", name)
        their_name = f"backbone.layers.{block[1]}.{inside[block[2]]}" if block else outside[name]
        gradient = model.get_parameter(their_name).grad
        assert float((parameter.grad - gradient).abs().max()) <= 1e-4 * max(1.0, float(gradient.abs().max())), name


@pytest.mark.parametrize("name", MODELS)
def test_steps_give_the_logits_of_transformers(name: str, tmp_path: Path) -> None:
    model = theirs(name, tmp_path)
    ours = load_mamba(tmp_path)
    tokens = torch.randint(0, 97, (2, 40))
    with torch.no_grad():
        expected = model(tokens).logits
    state, outputs = ours.initial_state(2), []
    for token in tokens.T:
        logits, state = ours.step(token, state)
        outputs.append(logits)
    torch.testing.assert_close(torch.stack(outputs, 1), expected, rtol=0, atol=1e-4)


@pytest.mark.parametrize("name", MODELS)
def test_weights_go_back_bit_for_bit(name: str, tmp_path: Path) -> None:
    model = theirs(name, tmp_path / "theirs")
    save_mamba(load_mamba(tmp_path / "theirs"), tmp_path / "ours")
    again: Any = MODELS[name][0].from_pretrained(tmp_path / "ours")
    for parameter, weight in model.state_dict().items():
        assert torch.equal(again.state_dict()[parameter], weight), parameter
    with torch.no_grad():
        tokens = torch.randint(0, 97, (1, 20))
        assert torch.equal(again.eval()(tokens).logits, model(tokens).logits)


def test_shards_are_put_together(tmp_path: Path) -> None:
    model = theirs("mamba", tmp_path / "whole")
    model.save_pretrained(tmp_path / "shards", max_shard_size="40KB")
    assert len(list((tmp_path / "shards").glob("*.safetensors"))) > 1
    tokens = torch.randint(0, 97, (1, 20))
    assert torch.equal(load_mamba(tmp_path / "shards")(tokens), load_mamba(tmp_path / "whole")(tokens))


def test_what_cannot_be_read_is_named(tmp_path: Path) -> None:
    with pytest.raises(sc.ModelFileError, match=r"config.json is missing"):
        load_mamba(tmp_path)
    theirs("mamba", tmp_path)
    config = json.loads((tmp_path / "config.json").read_text())

    def change(**fields: Any) -> None:
        (tmp_path / "config.json").write_text(json.dumps(config | fields))

    change(model_type="gpt2")
    with pytest.raises(sc.ModelFileError, match="holds a 'gpt2' model; only mamba and mamba2 can be read"):
        load_mamba(tmp_path)
    change(hidden_act="relu")
    with pytest.raises(sc.ModelFileError, match="hidden_act='relu' is not supported"):
        load_mamba(tmp_path)
    change(state_size="many")
    with pytest.raises(sc.ModelFileError, match=r"config\.json: state_size='many' is no int"):
        load_mamba(tmp_path)
    change(state_size=9)
    with pytest.raises(sc.ModelFileError, match="do not fit"):
        load_mamba(tmp_path)
    change(intermediate_size=50)
    with pytest.raises(sc.ModelFileError, match="an inner width of 50 is not expand=2 times 48"):
        load_mamba(tmp_path)
    (tmp_path / "config.json").write_text("{")
    with pytest.raises(sc.ModelFileError, match=r"config\.json is damaged"):
        load_mamba(tmp_path)
    change()
    weights = (tmp_path / "model.safetensors").read_bytes()
    (tmp_path / "model.safetensors").write_bytes(weights[: len(weights) // 2])
    with pytest.raises(sc.ModelFileError, match=r"model\.safetensors is damaged"):
        load_mamba(tmp_path)
    (tmp_path / "model.safetensors").unlink()
    with pytest.raises(sc.ModelFileError, match="nothing is unpickled"):
        load_mamba(tmp_path)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"layers": ("gla",)}, "a 'gla' layer has no place in transformers; only mamba and mamba2 have"),
        ({"layers": ("mamba", "gla")}, "a 'gla' layer has no place in transformers"),
        ({"layers": ("mamba", "mamba2")}, "the same layer in every block, this model has different ones"),
        ({"layers": ("mamba", MambaOptions(state_size=3))}, "the same layer in every block"),
        ({"mlp": True}, "has no MLP"),
        ({"layers": (MambaOptions(with_mlp=True),)}, "has no MLP"),
        ({"norm": "layer"}, "has RMS norms, this model norm='layer'"),
        ({"positions": 5}, "has no learned positions, this model 5"),
        ({"out_size": 3}, "an output for each token, this model 3"),
        ({"layers": ("mamba2",), "eps": 1e-2}, r"one eps for all norms, this model 0\.01 and 1e-05"),
    ],
)
def test_only_what_transformers_has_is_written(changes: dict[str, Any], message: str, tmp_path: Path) -> None:
    config = sc.LMConfig(**({"vocab_size": 9, "layers": ("mamba",), "width": 8, "heads": 2} | changes))
    with pytest.raises(ValueError, match=message):
        save_mamba(sc.LM(config), tmp_path)
    assert not list(tmp_path.iterdir())


def test_weights_of_mixed_precision_are_read_in_one(tmp_path: Path) -> None:
    model = theirs("mamba", tmp_path).to(torch.bfloat16)
    for layer in model.backbone.layers:
        layer.mixer.A_log.data = layer.mixer.A_log.data.float()
        layer.mixer.D.data = layer.mixer.D.data.float()
    model.save_pretrained(tmp_path)
    assert {p.dtype for p in load_mamba(tmp_path).parameters()} == {torch.bfloat16}
    load_mamba(tmp_path)(torch.randint(0, 97, (1, 20)))


def test_a_configuration_or_index_that_lacks_something_is_named(tmp_path: Path) -> None:
    theirs("mamba", tmp_path)
    config = json.loads((tmp_path / "config.json").read_text())
    del config["hidden_size"]
    (tmp_path / "config.json").write_text(json.dumps(config))
    with pytest.raises(sc.ModelFileError, match=r"lack something: KeyError.*hidden_size"):
        load_mamba(tmp_path)
    config["hidden_size"] = 48
    (tmp_path / "config.json").write_text(json.dumps(config))
    (tmp_path / "model.safetensors.index.json").write_text("[]")
    with pytest.raises(sc.ModelFileError, match=r"index\.json is damaged"):
        load_mamba(tmp_path)


def test_an_output_layer_beside_a_tied_embedding_is_not_dropped_silently(tmp_path: Path) -> None:
    theirs("mamba, biases the other way, untied", tmp_path)
    path = tmp_path / "config.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), "tie_word_embeddings": True}))
    with pytest.raises(sc.ModelFileError, match="has tie_word_embeddings, but the file has an output layer"):
        load_mamba(tmp_path)
