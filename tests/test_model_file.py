"""A model comes back as it was, or not at all."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch

import scannable as sc


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
    refused("is damaged or belongs to another config.json")
    flipped = bytearray(weights.read_bytes())
    flipped[500] ^= 1
    weights.write_bytes(flipped)
    refused("its checksum does not match")
    config.write_text(config.read_text()[:-20])
    refused("config.json is damaged")
    description = json.loads(config.read_text())
    config.write_text(json.dumps(description | {"model": "Nonesuch"}))
    refused("model of the kind 'Nonesuch'; known kinds: TransformerPSM")
    description["config"]["widht"] = description["config"].pop("width")
    config.write_text(json.dumps(description))
    refused("widht")
    description["config"] = {**description["config"], "width": 16}
    del description["config"]["widht"]
    config.write_text(json.dumps(description))
    refused("do not make a TransformerPSM")
    weights.unlink()
    refused("model.safetensors is missing")
    sc.load_model(folder)


def test_an_unknown_kind_of_model_cannot_be_saved(tmp_path: Path) -> None:
    with pytest.raises(TypeError, match="Linear cannot be saved; known models: TransformerPSM"):
        sc.save_model(torch.nn.Linear(2, 2), tmp_path)
