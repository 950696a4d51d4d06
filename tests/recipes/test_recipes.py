"""Every recipe makes a run that fits together."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

from scannable.recipes import RECIPES, about, recipe, recipe_named
from scannable.storage.configuration import ConfigurationError, to_plain
from scannable.storage.model_file import build_model
from scannable.tasks.text import TextTask
from scannable.training.limits import check_memory
from scannable.training.recipe import Recipe

NAMES = list(RECIPES)
OURS = ("demo", "mqar", "s5", "s5-plain", "stdlib", "stdlib-hybrid", "stdlib-mamba")
KEPT = Path(__file__).parent / "recipes.json"


def all_recipes() -> str:
    """Those of this package, as a configuration is written."""
    return json.dumps({name: to_plain(recipe_named(name)) for name in OURS}, indent=1) + "\n"


def test_the_recipes_are_listed_with_a_line_for_each() -> None:
    assert set(OURS) <= set(RECIPES)
    for name in RECIPES:
        assert name == name.lower() and "_" not in name
        assert about(name).endswith(".") and 20 < len(about(name)) <= 110, name


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
    with pytest.raises(
        ConfigurationError, match="known: demo, s5, s5-plain, mqar, stdlib, stdlib-mamba, stdlib-hybrid"
    ):
        recipe_named(typed)


def test_a_recipe_of_ones_own_is_found_under_its_name_with_dashes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("scannable.recipes.catalogue.RECIPES", dict(RECIPES))

    @recipe
    def my_own_recipe() -> Recipe[Any, Any]:
        return recipe_named("demo")

    assert recipe_named("my-own-recipe") == recipe_named("demo")


def test_all_recipes_are_made_without_torch() -> None:
    code = (
        "import sys; sys.modules.update(dict.fromkeys(('torch', 'matplotlib', 'transformers', 'tokenizers')))\n"
        "from scannable.recipes import all_recipes, recipe_named\n"
        "print(*(recipe_named(name).steps for name in all_recipes()))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert len(done.stdout.split()) == len(NAMES)


def test_an_installed_package_brings_recipes(tmp_path: Path) -> None:
    """Through the entry points, as pip leaves them; nobody has to import the package."""
    (tmp_path / "bringing.py").write_text(
        "from scannable.recipes import demo, recipe\n"
        "@recipe\ndef brought_along():\n    'Sums, brought by another package.'\n    return demo()\n"
    )
    about = tmp_path / "bringing-1.0.dist-info"
    about.mkdir()
    (about / "METADATA").write_text("Metadata-Version: 2.1\nName: bringing\nVersion: 1.0\n")
    (about / "entry_points.txt").write_text("[scannable.plugins]\nbringing = bringing\n")
    environment = os.environ | {"PYTHONPATH": os.pathsep.join([str(tmp_path), os.environ.get("PYTHONPATH", "")])}

    def scannable(*arguments: str) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, "-m", "scannable", *arguments]
        return subprocess.run(command, capture_output=True, text=True, check=False, env=environment)

    assert "brought-along   Sums, brought by another package." in scannable("recipes").stdout.splitlines()
    done = scannable("train", "brought-along", "--help")
    assert done.returncode == 0 and "Sums, brought by another package." in done.stdout
    assert "brought-along" in scannable("train", "nonesuch").stderr


def test_what_a_name_trains_changes_only_where_it_is_meant() -> None:
    """`recipes.json` is what each name trains. After a change that is meant, write it anew:

    PYTHONPATH=tests/recipes python -c "import test_recipes as t; t.KEPT.write_text(t.all_recipes())"
    """
    assert all_recipes() == KEPT.read_text()
