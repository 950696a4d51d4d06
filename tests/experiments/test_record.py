"""A finished run is known elsewhere by its record, and what it found is the same there."""

import io
import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

import scannable as sc
from scannable.experiments.laboratory import Laboratory
from scannable.experiments.record import has_record, restore, save_record
from scannable.tasks import GroupTask
from scannable.training.recipe import Curriculum, Evaluation, Recipe
from scannable.training.run_folder import TrainingError

RECIPES: dict[str, Recipe[Any, Any]] = {
    f"{name}-0.{seed}": Recipe(
        sc.TransformerPSMConfig(6, 8, chunk_length=2, agg_layers=1, inf_layers=1, heads=2),
        GroupTask("S3"),
        steps=2,
        batch_tokens=32,
        curriculum=Curriculum((4,)),
        evaluation=Evaluation(every=2, samples=4, lengths=(6,)),
        seed=seed,
    )
    for seed, name in enumerate(("first", "second"))
}


def lab_in(folder: Path, runs: str = "runs", **options: Any) -> Laboratory:
    console = Console(record=True, file=io.StringIO(), width=300)
    return Laboratory("s5", "smoke", folder / "results", folder / runs, console, **options)


@pytest.fixture
def trained(tmp_path: Path) -> Path:
    """The first of two runs is trained, something was measured with it, and its record is left."""
    lab = lab_in(tmp_path)
    name = next(iter(RECIPES))
    lab.train({name: RECIPES[name]})
    (tmp_path / "runs" / name / "reading-7x2.json").write_text('{"rows": 2}')
    lab.leave_records()
    return tmp_path


def test_another_machine_takes_what_is_recorded_and_trains_the_rest(trained: Path) -> None:
    first, second = RECIPES
    here = lab_in(trained).train({first: RECIPES[first]})[first]
    lab = lab_in(trained, "elsewhere", recorded=True)
    found = lab.train(RECIPES)
    assert found[first].recipe == here.recipe
    scores = [
        {key: value for key, value in score.items() if key != "error_by_position"} for score in here.result["test"]
    ]
    assert found[first].result == {**here.result, "test": scores} != here.result
    assert json.loads((found[first].folder / "reading-7x2.json").read_text()) == {"rows": 2}
    assert not (found[first].folder / "checkpoints").exists() and (found[second].folder / "checkpoints").exists()
    assert "run 1 of 1, second" in lab.console.export_text()
    # Once more from there: records of records are the same.
    before = {path.name: path.read_bytes() for path in (trained / "results" / "finished").iterdir()}
    lab.leave_records()
    after = {path.name: path.read_bytes() for path in (trained / "results" / "finished").iterdir()}
    assert after.keys() == {f"{name}.json" for name in RECIPES}
    assert after[f"{first}.json"] == before[f"{first}.json"]


def test_records_count_only_where_they_are_asked_for(trained: Path) -> None:
    lab = lab_in(trained, "elsewhere", only_finished=True)
    assert lab.train(RECIPES) == {} and lab.missing == list(RECIPES)
    lab = lab_in(trained, "elsewhere", only_finished=True, recorded=True)
    assert list(lab.train(RECIPES)) == [next(iter(RECIPES))] and lab.missing == list(RECIPES)[1:]


def test_a_run_that_is_there_is_not_overwritten_by_a_record(trained: Path) -> None:
    name = next(iter(RECIPES))
    path = trained / "runs" / name / "result.json"
    changed = {**json.loads(path.read_text()), "tokens": 7}
    path.write_text(json.dumps(changed))
    assert lab_in(trained, recorded=True).train({name: RECIPES[name]})[name].result["tokens"] == 7


def test_a_folder_that_a_record_made_follows_the_record(trained: Path) -> None:
    name = next(iter(RECIPES))
    lab_in(trained, "elsewhere", recorded=True, only_finished=True).train({name: RECIPES[name]})
    # Where the weights are, more was measured with them since.
    more = trained / "runs" / name / "reading-9x2.json"
    more.write_text('{"rows": 9}')
    save_record(trained / "results", name, more.parent)
    record = trained / "results" / "finished" / f"{name}.json"
    before = record.read_bytes()
    lab = lab_in(trained, "elsewhere", recorded=True, only_finished=True)
    found = lab.train({name: RECIPES[name]})[name]
    assert json.loads((found.folder / more.name).read_text()) == {"rows": 9}
    lab.leave_records()
    assert record.read_bytes() == before
    # What is gone from the record goes there, too.
    more.unlink()
    save_record(trained / "results", name, more.parent)
    before = record.read_bytes()
    lab = lab_in(trained, "elsewhere", recorded=True, only_finished=True)
    lab.train({name: RECIPES[name]})
    lab.leave_records()
    assert record.read_bytes() == before and not (found.folder / more.name).exists()


