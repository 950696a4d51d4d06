"""Every recipe makes a run that fits together."""

from typing import Any

import pytest
import torch

from scannable.recipes import RECIPES, recipe, recipe_named
from scannable.storage.configuration import ConfigurationError
from scannable.storage.model_file import build_model
from scannable.tasks.text import TextTask
from scannable.training.limits import check_memory
from scannable.training.recipe import Recipe

NAMES = list(RECIPES)


def test_the_recipes_are_listed_with_a_line_for_each() -> None:
    assert {"demo", "s5", "mqar", "stdlib", "stdlib-mamba"} <= set(RECIPES)
    for name, function in RECIPES.items():
        assert name == name.lower() and "_" not in name
        first = (function.__doc__ or "").strip().splitlines()[0]
        assert first.endswith(".") and 20 < len(first) <= 110, name


@pytest.mark.parametrize("name", NAMES)
def test_a_recipe_is_the_same_each_time_and_fits_this_machine(name: str) -> None:
    assert recipe_named(name) == recipe_named(name)
    check_memory(recipe_named(name))


@pytest.mark.parametrize("name", NAMES)
def test_the_model_has_a_token_and_an_output_for_all_of_the_task(name: str) -> None:
    chosen = recipe_named(name)
    model, task = build_model(chosen.model), chosen.task
    assert model(torch.zeros(2, 8, dtype=torch.int64)).shape == (2, 8, task.out_size)
    assert task.vocab_size == chosen.model.vocab_size
    assert task.out_size == (chosen.model.out_size or chosen.model.vocab_size)


@pytest.mark.parametrize("name", [name for name in NAMES if not isinstance(recipe_named(name).task, TextTask)])
def test_the_task_has_samples_of_every_length_and_the_model_reads_them(name: str) -> None:
    chosen = recipe_named(name)
    model = build_model(chosen.model).eval()
    for split in ("train", "validation", "test"):
        for length in (*chosen.curriculum.lengths, *chosen.evaluation.lengths):
            batch = chosen.task.batch(split, range(2), length)
            assert batch.tokens.shape == batch.targets.shape == (2, length)
            assert int(batch.targets.max()) < chosen.task.out_size
            with torch.no_grad():
                assert model(batch.tokens).isfinite().all()


@pytest.mark.parametrize("name", NAMES)
def test_a_run_looks_and_saves_before_it_ends(name: str) -> None:
    chosen = recipe_named(name)
    assert chosen.evaluation.every <= chosen.steps and chosen.checkpoint_every <= chosen.steps
    assert chosen.optimizer.warmup < chosen.steps
    assert max(chosen.curriculum.lengths) <= chosen.batch_tokens


@pytest.mark.parametrize(("typed", "meant"), [("dmo", "demo"), ("S5", "s5"), ("stdlib_mamba", "stdlib-mamba")])
def test_a_wrong_name_gets_the_nearest_one(typed: str, meant: str) -> None:
    with pytest.raises(ConfigurationError, match=f"there is no recipe '{typed}'; did you mean '{meant}'"):
        recipe_named(typed)


@pytest.mark.parametrize("typed", ["", "zzzzzz", "demo " * 1000, "\ud800", "../demo"])
def test_a_name_like_no_other_gets_the_list(typed: str) -> None:
    with pytest.raises(ConfigurationError, match="known: demo, s5, mqar, stdlib, stdlib-mamba"):
        recipe_named(typed)


def test_a_recipe_of_ones_own_is_found_under_its_name_with_dashes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("scannable.recipes.RECIPES", dict(RECIPES))

    @recipe
    def my_own_recipe() -> Recipe[Any, Any]:
        return recipe_named("demo")

    assert recipe_named("my-own-recipe") == recipe_named("demo")
