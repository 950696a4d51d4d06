"""A model on disk: a folder with `config.json` and `model.safetensors`, which know each other by checksum."""

import dataclasses
import hashlib
import json
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load, save
from torch import nn

from scannable.configuration import configurable
from scannable.files import write_whole

_models: dict[str, tuple[type[nn.Module], type]] = {}


class ModelFileError(ValueError):
    """A folder that holds no model, or a damaged one."""


def register_model(model: type[nn.Module], config: type) -> None:
    """Let `save_model` and `load_model` handle `model`, which is built from a `config` dataclass and keeps it."""
    _models[model.__name__] = (model, config)
    configurable(config)


def build_model(config: Any) -> Any:
    """A new model of the kind that `config` belongs to."""
    for model, kind in _models.values():
        if type(config) is kind:
            return model(config)
    known = ", ".join(kind.__name__ for _, kind in _models.values())
    raise TypeError(f"no model is built from a {type(config).__name__}; known: {known} (register_model adds one)")


def save_model(model: nn.Module, folder: str | Path) -> None:
    """Write a model's configuration and weights into `folder`, each file whole or not at all."""
    name = type(model).__name__
    if name not in _models:
        raise TypeError(f"{name} cannot be saved; known models: {', '.join(_models)} (register_model adds one)")
    folder = Path(folder)
    weights = save({key: tensor.detach().cpu().contiguous() for key, tensor in model.state_dict().items()})
    config: Any = model.config
    fields = dataclasses.asdict(config)
    description = {"model": name, "config": fields, "sha256": _digest(name, fields, weights)}
    write_whole(folder / "model.safetensors", weights)
    write_whole(folder / "config.json", json.dumps(description, indent=2).encode() + b"\n")


def load_model(folder: str | Path, device: str | torch.device = "cpu") -> Any:
    """Build the model that `save_model` wrote, after checking that both files are whole and belong together."""
    folder = Path(folder)
    for name in ("config.json", "model.safetensors"):
        if not (folder / name).is_file():
            raise ModelFileError(f"{folder} holds no model: {name} is missing")
    try:
        description = json.loads((folder / "config.json").read_bytes())
        name, fields, expected = (description[key] for key in ("model", "config", "sha256"))
        known = name in _models
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        raise ModelFileError(f"{folder / 'config.json'} is damaged: {error!r:.200}") from error
    if not known:
        raise ModelFileError(f"{folder} holds a model of the kind {name!r}; known kinds: {', '.join(_models)}")
    weights = (folder / "model.safetensors").read_bytes()
    if _digest(name, fields, weights) != expected:
        raise ModelFileError(
            f"{folder}: config.json and model.safetensors ({len(weights)} bytes) do not belong together, or one is "
            "damaged: the checksum does not match"
        )
    model_class, config_class = _models[name]
    try:
        # Without memory at first: a configuration is not believed before the weights have its shapes.
        with torch.device("meta"):
            model = model_class(config_class(**fields))
        # Copied into torch's own aligned memory: kernels round differently on other addresses.
        tensors = {key: tensor.clone() for key, tensor in load(weights).items()}
        model.load_state_dict(tensors, assign=True)
    except (TypeError, ValueError, RuntimeError, OverflowError, SafetensorError) as error:
        raise ModelFileError(f"{folder}: the configuration and the weights do not make a {name}: {error}") from error
    return model.to(device).eval()


def _digest(name: str, fields: dict[str, Any], weights: bytes) -> str:
    digest = hashlib.sha256(json.dumps([name, fields], sort_keys=True).encode())
    digest.update(weights)
    return digest.hexdigest()