def test_a_folder_of_another_recipe_is_refused_even_without_weights(trained: Path) -> None:
    first, second = RECIPES
    lab_in(trained, "elsewhere", recorded=True, only_finished=True).train({first: RECIPES[first]})
    lab_in(trained, "again").train({first: RECIPES[second]})
    save_record(trained / "results", first, trained / "again" / first)
    with pytest.raises(TrainingError, match="holds a run of another configuration"):
        lab_in(trained, "elsewhere", recorded=True, only_finished=True).train({first: RECIPES[second]})


def test_a_record_of_another_recipe_is_told_and_not_taken(trained: Path) -> None:
    first, second = RECIPES
    lab = lab_in(trained, "elsewhere", recorded=True, only_finished=True)
    assert lab.train({first: RECIPES[second]}) == {}
    said = lab.console.export_text()
    assert f"the record of {first} is of another configuration (seed" in said and "is not taken" in said


def test_options_that_are_newer_than_a_record_have_their_defaults(trained: Path) -> None:
    name = next(iter(RECIPES))
    path = trained / "results" / "configurations" / f"{name}.json"
    plain = json.loads(path.read_text())
    del plain["ema"], plain["optimizer"]["algorithm"]
    path.write_text(json.dumps(plain))
    lab = lab_in(trained, "elsewhere", recorded=True, only_finished=True)
    assert list(lab.train({name: RECIPES[name]})) == [name]
    plain["nonsense"] = 1
    path.write_text(json.dumps(plain))
    lab = lab_in(trained, "another", recorded=True, only_finished=True)
    assert lab.train({name: RECIPES[name]}) == {} and "nonsense" in lab.console.export_text()


def test_no_record_goes_while_a_page_lacks_runs(trained: Path) -> None:
    first, second = RECIPES
    kept = trained / "results" / "finished" / f"{first}.json"
    lab = lab_in(trained, "elsewhere", only_finished=True)
    lab.train(RECIPES)
    lab.leave_records()
    assert kept.exists()
    lab = lab_in(trained, "elsewhere")
    lab.train({second: RECIPES[second]})
    lab.leave_records()
    assert not kept.exists() and has_record(trained / "results", second)


@pytest.mark.parametrize("workers", [1, pytest.param(2, marks=pytest.mark.slow)])
def test_every_run_is_recorded_as_it_ends(tmp_path: Path, workers: int) -> None:
    lab = lab_in(tmp_path, workers=workers)
    lab.train(RECIPES)
    # Before anything else is done.
    assert all(has_record(tmp_path / "results", name) for name in RECIPES)


def test_a_run_that_diverges_is_known_to_elsewhere_too(tmp_path: Path) -> None:
    name = next(iter(RECIPES))

    def at(rate: float) -> Recipe[Any, Any]:
        recipe = RECIPES[name]
        return replace(recipe, steps=20, optimizer=replace(recipe.optimizer, learning_rate=rate, warmup=0, clip=0.0))

    found = lab_in(tmp_path).sweep({"model": at}, (1e-3, 1e30))
    assert list(found["model"]) == [1e-3]
    lab = lab_in(tmp_path, "elsewhere", recorded=True)
    assert list(lab.sweep({"model": at}, (1e-3, 1e30))["model"]) == [1e-3]
    assert "run 1 of" not in lab.console.export_text() and not lab.missing
    lab = lab_in(tmp_path, "another", recorded=True, only_finished=True)
    assert list(lab.sweep({"model": at}, (1e-3, 1e30))["model"]) == [1e-3] and not lab.missing
    lab.leave_records()
    assert has_record(tmp_path / "results", "sweep-model-1e+30")


def test_damaged_records_are_told_by_name(trained: Path, tmp_path: Path) -> None:
    name, results = next(iter(RECIPES)), trained / "results"
    path = results / "finished" / f"{name}.json"
    assert has_record(results, name) and not has_record(results, "another")
    whole = path.read_text()
    for content, reason in (
        (whole[:20], "is damaged"),
        ("[]", "has no 'result.json'"),
        ("{}", "has no 'result.json'"),
        (json.dumps({"result.json": {}, "reading-/../../x.json": {}}), "is no file of a run"),
        (json.dumps({"result.json": {}, "x.py": {}}), "is no file of a run"),
        (json.dumps({"result.json": {}, "config.json": {}}), "is no file of a run"),
        (json.dumps({"result.json": {}}), "its result has no 'best'"),
        ("[" * 100_000, "is damaged"),
    ):
        path.write_text(content)
        with pytest.raises(TrainingError, match=reason) as error:
            restore(results, name, tmp_path / "restored")
        assert str(path) in str(error.value)
        # Not taken for a finished run.
        assert not (tmp_path / "restored" / "result.json").exists()
    path.unlink()
    assert not has_record(results, name)
    save_record(results, name, trained / "runs" / name)
    assert path.read_text() == whole
