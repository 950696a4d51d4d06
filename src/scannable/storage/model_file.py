"""A model on disk: a folder with `model.safetensors` and `config.json`.

`model.safetensors` is the whole truth: a sealed file (`tensor_file.py`) of the weights, with the configuration in its
metadata. So one rename puts a model in place of another. `config.json` is the same configuration for people to read.
It has the seal of the weights that it was written with, and a checksum of its own, so that a change by hand is told
from a save that was killed between the two files.
"""

import json
import warnings
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from scannable.storage.configuration import ConfigurationError, from_plain, to_plain
from scannable.storage.files import write_whole
from scannable.storage.registry import known_models, model_of, why_unknown
from scannable.storage.strict_json import parse, seal, unseal
from scannable.storage.tensor_file import TensorFileError, read_sealed, write_sealed
from scannable.storage.weights import NeedsValuesError, built, ties_of, unsaved_buffers_of, weights_of, without_memory

FORMAT = "scannable-model-2"
WEIGHTS, CONFIG = "model.safetensors", "config.json"


class ModelFileError(ValueError):
    """A folder that holds no model, or a damaged one.

    >>> try:
    ...     sc.load_model(folder / "nothing")
    ... except sc.ModelFileError:
    ...     print("no model there")
    no model there
    """


def build_model(config: Any) -> Any:
    """A new model of the kind that `config` belongs to."""
    model = model_of(type(config))
    if model is None:
        reason = why_unknown(type(config)) or f"known: {', '.join(known_models())} (register_model adds one)"
        raise TypeError(f"no model is built from a {type(config).__name__}; {reason}")
    return model(config)


def save_model(model: nn.Module, folder: str | Path) -> None:
    """Write a model's configuration and weights into `folder`, in one step in place of what is there.

    What its class makes in `__init__` and keeps out of `state_dict()` is made again by `load_model`.

    >>> sc.save_model(sc.LM(sc.LMConfig(vocab_size=50, width=16, heads=2)), folder / "saved")
    >>> sorted(path.name for path in (folder / "saved").iterdir())
    ['config.json', 'model.safetensors']
    """
    model = getattr(model, "_orig_mod", model)
    config: Any = getattr(model, "config", None)
    if model_of(type(config)) is not type(model):
        reason = why_unknown(type(config)) if config is not None else None
        raise TypeError(
            f"{type(model).__name__} cannot be saved: no registered configuration stands for it; "
            f"{f'{reason}; ' if reason else ''}known: {', '.join(known_models())} (register_model adds one)"
        )
    weights = weights_of(model)
    tied = ties_of(weights)
    try:
        plain = to_plain(config)
        back = from_plain(plain)
        if back != config and type(config).__eq__ is not object.__eq__:
            raise ConfigurationError(f"{config!r:.200} would be read back as {back!r:.200}")
    except ConfigurationError as error:
        raise TypeError(f"{type(model).__name__} cannot be saved: {error}") from error
    _check_described(model, weights)
    about = {
        "config": plain,
        "tied": tied,
        "buffers": {
            name: str(buffer.dtype).removeprefix("torch.") for name, buffer in unsaved_buffers_of(model).items()
        },
    }
    folder = Path(folder)
    metadata = {"format": FORMAT, "about": json.dumps(about, allow_nan=False)}
    stored = {name: tensor for name, tensor in weights.items() if name not in tied}
    written = write_sealed(folder / WEIGHTS, stored, metadata)
    write_whole(folder / CONFIG, seal({"format": FORMAT, "config": plain, "weights": written}) + b"\n")


def load_model(folder: str | Path, device: str | torch.device = "cpu") -> Any:
    """Build the model that `save_model` wrote, in eval mode, after checking that both files are whole.

    >>> sc.save_model(sc.LM(sc.LMConfig(vocab_size=50, width=16, heads=2)), folder / "model")
    >>> sc.load_model(folder / "model").config.layers
    ('gla', 'gla', 'gla', 'gla')
    """
    folder = Path(folder)
    for name in (CONFIG, WEIGHTS):
        if not (folder / name).is_file():
            raise ModelFileError(f"{folder} holds no model: {name} is missing")
    description = _read_description(folder / CONFIG)
    try:
        metadata, tensors = read_sealed(folder / WEIGHTS, FORMAT)
        about = parse(metadata["about"])
        plain, tied, dtypes = (dict(about[key]) for key in ("config", "tied", "buffers"))
        tensors |= {name: tensors[first] for name, first in tied.items()}
        dtypes = {name: _dtype(dtype) for name, dtype in dtypes.items()}
    except (TensorFileError, ValueError, KeyError, TypeError) as error:
        raise ModelFileError(f"{folder / WEIGHTS} cannot be read as a saved model: {error!s:.300}") from error
    if description.get("weights") == metadata["sha256"]:
        if description.get("config") != plain:
            raise ModelFileError(
                f"{folder / CONFIG} has another configuration than {WEIGHTS}, which it claims to describe"
            )
    else:
        warnings.warn(
            f"{folder / CONFIG} is of another save than {WEIGHTS}, as after a save that was killed; the model is built "
            "from the configuration inside the weights, and the next save_model writes both anew",
            stacklevel=2,
        )
    config = _read_config(plain, folder)
    try:
        model = built(lambda: build_model(config), tensors)
    except Exception as error:
        # Behind the first two lines torch has its own stack.
        reason = " ".join(str(error).split("\n")[:2])
        raise ModelFileError(
            f"{folder}: the configuration and the weights do not make a model of a {type(config).__name__}: {reason}"
        ) from error
    for name, buffer in unsaved_buffers_of(model).items():
        owner, _, attribute = name.rpartition(".")
        model.get_submodule(owner)._buffers[attribute] = buffer.to(dtypes.get(name, buffer.dtype))
    return model.to(device).eval()


def _read_description(path: Path) -> dict[str, Any]:
    try:
        return unseal(path.read_bytes().removesuffix(b"\n"))
    except (ValueError, OSError) as error:
        raise ModelFileError(
            f"{path} is damaged, or was changed by hand, which changes nothing about the model: {error!s:.200}; put "
            "back what save_model wrote, or build_model a changed configuration"
        ) from error


def _read_config(plain: dict[str, Any], folder: Path) -> Any:
    try:
        config = from_plain(plain)
    except ConfigurationError as error:
        raise ModelFileError(f"{folder} holds a model that cannot be built here: {error}") from error
    if model_of(type(config)) is None:
        raise ModelFileError(
            f"{folder} holds a {type(config).__name__}, which is no configuration of a model; known: "
            f"{', '.join(known_models())}"
        )
    return config


def _check_described(model: nn.Module, weights: dict[str, Tensor]) -> None:
    """Refuse a model that its configuration does not build: it could not be loaded."""
    try:
        described = weights_of(without_memory(lambda: build_model(model.config))[0])
    except NeedsValuesError:
        return
    for name in {**described, **weights}:
        expected, found = (tuple(one[name].shape) if name in one else "nothing" for one in (described, weights))
        if expected != found:
            raise TypeError(
                f"{type(model).__name__} cannot be saved: its configuration builds {name} as {expected}, but the model "
                f"has {found} there; register a configuration that describes it (register_model)"
            )


def _dtype(name: str) -> torch.dtype:
    dtype = getattr(torch, name, None)
    if not isinstance(dtype, torch.dtype):
        raise ValueError(f"{name!r:.60} is no dtype")
    return dtype
