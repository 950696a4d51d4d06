"""A run becomes a shipped model: the same function, with its recipe and numbers, checked to the last bit."""

import json
import shutil
import stat
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from rich.console import Console

from scannable.recipes import recipe_named
from scannable.storage.checked_folder import manifest_of
from scannable.storage.configuration import ConfigurationError
from scannable.storage.model_file import save_model
from scannable.tasks.text import TextTask
from scannable.training.loop import Run
from scannable.training.recipe import Curriculum, Evaluation
from scannable.training.run_folder import TrainingError, load_trained
from scannable.weights import ShippedModelError, load_shipped, shipped, shipped_models
from scannable.weights import ship as shipping
from scannable.weights.ship import ship
from scannable.weights.shipped_model import language_model


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A short one, with an average of its weights."""
    folder = tmp_path_factory.mktemp("run") / "states"
    recipe = recipe_named("demo")
    short = replace(
        recipe,
        model=replace(recipe.model, width=16),
        steps=4,
        batch_tokens=32,
        curriculum=Curriculum((4,)),
        evaluation=Evaluation(every=2, samples=4, lengths=(8,)),
        ema=0.5,
    )
    Run(short, folder, console=Console(quiet=True)).train()
    return folder


@pytest.fixture(scope="module")
def text_run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """One with a tokenizer of its own, on a text that is gone afterwards."""
    place = tmp_path_factory.mktemp("text")
    book = place / "book"
    book.mkdir()
    (book / "chapter.txt").write_text("the cat sat on the mat, and the dog on the log. " * 200)
    recipe = recipe_named("stdlib")
    task = TextTask(str(book), "bpe", 300, cache=place / "cache")
    short = replace(
        recipe,
        model=replace(recipe.model, vocab_size=task.vocab_size, width=16, heads=1, chunk_length=4),
        task=task,
        steps=2,
        batch_tokens=64,
        curriculum=Curriculum((8,)),
        evaluation=Evaluation(every=2, samples=2),
        checkpoint_every=2,
    )
    Run(short, place / "run", console=Console(quiet=True)).train()
    shutil.rmtree(book)
    return place / "run"


def test_the_shipped_model_is_that_of_the_run(run: Path, tmp_path: Path) -> None:
    about = ship(run, "small", "A small one", tmp_path)
    assert shipped_models(tmp_path) == ["small"] and shipped("small", tmp_path) == about
    result = json.loads((run / "result.json").read_text())
    assert (about.title, about.step, about.parameters) == ("A small one", 4, result["parameters"])
    assert [score["error"] for score in about.test] == [score["error"] for score in result["test"]]
    assert about.nbytes == sum((tmp_path / "small" / name).stat().st_size for name in about.files)
    expected, found = load_trained(run), load_shipped("small", place=tmp_path)
    assert (found.recipe, found.step, found.weights) == (expected.recipe, expected.step, expected.weights)
    tokens = torch.randint(5, (2, 9))
    assert torch.equal(found.model(tokens), expected.model(tokens)) and not found.model.training


def test_its_line_has_the_numbers_of_the_longest_length(run: Path, tmp_path: Path) -> None:
    about = ship(run, "small", "A small one", tmp_path)
    assert {score["length"] for score in about.test} == {4, 8} and isinstance(about.test, tuple)
    (longest,) = (score for score in about.test if score["length"] == 8)
    assert about.found == f"error {100 * longest['error']:.4f}% in 4 x 8 tokens"
    turned = replace(about, test=about.test[::-1])
    assert turned.found == about.found


def test_its_folder_is_made_with_all_above_it_and_can_be_read_by_everyone(run: Path, tmp_path: Path) -> None:
    about = ship(run, "small", "A small one", tmp_path / "not" / "there" / "yet")
    assert about.folder == tmp_path / "not" / "there" / "yet" / "small"
    assert stat.S_IMODE(about.folder.stat().st_mode) == 0o755


def test_a_language_model_brings_its_tokenizer_and_needs_no_text(text_run: Path, run: Path, tmp_path: Path) -> None:
    ship(run, "states", "No text", tmp_path)
    assert language_model(tmp_path) is None
    about = ship(text_run, "book", "Cats and dogs", tmp_path)
    assert language_model(tmp_path) == "book" and about.is_language_model
    assert "bits per byte" in about.found
    task = load_shipped("book", place=tmp_path).recipe.task
    tokens = task.encode("the dog sat on the mat")
    assert len(tokens) < 22 and task.decode(tokens) == "the dog sat on the mat"


def test_it_takes_the_place_of_one_of_that_name(run: Path, tmp_path: Path) -> None:
    ship(run, "small", "First", tmp_path)
    ship(run, "small", "Second", tmp_path)
    assert shipped("small", tmp_path).title == "Second"
    assert [path.name for path in tmp_path.iterdir()] == ["small"]


@pytest.mark.parametrize("name", ["model.safetensors", "config.json", "manifest.json"])
def test_a_file_that_was_changed_is_refused(run: Path, tmp_path: Path, name: str) -> None:
    ship(run, "small", "A small one", tmp_path)
    path = tmp_path / "small" / name
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(content)
    with pytest.raises(ShippedModelError, match=rf"the shipped model small is damaged: {name} .*; install scannable"):
        load_shipped("small", place=tmp_path)


def test_a_file_that_is_missing_or_stray_is_refused(run: Path, tmp_path: Path) -> None:
    ship(run, "small", "A small one", tmp_path)
    (tmp_path / "small" / "more.txt").write_text("more")
    with pytest.raises(ShippedModelError, match=r"more\.txt is a stray file"):
        shipped("small", tmp_path)
    (tmp_path / "small" / "more.txt").unlink()
    (tmp_path / "small" / "config.json").unlink()
    with pytest.raises(ShippedModelError, match=r"config\.json is missing"):
        load_shipped("small", place=tmp_path)


def test_what_is_not_there_is_told_with_what_is(run: Path, tmp_path: Path) -> None:
    ship(run, "small", "A small one", tmp_path)
    with pytest.raises(ConfigurationError, match=r"there is no shipped model 'smal'; did you mean 'small'\?"):
        shipped("smal", tmp_path)


@pytest.mark.parametrize(("name", "title"), [("../s5", "x"), ("S5", "x"), ("", "x"), ("s5", ""), ("s5", "a\nb")])
def test_names_and_titles_are_checked(run: Path, tmp_path: Path, name: str, title: str) -> None:
    with pytest.raises(ValueError, match="title=" if name == "s5" else "name="):
        ship(run, name, title, tmp_path)


def test_a_run_that_has_not_ended_is_not_shipped(run: Path, tmp_path: Path) -> None:
    copy = Path(shutil.copytree(run, tmp_path / "copy"))
    (copy / "result.json").unlink()
    with pytest.raises(TrainingError, match="has not come to its end"):
        ship(copy, "small", "A small one", tmp_path / "place")


def test_a_recipe_of_another_model_is_refused(run: Path, tmp_path: Path) -> None:
    about = ship(run, "small", "A small one", tmp_path)
    path = about.folder / "manifest.json"
    plain = json.loads(path.read_bytes())
    plain["recipe"]["model"]["width"] = 32
    # With the right sums, as nobody but its maker could write it.
    said = {key: value for key, value in plain.items() if key not in ("files", "sha256")}
    path.write_bytes(manifest_of(said, about.files))
    with pytest.raises(ShippedModelError, match="the shipped model small is not the model of its recipe"):
        load_shipped("small", place=tmp_path)


def test_a_manifest_of_another_format_is_refused(run: Path, tmp_path: Path) -> None:
    about = ship(run, "small", "A small one", tmp_path)
    path = about.folder / "manifest.json"
    said = {key: value for key, value in json.loads(path.read_bytes()).items() if key not in ("files", "sha256")}
    path.write_bytes(manifest_of({**said, "format": "scannable-shipped-0"}, about.files))
    with pytest.raises(ShippedModelError, match=r"manifest\.json is of another format"):
        shipped("small", tmp_path)


def test_nothing_can_be_seen_of_it_before_it_is_whole(
    run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[str] = []

    def save(model: Any, folder: Path) -> None:
        seen.extend(path.name for path in tmp_path.iterdir())
        save_model(model, folder)

    monkeypatch.setattr("scannable.weights.ship.save_model", save)
    ship(run, "small", "A small one", tmp_path)
    assert len(seen) == 1 and seen[0].startswith(".small.")


def test_the_command_takes_a_run_a_name_and_a_title(
    run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(shipping, "ship", lambda run, name, title: ship(run, name, title, tmp_path))
    monkeypatch.setattr(sys, "argv", ["ship", str(run), "small", "A small one"])
    shipping.main()
    assert capsys.readouterr().out.startswith(f"{tmp_path / 'small'}: ")
    monkeypatch.setattr(sys, "argv", ["ship", str(run), "small"])
    with pytest.raises(SystemExit, match=r"usage: python -m scannable\.weights\.ship RUN NAME"):
        shipping.main()
