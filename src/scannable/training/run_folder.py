"""The folder of a run, seen from outside: what was asked for, what came of it, and that one process writes there.

    RUN/config.json  metrics.jsonl  timing.jsonl  checkpoints/  result.json  [tokenizer.json  tokenizer_config.json]

A checkpoint is checked to the last bit and holds the recipe it was made with: that one is believed, and `config.json`
has to agree with it.
"""

import contextlib
import fcntl
import json
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch

import scannable.training.checkpoint as checkpoints
from scannable.storage.configuration import ConfigurationError, from_plain, to_plain
from scannable.storage.files import write_whole
from scannable.storage.model_file import build_model
from scannable.tasks.sample import PinnedTask
from scannable.training.checkpoint import Checkpoint, CheckpointError, Keep
from scannable.training.progress import Progress
from scannable.training.recipe import Recipe, Weights


class TrainingError(RuntimeError):
    """A run that cannot go on; the message says why, and what is left."""


@dataclass(frozen=True)
class TrainedModel:
    """A model with weights that a run left, ready to be used."""

    recipe: Recipe[Any, Any]
    model: Any
    step: int
    weights: Weights

    def __str__(self) -> str:
        average = ", averaged" if self.recipe.ema else ""
        return f"weights of step {self.step} ({self.weights}{average})"


def write_config(folder: Path, recipe: Recipe[Any, Any]) -> None:
    """What this run is, for people and for `load_recipe`; left alone if it is there: the disk may be full."""
    path, content = folder / "config.json", json.dumps(to_plain(recipe), indent=1).encode() + b"\n"
    if not path.is_file() or path.read_bytes() != content:
        write_whole(path, content)


def load_recipe(folder: Path) -> Recipe[Any, Any]:
    """The configuration of a run."""
    plain = _read_json(folder / "config.json", f"{folder} holds no run: config.json is missing")
    return from_plain(plain, Recipe, "config.json")


def load_result(folder: Path) -> dict[str, Any] | None:
    """What a run found on the test split, once it has come to its end."""
    path = folder / "result.json"
    if not path.exists():
        return None
    found = _read_json(path, "", "; delete it, and resume the run to write it anew")
    if not isinstance(found, dict):
        raise TrainingError(f"{path} is damaged: it holds no record; delete it, and resume the run to write it anew")
    return found


def load_trained(
    folder: Path | str, *, weights: Weights | None = None, device: str | torch.device = "cpu"
) -> TrainedModel:
    """A run's model, averaged if the run averages, in evaluation mode.

    Args:
        weights: those of the "last" step or the "best" ones; by default what the recipe tests at the end.
        device: where the model goes.
    """
    folder = Path(folder)
    recipe = load_recipe(folder)
    which: Weights = weights or recipe.evaluation.weights
    checkpoint = newest_checkpoint(folder, lambda text: warnings.warn(f"skipped: {text}", stacklevel=4))
    if checkpoint is None:
        raise TrainingError(f"{folder} has no checkpoint yet")
    changed = differences(recipe_of(checkpoint), to_plain(recipe))
    if changed:
        raise TrainingError(
            f"{folder / 'config.json'} does not agree with the checkpoint of step {checkpoint.step} "
            f"({'; '.join(changed[:5])}); put it back, or resume the run, which writes it anew"
        )
    best = Progress.from_plain(checkpoint.state["progress"]).best
    if which == "best" and best is not None and best.step != checkpoint.step:
        checkpoint = checkpoints.read(checkpoints.path_of(folder / "checkpoints", best.step))
    model = build_model(recipe.model)
    model.load_state_dict(checkpoint.model)
    if checkpoint.average:
        model.load_state_dict(checkpoint.average, strict=False)
    return TrainedModel(with_kept(recipe, folder), model.to(device).eval(), checkpoint.step, which)


def with_kept(recipe: Recipe[Any, Any], folder: Path) -> Recipe[Any, Any]:
    """The recipe, whose task reads what was kept for it in `folder`."""
    task = recipe.task
    return replace(recipe, task=task.kept(folder)) if isinstance(task, PinnedTask) else recipe


def newest_checkpoint(
    folder: Path, skipped: Callable[[str], object], keep: Keep = lambda part, name, tensor: tensor
) -> Checkpoint | None:
    """The newest checkpoint that is whole; `skipped` is told of those that are not. None if there are none at all."""
    place = folder / "checkpoints"
    steps = checkpoints.steps(place)
    for step in reversed(steps):
        try:
            return checkpoints.read(checkpoints.path_of(place, step), keep)
        except CheckpointError as error:
            skipped(str(error))
    if steps:
        raise TrainingError(f"no checkpoint in {place} is whole; start anew in another folder")
    return None


def recipe_of(checkpoint: Checkpoint) -> Any:
    """The recipe in a checkpoint, as JSON holds it. Options that came after it was written have their defaults; one
    that cannot be read is left as it is, and differs.
    """
    saved = checkpoint.state["recipe"]
    with contextlib.suppress(ConfigurationError):
        saved = to_plain(from_plain(saved, Recipe, "the checkpoint"))
    return saved


def differences(saved: Any, mine: Any, where: str = "") -> list[str]:
    """In words, which fields of two plain configurations are not equal."""
    if isinstance(saved, dict) and isinstance(mine, dict):
        names = sorted({*saved, *mine})
        return [d for name in names for d in differences(saved.get(name), mine.get(name), f"{where}.{name}".strip("."))]
    # JSON has no tuples.
    same = json.dumps(saved, sort_keys=True) == json.dumps(mine, sort_keys=True)
    return [] if same else [f"{where} was {saved!r:.40}, is {mine!r:.40}"]


@contextlib.contextmanager
def only_process_in(folder: Path) -> Iterator[None]:
    """Refuse a folder in which another process trains; the lock ends with the process, however it ends."""
    if folder.exists() and not folder.is_dir():
        raise TrainingError(f"{folder} is a file; a run needs a folder of its own")
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / ".lock").open("a") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            raise TrainingError(f"another process is training in {folder}; wait for it, or stop it") from error
        yield


def _read_json(path: Path, missing: str, advice: str = "") -> Any:
    try:
        return json.loads(path.read_bytes())
    except FileNotFoundError:
        raise TrainingError(missing) from None
    except NotADirectoryError as error:
        raise TrainingError(f"{path.parent} is a file, and no folder of a run") from error
    except IsADirectoryError as error:
        raise TrainingError(f"{path} is a folder where a file should be{advice}") from error
    except (ValueError, RecursionError) as error:
        raise TrainingError(f"{path} is damaged: {error}{advice}") from error
