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

from scannable.storage.files import write_whole
from scannable.storage.registry import find, known_models, model_of, name_of


class ModelFileError(ValueError):
    """A folder that holds no model, or a damaged one."""


def build_model(config: Any) -> Any:
    """A new model of the kind that `config` belongs to."""
    model = model_of(type(config))
    if model is None:
        raise TypeError(
            f"no model is built from a {type(config).__name__}; known: {', '.join(known_models())} (register_model "
            "adds one)"
        )
    return model(config)


def save_model(model: nn.Module, folder: str | Path) -> None:
    """Write a model's configuration and weights into `folder`, each file whole or not at all."""
    config: Any = getattr(model, "config", None)
    if model_of(type(config)) is not type(model):
        raise TypeError(
            f"{type(model).__name__} cannot be saved: no registered configuration stands for it; known: "
            f"{', '.join(known_models())} (register_model adds one)"
        )
    name, folder = name_of(type(config)), Path(folder)
    weights = save({key: tensor.detach().cpu().contiguous() for key, tensor in model.state_dict().items()})
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
        config_class = find(name)
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        raise ModelFileError(f"{folder / 'config.json'} is damaged: {error!r:.200}") from error
    model_class = None if config_class is None else model_of(config_class)
    if config_class is None or model_class is None:
        raise ModelFileError(f"{folder} holds a model of the kind {name!r}; known kinds: {', '.join(known_models())}")
    weights = (folder / "model.safetensors").read_bytes()
    if _digest(name, fields, weights) != expected:
        raise ModelFileError(
            f"{folder}: config.json and model.safetensors ({len(weights)} bytes) do not belong together, or one is "
            "damaged: the checksum does not match"
        )
    try:
        # Without memory at first: a configuration is not believed before the weights have its shapes.
        with torch.device("meta"):
            model = model_class(config_class(**fields))
        # Copied into torch's own aligned memory: kernels round differently on other addresses.
        tensors = {key: tensor.clone() for key, tensor in load(weights).items()}
        model.load_state_dict(tensors, assign=True)
    except (TypeError, ValueError, RuntimeError, OverflowError, SafetensorError) as error:
        # Behind the first two lines torch has its own stack.
        reason = " ".join(str(error).split("\n")[:2])
        raise ModelFileError(
            f"{folder}: the configuration and the weights do not make a {model_class.__name__}: {reason}"
        ) from error
    return model.to(device).eval()


def _digest(name: str, fields: dict[str, Any], weights: bytes) -> str:
    digest = hashlib.sha256(json.dumps([name, fields], sort_keys=True).encode())
    digest.update(weights)
    return digest.hexdigest()
