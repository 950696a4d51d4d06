"""Which samples a seed has."""

from dataclasses import replace
from typing import Any, TypeVar

from scannable.training.recipe import Recipe

R = TypeVar("R", bound=Recipe[Any, Any])
T = TypeVar("T", bound=Any)
TRIALS = 0
"""The seed of the task that choices are made with; no reported run has it."""
UNSEEN = 1000
"""How far the seeds of samples that are read at last are from those of the runs."""


def with_seed(recipe: R, seed: int) -> R:
    """The run of a seed, on samples of its own.

    Seed 0 of the task belongs to trials: nothing is chosen on samples of a reported run.
    """
    return replace(recipe, seed=seed, task=replace(recipe.task, seed=TRIALS + 1 + seed))


def for_trials(recipe: R) -> R:
    """The same on the samples of trials."""
    return replace(recipe, task=replace(recipe.task, seed=TRIALS))


def unseen(task: T) -> T:
    """The task of a run with samples that no run has, of any split: for what is read only once, at the end of all."""
    return replace(task, seed=task.seed + UNSEEN)
