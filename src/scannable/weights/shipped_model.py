"""A shipped model: a checked folder, whose manifest has the recipe, the numbers, and the SHA-256 of every file.

    NAME/manifest.json  model.safetensors  config.json  [tokenizer.json  tokenizer_config.json]

`scannable.weights.ship` makes one of a run. Reading a manifest needs no torch.
"""

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from scannable.storage.checked_folder import DamagedError, Sum, check_files, read_manifest
from scannable.storage.configuration import ConfigurationError, from_plain, nearest

if TYPE_CHECKING:
    import torch

    from scannable.training.run_folder import TrainedModel

FORMAT = "scannable-shipped-1"
MANIFEST = "manifest.json"
PLACE = Path(__file__).parent
"""Where those of the package are."""


class ShippedModelError(ValueError):
    """A shipped model that is not what was shipped.

    >>> from scannable.weights import ShippedModelError
    >>> issubclass(ShippedModelError, ValueError)
    True
    """


@dataclass(frozen=True)
class Shipped:
    """What a manifest says about its model.

    >>> from scannable.weights import shipped
    >>> about = shipped("s5")
    >>> about.parameters, max(score["length"] for score in about.test), about.found.startswith("error 0.0000%")
    (413056, 4096, True)
    """

    name: str
    folder: Path
    title: str
    """What it is, in a line."""
    recipe: dict[str, Any]
    """As JSON holds it."""
    step: int
    which: str
    """The weights of the last step, or the best ones."""
    parameters: int
    tokens: int
    """Seen in training."""
    test: tuple[dict[str, Any], ...]
    """What the run found on the test split, by length."""
    files: dict[str, Sum]

    @property
    def nbytes(self) -> int:
        return sum(one["size"] for one in self.files.values())

    @property
    def is_language_model(self) -> bool:
        return str(self.recipe["task"].get("kind", "")).endswith(":TextTask")

    @property
    def found(self) -> str:
        """Its numbers, in a line: of a text bits per byte, of anything else the error, at the longest length."""
        score = max(self.test, key=lambda score: score["length"])
        if score["bits_per_byte"] is not None:
            return f"{score['bits_per_byte']:.3f} bits per byte, {score['samples']:,} windows of {score['length']:,}"
        return f"error {score['error']:.4%} in {score['samples']:,} x {score['length']:,} tokens"


def shipped_models(place: Path = PLACE) -> list[str]:
    """The names of all of them.

    >>> from scannable.weights import shipped_models
    >>> shipped_models()
    ['s5', 'stdlib-hybrid']
    """
    return sorted(path.parent.name for path in place.glob(f"*/{MANIFEST}"))


def shipped(name: str, place: Path = PLACE) -> Shipped:
    """The model of that name, its manifest checked, its files still to be.

    >>> from scannable.weights import shipped
    >>> shipped("stdlib-hybrid").is_language_model
    True
    """
    names = shipped_models(place)
    if name not in names:
        raise ConfigurationError(f"there is no shipped model {name!r:.60}{nearest(name, names)}")
    folder = place / name
    try:
        about, files = read_manifest(folder / MANIFEST)
        if about.pop("format") != FORMAT:
            raise DamagedError(f"{MANIFEST} is of another format than {FORMAT}")
        return Shipped(name, folder, test=tuple(about.pop("test")), files=files, **about)
    except (DamagedError, KeyError, TypeError) as error:
        raise ShippedModelError(f"the shipped model {name} is damaged: {error}; install scannable again") from error


def language_model(place: Path = PLACE) -> str | None:
    """The name of the first one that writes text, if there is any."""
    return next((name for name in shipped_models(place) if shipped(name, place).is_language_model), None)


def load_shipped(name: str, *, device: "str | torch.device" = "cpu", place: Path = PLACE) -> "TrainedModel":
    """The model of that name, checked to the last bit, in evaluation mode.

    >>> from scannable.weights import load_shipped
    >>> found = load_shipped("s5")
    >>> batch = found.recipe.task.batch("test", range(4), 100)
    >>> torch.equal(found.model(batch.tokens).argmax(-1), batch.targets)
    True
    """
    from scannable.storage.model_file import ModelFileError, load_model
    from scannable.training.recipe import Recipe
    from scannable.training.run_folder import TrainedModel, with_kept

    about = shipped(name, place)
    try:
        check_files(about.folder, about.files)
        model = load_model(about.folder, device=device)
        recipe = from_plain(about.recipe, Recipe, MANIFEST)
    except (DamagedError, ModelFileError) as error:
        raise ShippedModelError(f"the shipped model {name} is damaged: {error}; install scannable again") from error
    if recipe.model != model.config:
        raise ShippedModelError(f"the shipped model {name} is not the model of its recipe; install scannable again")
    which: Any = about.which
    return TrainedModel(with_kept(recipe, about.folder), model, about.step, which)
