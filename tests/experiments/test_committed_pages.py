"""The committed pages and figures are what the committed numbers give: nothing in them was written by hand."""

import csv
import json
import re
import shutil
from collections.abc import Callable, Mapping
from dataclasses import fields
from importlib.metadata import version
from pathlib import Path
from typing import Any, get_type_hints

import pytest
import torch
from matplotlib.figure import Figure
from rich.console import Console

from scannable.experiments import complexity, corrected, scan_cost, training_space
from scannable.experiments.corrected_runs import RIGHT
from scannable.experiments.departures import Difference
from scannable.experiments.figure import save_figure, save_page
from scannable.experiments.laboratory import Laboratory, Trained
from scannable.experiments.predicted_cost import Prediction
from scannable.experiments.reproduce import perform
from scannable.storage.configuration import from_plain
from scannable.storage.model_file import build_model
from scannable.training.recipe import Recipe

RESULTS = Path(__file__).parents[2] / "results"
READERS: Mapping[Any, Callable[[str], Any]] = {
    int: int,
    float: float,
    bool: lambda cell: cell == "True",
    int | None: lambda cell: int(cell) if cell else None,
}


def read(path: Path, kind: type[Any]) -> list[Any]:
    """The rows of a table, as they were before they were written."""
    kinds, names = get_type_hints(kind), [field.name for field in fields(kind)]
    with path.open(newline="") as file:
        return [
            kind(**{name: READERS.get(kinds[name], str)(row[name]) for name in names}) for row in csv.DictReader(file)
        ]


Made = tuple[str, list[str], dict[str, Figure]]
"""Title, page and figures."""


def spd(lab: Laboratory) -> Made:
    costs, fits = read(lab.results / "spd.csv", complexity.Cost), read(lab.results / "fits.csv", complexity.Fit)
    counters = read(lab.results / "counters.csv", scan_cost.ScanCost)
    predictions = read(lab.results / "predictions.csv", Prediction)
    page = complexity._page(lab, complexity.SIZES["laptop"], costs, fits, counters, predictions)
    claims = {fit.model: fit.claimed for fit in fits}
    return (
        "SPD classes",
        page,
        {"spd": complexity.draw(costs, claims), "counts": complexity.draw_counts(counters, predictions)},
    )


def space(lab: Laboratory) -> Made:
    rows, sizes = read(lab.results / "space.csv", training_space.Space), training_space.SIZES["laptop"]
    again = {way: training_space.largest_level(sizes.middle, sizes, way) for way in ("fused", "plain")}
    page = training_space._page(lab, sizes, rows, again)
    return "Space of training", page, {"space": training_space.draw(rows, sizes)}


def corrected_paper(lab: Laboratory) -> Made:
    rows, use = read(lab.results / "corrected.csv", Difference), corrected.SIZES["laptop"]
    trained: dict[str, Trained] = {}
    for name in (f"text-{RIGHT}-0", f"states-{RIGHT}-0"):
        plain = json.loads((lab.results / "configurations" / f"{name}.json").read_text())
        recipe = from_plain(plain, Recipe, name)
        with torch.device("meta"):
            parameters = sum(parameter.numel() for parameter in build_model(recipe.model).parameters())
        result = {"parameters": parameters, "tokens": recipe.steps * recipe.batch_tokens}
        trained[name] = Trained(name, recipe, Path("nowhere"), result)
    page = corrected._page(lab, use, rows, trained)
    return "The paper, corrected", page, {"corrected": corrected.draw(rows, use)}


MAKERS: dict[str, Callable[[Laboratory], Made]] = {"spd": spd, "space": space, "corrected": corrected_paper}


@pytest.mark.parametrize("name", MAKERS)
def test_a_page_and_its_figures_are_made_of_its_numbers(name: str, tmp_path: Path) -> None:
    title, page, figures = MAKERS[name](Laboratory(name, "laptop", RESULTS / name, tmp_path))
    save_page(tmp_path, title, *page)
    assert (tmp_path / "README.md").read_text() == (RESULTS / name / "README.md").read_text()
    assert_same_figures(figures, RESULTS / name, tmp_path)


@pytest.mark.parametrize("name", ["s5", "mqar", "wikitext"])
def test_a_page_of_trained_models_is_made_of_the_records_of_its_runs(name: str, tmp_path: Path) -> None:
    committed, results = RESULTS / name, tmp_path / "results"
    for folder in ("configurations", "finished"):
        shutil.copytree(committed / folder, results / folder)
    lab = Laboratory(name, "laptop", results, tmp_path / "runs", Console(quiet=True), only_finished=True, recorded=True)
    perform(name, lab)  # pyright: ignore[reportArgumentType]
    if name == "wikitext" and not lab.taken:
        pytest.skip("another Python has another standard library: records of its text are not taken")
    for path in committed.iterdir():
        if path.suffix in (".md", ".csv"):
            assert (results / path.name).read_text() == path.read_text(), path.name
        elif path.suffix == ".svg":
            assert_same_drawing(path, results / path.name)
        elif path.is_dir():
            assert {one.name: one.read_bytes() for one in path.iterdir()} == {
                one.name: one.read_bytes() for one in (results / path.name).iterdir()
            }


def test_the_figure_of_the_scan_is_made_of_its_numbers(tmp_path: Path) -> None:
    costs = read(RESULTS / "scan_cost" / "scan_cost.csv", scan_cost.ScanCost)
    assert_same_figures({"scan_cost": scan_cost.draw(costs)}, RESULTS / "scan_cost", tmp_path)


def assert_same_figures(figures: Mapping[str, Figure], committed: Path, place: Path) -> None:
    for name, figure in figures.items():
        save_figure(figure, place, name)
        assert_same_drawing(committed / f"{name}.svg", place / f"{name}.svg")


def assert_same_drawing(committed: Path, made: Path) -> None:
    """Byte for byte, if the same Matplotlib draws them."""
    before, after = committed.read_text(), made.read_text()
    drawn_by = re.search(r"Matplotlib v([\d.]+)", before)
    assert drawn_by
    if drawn_by[1] == version("matplotlib"):
        assert after == before, committed.name
