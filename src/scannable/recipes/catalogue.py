"""The list of recipes, by name; an installed package can bring more (`scannable.storage.registry`)."""

from collections.abc import Callable, Mapping
from typing import Any, TypeVar

from scannable.storage.configuration import ConfigurationError, nearest
from scannable.storage.registry import load_plugins
from scannable.training.recipe import Recipe

Maker = Callable[[], Recipe[Any, Any]]
F = TypeVar("F", bound=Maker)

RECIPES: dict[str, Maker] = {}
"""Those that are known by now."""


def recipe(function: F) -> F:
    """Put a recipe on the list, under its name with dashes. The first line of its docstring is its description."""
    RECIPES[function.__name__.replace("_", "-")] = function
    return function


def all_recipes() -> Mapping[str, Maker]:
    """Those that installed packages bring, too."""
    load_plugins()
    return RECIPES


def recipe_named(name: str) -> Recipe[Any, Any]:
    """The recipe of that name."""
    known = all_recipes()
    if name not in known:
        raise ConfigurationError(f"there is no recipe {name!r:.60}{nearest(name, known)}")
    return known[name]()


def about(name: str) -> str:
    """A recipe's description, in one line."""
    return (all_recipes()[name].__doc__ or "").strip().partition("\n")[0]
