"""The folder of a run, seen from outside: what was asked for, what came of it, and that one process writes there."""

import contextlib
import fcntl
import json
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch

import scannable.training.checkpoint as checkpoints
from scannable.storage.configuration import from_plain
from scannable.storage.model_file import build_model
from scannable.training.recipe import Recipe


class TrainingError(RuntimeError):
    """A run that cannot go on; the message says why, and what is left."""


def load_recipe(folder: Path) -> Recipe[Any, Any]:
    """The configuration of a run."""
    path = folder / "config.json"
    if not path.is_file():
        raise TrainingError(f"{folder} holds no run: config.json is missing")
    try:
        plain = json.loads(path.read_bytes())
    except (ValueError, RecursionError) as error:
        raise TrainingError(f"{path} is damaged: {error}") from error
    return from_plain(plain, Recipe, "config.json")


def load_result(folder: Path) -> dict[str, Any] | None:
    """What a run found on the test split, once it has come to its end."""
    path = folder / "result.json"
    if not path.is_file():
        return None
    try:
        return dict(json.loads(path.read_bytes()))
    except (ValueError, TypeError) as error:
        raise TrainingError(f"{path} is damaged: {error}; delete it, and resume the run to write it anew") from error


def load_trained(
    folder: Path, *, best: bool = True, device: str | torch.device = "cpu"
) -> tuple[Recipe[Any, Any], Any]:
    """A run's recipe and its model, with the best weights (averaged, if the run averages) or the newest."""
    recipe = load_recipe(folder)
    place = folder / "checkpoints"
    steps = checkpoints.steps(place)
    for step in reversed(steps):
        try:
            checkpoint = checkpoints.read(checkpoints.path_of(place, step))
            found = checkpoint.state.get("best") if best else None
            if found and found["step"] != step:
                checkpoint = checkpoints.read(checkpoints.path_of(place, found["step"]))
        except checkpoints.CheckpointError as error:
            if step == steps[0]:
                raise
            warnings.warn(f"skipped: {error}", stacklevel=2)
            continue
        model = build_model(recipe.model)
        model.load_state_dict(checkpoint.model)
        if checkpoint.average:
            model.load_state_dict(checkpoint.average, strict=False)
        return recipe, model.to(device).eval()
    raise TrainingError(f"{folder} has no checkpoint yet")


def differences(saved: Any, mine: Any, where: str = "") -> list[str]:
    """In words, which fields of two plain configurations are not equal."""
    if isinstance(saved, dict) and isinstance(mine, dict):
        names = sorted({*saved, *mine})
        return [d for name in names for d in differences(saved.get(name), mine.get(name), f"{where}.{name}".strip("."))]
    return [] if saved == mine else [f"{where} was {saved!r:.40}, is {mine!r:.40}"]


@contextlib.contextmanager
def only_process_in(folder: Path) -> Iterator[None]:
    """Refuse a folder in which another process trains; the lock ends with the process, however it ends."""
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / ".lock").open("a") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            raise TrainingError(f"another process is training in {folder}; wait for it, or stop it") from error
        yield
