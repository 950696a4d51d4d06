"""Recipes: functions that return a whole configuration, to be run as they are or changed field by field.

Those that an experiment reports are here too, and it imports them: `train s5` trains what `reproduce s5` does.
"""

# In the order in which they are listed.
# isort: off
from scannable.recipes.catalogue import RECIPES, about, all_recipes, recipe, recipe_named
from scannable.recipes.demo import demo
from scannable.recipes.state_tracking import s5, s5_plain
from scannable.recipes.recall import mqar
from scannable.recipes.language_modelling import stdlib, stdlib_hybrid, stdlib_mamba

__all__ = [
    "RECIPES",
    "about",
    "all_recipes",
    "demo",
    "mqar",
    "recipe",
    "recipe_named",
    "s5",
    "s5_plain",
    "stdlib",
    "stdlib_hybrid",
    "stdlib_mamba",
]
