"""A run over text remembers its text and its tokenizer."""

import io
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from scannable.models.lm_config import LMConfig
from scannable.tasks.text import TextTask
from scannable.training.loop import Run
from scannable.training.recipe import Curriculum, Evaluation, Recipe
from scannable.training.run_folder import TrainingError, load_recipe, load_trained

WORDS = [
    "the",
    "cat",
    "sat",
    "on",
    "the",
    "mat",
    "and",
    "the",
    "dog",
    "lay",
    "by",
    "the",
    "door",
    "while",
    "rain",
    "fell",
    "on",
    "the",
    "old",
    "stone",
    "house",
]


@pytest.fixture
def text(tmp_path: Path) -> Path:
    folder = tmp_path / "text"
    folder.mkdir()
    write(folder, 3)
    return folder


def write(folder: Path, stride: int) -> None:
    for i in range(30):
        words = [WORDS[(i + stride * j) % len(WORDS)] for j in range(200)]
        (folder / f"{i}.txt").write_text(" ".join(words))


def recipe_of(text: Path, tokenizer: str = "bpe", **changes: Any) -> Recipe[Any, Any]:
    task = TextTask(str(text), tokenizer, 300 if tokenizer == "bpe" else None, cache=text.parent / "cache")
    values: dict[str, Any] = {
        "model": LMConfig(300, ("gla",), width=8, heads=2),
        "task": task,
        "steps": 4,
        "batch_samples": 2,
        "curriculum": Curriculum((16,)),
        "evaluation": Evaluation(every=4, samples=4),
        "checkpoint_every": 2,
    }
    return Recipe(**(values | changes))


def train(recipe: Recipe[Any, Any], folder: Path, **options: Any) -> dict[str, Any]:
    return Run(recipe, folder, console=Console(file=io.StringIO(), width=300)).train(**options)


@pytest.mark.parametrize("tokenizer", ["bytes", "bpe"])
def test_a_changed_text_is_refused(text: Path, tokenizer: str, tmp_path: Path) -> None:
    run = tmp_path / "run"
    train(recipe_of(text, tokenizer), run)
    write(text, 5)
    with pytest.raises(TrainingError, match=r"another configuration \(.*task\.text was '[0-9a-f]{16}"):
        train(recipe_of(text, tokenizer, steps=6), run, resume=True)
    with pytest.raises(
        ValueError, match=r"is not the text that was trained on: its SHA-256 is .*put the old text back"
    ):
        load_trained(run).recipe.task.batch("test", [0], 16)
    write(text, 3)
    assert train(recipe_of(text, tokenizer, steps=6), run, resume=True)["steps"] == 6


def test_a_forced_new_text_keeps_the_vocabulary(text: Path, tmp_path: Path) -> None:
    """Another one would give every embedding another meaning."""
    run = tmp_path / "run"
    train(recipe_of(text), run)
    before = load_trained(run).recipe.task
    tokens = before.encode("the cat sat by the stone door")
    write(text, 5)
    assert recipe_of(text).task.encode("the cat sat by the stone door") != tokens
    train(recipe_of(text, steps=6), run, resume=True, force=True)
    after = load_trained(run).recipe.task
    assert after.encode("the cat sat by the stone door") == tokens
    assert after.vocabulary == before.vocabulary and after.text != before.text


def test_a_run_speaks_without_its_text(text: Path, tmp_path: Path) -> None:
    run = tmp_path / "run"
    train(recipe_of(text), run)
    tokens = recipe_of(text).task.encode("the dog")
    shutil.rmtree(text)
    shutil.rmtree(tmp_path / "cache")
    task = load_trained(run).recipe.task
    assert task.encode("the dog") == tokens and task.decode(tokens) == "the dog"


def test_a_tokenizer_of_a_folder_lives_on_in_the_run(text: Path, tmp_path: Path) -> None:
    bpe = recipe_of(text).task
    home = tmp_path / "tokenizer"
    home.mkdir()
    bpe.keep(home)
    run = tmp_path / "run"
    recipe = recipe_of(text, str(home))
    train(recipe, run)
    shutil.rmtree(home)
    task = load_trained(run).recipe.task
    assert task.encode("the cat") == bpe.encode("the cat")
    assert task.vocab_size == bpe.vocab_size


def test_another_tokenizer_in_the_run_is_noticed(text: Path, tmp_path: Path) -> None:
    run = tmp_path / "run"
    train(recipe_of(text), run)
    other = replace(recipe_of(text).task, bpe_size=280)
    other.keep(run)
    with pytest.raises(ValueError, match=r"tokenizer\.json is not the tokenizer that was trained with"):
        load_trained(run).recipe.task.encode("a")
    with pytest.raises(TrainingError, match=r"another configuration \(.*task\.vocabulary was"):
        train(recipe_of(text, steps=6), run, resume=True)


def test_paths_are_absolute(text: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    task = TextTask("text", "tokenizer", cache=Path("cache"))
    assert (task.data, task.tokenizer, task.cache) == (str(text), str(tmp_path / "tokenizer"), tmp_path / "cache")
    recipe = replace(recipe_of(Path("text"), "bytes"), task=TextTask("text", cache=Path("cache")))
    train(recipe, tmp_path / "run")
    monkeypatch.chdir(text)
    assert load_recipe(tmp_path / "run").task.data == str(text)
    assert load_trained(tmp_path / "run").recipe.task.batch("test", [0], 16).tokens.shape == (1, 16)


def test_the_text_is_not_tokenized_twice(text: Path, tmp_path: Path) -> None:
    train(recipe_of(text), tmp_path / "run")
    train(recipe_of(text, steps=6), tmp_path / "run", resume=True)
    assert len(list((tmp_path / "cache").iterdir())) == 1
