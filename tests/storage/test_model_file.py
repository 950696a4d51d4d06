"""A model comes back as it was, or not at all."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch

import scannable as sc
from scannable.storage import model_file


@pytest.mark.parametrize("options", [{}, {"tie_weights": True}, {"compress": "projection", "out_size": 5}])
def test_a_model_survives(tmp_path: Path, options: dict[str, Any]) -> None:
    config = sc.TransformerPSMConfig(vocab_size=11, width=8, chunk_length=3, heads=2, **options)
    model = sc.TransformerPSM(config).eval()
    sc.save_model(model, tmp_path / "model")
    assert sorted(p.name for p in (tmp_path / "model").iterdir()) == ["config.json", "model.safetensors"]
    loaded = sc.load_model(tmp_path / "model")
    tokens = torch.randint(11, (2, 20))
    assert loaded.config == config and torch.equal(loaded(tokens), model(tokens))


def test_damage_is_named(tmp_path: Path) -> None:
    model = sc.TransformerPSM(sc.TransformerPSMConfig(vocab_size=11, width=8, chunk_length=3, heads=2))
    folder = tmp_path / "model"

    def refused(message: str) -> None:
        with pytest.raises(sc.ModelFileError, match=message):
            sc.load_model(folder)
        sc.save_model(model, folder)

    refused("holds no model: config.json is missing")
    weights, config = folder / "model.safetensors", folder / "config.json"
    weights.write_bytes(weights.read_bytes()[:-1])
    refused("do not belong together, or one is damaged")
    flipped = bytearray(weights.read_bytes())
    flipped[500] ^= 1
    weights.write_bytes(flipped)
    refused("the checksum does not match")
    config.write_text(config.read_text()[:-20])
    refused("config.json is damaged")
    description = json.loads(config.read_text())
    config.write_text(json.dumps(description | {"model": "Nonesuch"}))
    refused("model of the kind 'Nonesuch'; known kinds: .*TransformerPSM")
    config.write_text(json.dumps(description | {"model": []}))
    refused(r"model of the kind \[\]")
    config.write_text("[" * 100_000)
    refused("config.json is damaged")
    description["config"]["literal_identity"] = True
    config.write_text(json.dumps(description))
    refused("do not belong together")
    weights.unlink()
    refused("model.safetensors is missing")
    sc.load_model(folder)


@pytest.mark.parametrize(
    ("field", "value", "message"),
    [
        ("widht", 8, "widht"),
        ("width", 16, "size mismatch"),
        ("width", 2**40, "do not make a TransformerPSM"),
        ("chunk_length", 10**30, "do not make a TransformerPSM"),
        ("agg_causal", "false", "agg_causal='false' must be True or False"),
        ("dropout", "0", "dropout='0' must lie in"),
    ],
)
@pytest.mark.usefixtures("shapes_unchecked")
def test_a_configuration_with_a_true_checksum_is_still_not_believed(
    tmp_path: Path, field: str, value: object, message: str
) -> None:
    """Nor is memory taken for it: 2^40 columns would not fit."""
    sc.save_model(sc.TransformerPSM(sc.TransformerPSMConfig(vocab_size=11, width=8, chunk_length=3, heads=2)), tmp_path)
    description = json.loads((tmp_path / "config.json").read_text())
    description["config"][field] = value
    weights = (tmp_path / "model.safetensors").read_bytes()
    description["sha256"] = model_file._digest(description["model"], description["config"], weights)
    (tmp_path / "config.json").write_text(json.dumps(description))
    with pytest.raises(sc.ModelFileError, match=message):
        sc.load_model(tmp_path)


@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16])
def test_dtype_and_the_global_generator_are_kept(tmp_path: Path, dtype: torch.dtype) -> None:
    model = sc.TransformerPSM(sc.TransformerPSMConfig(vocab_size=11, width=8, chunk_length=3, heads=2)).to(dtype)
    sc.save_model(model, tmp_path)
    before = torch.random.get_rng_state()
    loaded = sc.load_model(tmp_path)
    assert torch.equal(before, torch.random.get_rng_state())
    assert all(p.dtype == dtype and p.requires_grad for p in loaded.parameters())


def test_an_unknown_kind_of_model_cannot_be_saved(tmp_path: Path) -> None:
    with pytest.raises(TypeError, match=r"Linear cannot be saved: .* known: .*TransformerPSMConfig"):
        sc.save_model(torch.nn.Linear(2, 2), tmp_path)
