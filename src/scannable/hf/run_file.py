"""What a folder of `transformers` remembers of the run that it was exported from, so that it can go back."""

import hashlib
import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from scannable.storage.configuration import ConfigurationError, from_plain, to_plain
from scannable.storage.files import write_whole
from scannable.storage.model_file import ModelFileError
from scannable.storage.strict_json import parse
from scannable.tasks.tokenizer import CONFIG, FILE
from scannable.training.recipe import Recipe, Weights

NAME = "scannable_run.json"


@dataclass(frozen=True)
class RunFile:
    """The run, and which weights it had."""

    recipe: Recipe[Any, Any]
    step: int
    weights: Weights
    digest: str
    """Of the weights that were exported: other ones are not those that `result` speaks of."""
    result: dict[str, Any] | None
    tokenizer: dict[str, str]
    """The files of its tokenizer, which transformers writes in its own way."""

    def write(self, folder: Path) -> None:
        plain = {
            "recipe": to_plain(self.recipe),
            "step": self.step,
            "weights": self.weights,
            "digest": self.digest,
            "result": self.result,
            "tokenizer": self.tokenizer,
        }
        write_whole(folder / NAME, json.dumps(plain, indent=1).encode() + b"\n")

    @staticmethod
    def read(folder: Path) -> "RunFile | None":
        """What a folder remembers; None if nothing."""
        path = folder / NAME
        if not path.is_file():
            return None
        try:
            plain = parse(path.read_text())
            recipe = from_plain(plain["recipe"], Recipe, "recipe")
            tokenizer = {name: str(plain["tokenizer"][name]) for name in (FILE, CONFIG) if name in plain["tokenizer"]}
            return RunFile(recipe, int(plain["step"]), plain["weights"], plain["digest"], plain["result"], tokenizer)
        except (ValueError, KeyError, TypeError, ConfigurationError) as error:
            raise ModelFileError(
                f"{path} cannot be read: {error!s:.200}; without it the folder is imported as a model"
            ) from error


def digest(model: nn.Module) -> str:
    """The same for the same weights under the same names."""
    found = hashlib.sha256()
    for name, value in sorted(model.state_dict().items()):
        found.update(f"{name} {value.dtype} {tuple(value.shape)}\n".encode())
        found.update(_content(value))
    return found.hexdigest()


def _content(value: Tensor) -> bytes:
    return value.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy().tobytes()
