"""A trained model, as an argument of a command: the folder of a run, or the name of a shipped model."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import tyro
from tyro.conf import Positional

from scannable.storage.configuration import ConfigurationError

if TYPE_CHECKING:
    from scannable.training.recipe import Recipe, Weights
    from scannable.training.run_folder import TrainedModel

RunFolder = Positional[Annotated[Path, tyro.conf.arg(metavar="RUN")]]
RunFolders = Positional[Annotated[tuple[Path, ...], tyro.conf.arg(metavar="RUN [RUN ...]")]]


def check_run(folder: Path) -> None:
    """Refuse what holds no run, before anything is imported that would read it."""
    if not folder.is_dir():
        raise ConfigurationError(f"there is no folder {folder}; give the folder of a run, such as runs/s5")
    if not (folder / "config.json").is_file():
        raise ConfigurationError(f"{folder} holds no run: config.json is missing; `scannable train` makes one")


def is_shipped(run: Path) -> bool:
    """Whether this is the name of a shipped model; a run in a folder of that name comes first."""
    from scannable.weights.shipped_model import shipped_models

    return str(run) in shipped_models() and not (run / "config.json").is_file()


def check_model(run: Path) -> None:
    """Refuse what is neither a shipped model nor a run."""
    if is_shipped(run):
        return
    from scannable.weights.shipped_model import shipped_models

    try:
        check_run(run)
    except ConfigurationError as error:
        raise ConfigurationError(f"{error}, or a shipped model: {', '.join(shipped_models())}") from None


def recipe_of(run: Path) -> "Recipe[Any, Any]":
    """What the model was trained by."""
    from scannable.storage.configuration import from_plain
    from scannable.training.recipe import Recipe
    from scannable.training.run_folder import load_recipe
    from scannable.weights.shipped_model import MANIFEST, shipped

    return from_plain(shipped(str(run)).recipe, Recipe, MANIFEST) if is_shipped(run) else load_recipe(run)


def load(run: Path, *, weights: "Weights | None" = None, device: Any = "cpu") -> "TrainedModel":
    """The model, ready to be used."""
    from scannable.training.run_folder import load_trained
    from scannable.weights.shipped_model import load_shipped

    if not is_shipped(run):
        return load_trained(run, weights=weights, device=device)
    found = load_shipped(str(run), device=device)
    if weights not in (None, found.weights):
        raise ConfigurationError(
            f"the shipped model {run} has the {found.weights} weights only, not the {weights} ones"
        )
    return found
