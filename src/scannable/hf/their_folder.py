"""Models of others, in the folders that `save_pretrained` writes: read with care, and built as an `LM`.

Only JSON and safetensors are read; nothing is unpickled, and `transformers` itself is not needed.
"""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import Tensor

from scannable.models.lm import LM
from scannable.models.lm_config import LMConfig
from scannable.storage.model_file import ModelFileError

Weights = dict[str, Tensor]


def load_folder(
    folder: str | Path,
    config_of: Callable[[dict[str, Any]], LMConfig],
    weights_of: Callable[[dict[str, Any], Weights], Weights],
) -> LM:
    """The `LM` of a folder of others.

    Args:
        folder: with config.json and model.safetensors, or the shards of one.
        config_of: our configuration, from theirs; a ValueError says what has no place here, a KeyError what is missing.
        weights_of: our weights by name, from their configuration and their weights.
    """
    folder = Path(folder)
    theirs = _config(folder)
    try:
        config = config_of(theirs)
        weights = weights_of(theirs, _weights(folder))
        # All in one dtype: some checkpoints keep rates in float32 beside half precision.
        dtype = weights["embedding.weight"].dtype
        weights = {name: tensor.to(dtype, copy=True) for name, tensor in weights.items()}
        _drop_tied_head(folder, config, weights)
        with torch.device("meta"):
            model = LM(config)
        model.load_state_dict(weights, assign=True)
    except ModelFileError:
        raise
    except (ValueError, ArithmeticError) as error:
        raise ModelFileError(f"{folder / 'config.json'}: {error}") from error
    except (KeyError, TypeError) as error:
        raise ModelFileError(f"{folder}: config.json or the weights lack something: {error!r:.200}") from error
    except RuntimeError as error:
        raise ModelFileError(f"{folder}: the configuration and the weights do not fit: {error}") from error
    return model.eval()


def _config(folder: Path) -> dict[str, Any]:
    path = folder / "config.json"
    if not path.is_file():
        raise ModelFileError(f"{folder} holds no model of transformers: config.json is missing")
    try:
        theirs = json.loads(path.read_bytes())
        theirs["model_type"]
    except (ValueError, KeyError, TypeError) as error:
        raise ModelFileError(f"{path} is damaged: {error!r:.200}") from error
    return theirs


def _weights(folder: Path) -> Weights:
    index = folder / "model.safetensors.index.json"
    if index.is_file():
        try:
            names = sorted(set(json.loads(index.read_bytes())["weight_map"].values()))
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise ModelFileError(f"{index} is damaged: {error!r:.200}") from error
    else:
        names = ["model.safetensors"]
    weights: Weights = {}
    for name in names:
        if Path(name).name != name or not (folder / name).is_file():
            raise ModelFileError(f"{folder} holds no file {name}; only safetensors are read, nothing is unpickled")
        try:
            weights |= load_file(folder / name)
        except SafetensorError as error:
            raise ModelFileError(f"{folder / name} is damaged: {error}") from error
    return weights


def _drop_tied_head(folder: Path, config: LMConfig, weights: Weights) -> None:
    if config.tie_weights and not torch.equal(weights.pop("head.weight", own := weights["embedding.weight"]), own):
        # Early versions of transformers 5 leave them untied and do not say so.
        raise ModelFileError(
            f"{folder}: config.json has tie_word_embeddings, but the file has an output layer that is not the "
            "embedding; set it to false there if the model was trained that way"
        )
