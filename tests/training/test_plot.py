"""What a run has measured can be drawn, or is refused with the place that is damaged."""

import csv
import json
from pathlib import Path
from typing import Any

import pytest

from scannable.training.plot import plot_runs

RECORDS: list[dict[str, Any]] = [
    {"kind": "train", "step": 1, "loss": 2.0, "length": 4, "gradient_norm": 1.0, "learning_rate": 1e-3},
    {"kind": "evaluation", "step": 1, "loss": 1.5, "error": 0.5, "length": 4},
    {"kind": "stage", "step": 1, "length": 8},
    {"kind": "train", "step": 2, "loss": 1.0, "length": 8, "gradient_norm": 1.0, "learning_rate": 1e-3},
    {"kind": "evaluation", "step": 2, "loss": 0.5, "error": 0.0, "length": 8},
]


def run_at(folder: Path, text: str | None = None) -> Path:
    folder.mkdir(parents=True)
    lines = "".join(json.dumps(record) + "\n" for record in RECORDS)
    (folder / "metrics.jsonl").write_text(lines if text is None else text)
    return folder


def rows_of(path: Path) -> list[dict[str, str]]:
    with path.open() as file:
        return list(csv.DictReader(file))


def test_two_runs_are_drawn_in_one_picture_with_their_numbers_beside_it(tmp_path: Path) -> None:
    plot_runs([run_at(tmp_path / "one"), run_at(tmp_path / "two")], tmp_path / "new" / "both.png")
    assert (tmp_path / "new" / "both.png").read_bytes().startswith(b"\x89PNG")
    rows = rows_of(tmp_path / "new" / "both.csv")
    assert [row["run"] for row in rows] == ["one"] * 5 + ["two"] * 5
    assert rows[0] == {"run": "one", "step": "1", "kind": "train", "length": "4", "loss": "2.0", "error": ""}
    assert rows[6] == {"run": "two", "step": "1", "kind": "evaluation", "length": "4", "loss": "1.5", "error": "0.5"}


def test_runs_of_one_name_are_told_apart_and_a_run_is_drawn_once(tmp_path: Path) -> None:
    """In a folder whose path alone would fill the picture."""
    deep = tmp_path / ("deep" * 40)
    one, two = run_at(deep / "a" / "run"), run_at(deep / "b" / "run")
    plot_runs([one, two, one], tmp_path / "plot.svg")
    assert [row["run"] for row in rows_of(tmp_path / "plot.csv")] == ["a/run"] * 5 + ["b/run"] * 5
    assert "<svg" in (tmp_path / "plot.svg").read_text()


@pytest.mark.parametrize("kept", [0, 1, 2, 5])
def test_a_run_that_has_only_begun_can_be_drawn(tmp_path: Path, kept: int) -> None:
    lines = "".join(json.dumps(record) + "\n" for record in RECORDS[:kept])
    plot_runs([run_at(tmp_path / "run", lines)], tmp_path / "plot.png")
    assert len(rows_of(tmp_path / "plot.csv")) == kept


def test_a_last_line_that_is_not_finished_is_left_out(tmp_path: Path) -> None:
    whole = json.dumps(RECORDS[0]) + "\n"
    plot_runs([run_at(tmp_path / "run", whole + whole[:17])], tmp_path / "plot.png")
    assert len(rows_of(tmp_path / "plot.csv")) == 1


@pytest.mark.parametrize(
    "line",
    [
        '{"kind": "tra',
        "5",
        "[]",
        "null",
        '{"kind": "train", "step": 1}',
        '{"kind": "train", "step": "1", "loss": 2.0}',
        '{"kind": "evaluation", "step": 1, "loss": 2.0, "error": null}',
        '{"kind": "stagf", "step": 1}',
        '{"kind": [], "step": 1}',
        '{"kine": "stage", "step": 1}',
    ],
)
def test_a_damaged_line_is_named(tmp_path: Path, line: str) -> None:
    whole = json.dumps(RECORDS[0])
    run = run_at(tmp_path / "run", f"{whole}\n{line}\n{whole}\n")
    with pytest.raises(ValueError, match=r"metrics\.jsonl, line 2 is damaged: "):
        plot_runs([run], tmp_path / "plot.png")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["run"]


@pytest.mark.parametrize("content", [b"\xff\xfe\n", b"[" * 100_000 + b"\n{}\n"])
def test_a_file_of_something_else_is_refused(tmp_path: Path, content: bytes) -> None:
    run = run_at(tmp_path / "run")
    (run / "metrics.jsonl").write_bytes(content)
    with pytest.raises(ValueError, match=r"metrics\.jsonl is damaged: "):
        plot_runs([run], tmp_path / "plot.png")


def test_a_folder_without_a_run_is_refused(tmp_path: Path) -> None:
    for folder in (tmp_path, tmp_path / "missing"):
        with pytest.raises(ValueError, match=r"holds no run: metrics\.jsonl is missing"):
            plot_runs([run_at(tmp_path / f"good {folder.name}"), folder], tmp_path / "plot.png")
    with pytest.raises(ValueError, match="no run to draw; give one folder or several"):
        plot_runs([], tmp_path / "plot.png")
    assert not (tmp_path / "plot.png").exists()


def test_a_picture_of_an_unknown_kind_is_refused_and_leaves_nothing(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="nonesuch"):
        plot_runs([run_at(tmp_path / "run")], tmp_path / "plot.nonesuch")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["run"]
