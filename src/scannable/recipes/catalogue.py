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
    """Put a recipe on the list, under its name with dashes. The first line of its docstring is its description.

    >>> from dataclasses import replace
    >>> from scannable.recipes import RECIPES, recipe, s5
    >>> @recipe
    ... def s5_short():
    ...     '''State tracking, for a quick look.'''
    ...     return replace(s5(), steps=100)
    >>> RECIPES["s5-short"]().steps
    100
    >>> _ = RECIPES.pop("s5-short")
    """
    RECIPES[function.__name__.replace("_", "-")] = function
    return function


def all_recipes() -> Mapping[str, Maker]:
    """Those that installed packages bring, too.

    >>> from scannable.recipes import all_recipes
    >>> list(all_recipes())[:2]
    ['demo', 's5']
    """
    load_plugins()
    return RECIPES


def recipe_named(name: str) -> Recipe[Any, Any]:
    """The recipe of that name.

    >>> from scannable.recipes import recipe_named
    >>> recipe_named("s5").task.group
    'S5'
    """
    known = all_recipes()
    if name not in known:
        raise ConfigurationError(f"there is no recipe {name!r:.60}{nearest(name, known)}")
    return known[name]()


def about(name: str) -> str:
    """A recipe's description, in one line.

    >>> from scannable.recipes import about
    >>> about("demo")
    'Sums modulo five with a tiny Transformer-PSM, c = 1: learned in about a minute on one core.'
    """
    return (all_recipes()[name].__doc__ or "").strip().partition("\n")[0]
