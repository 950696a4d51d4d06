"""The command line as a person meets it: what is printed, what is written, how it exits."""

import csv
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from scannable import cli
from scannable.demo import show_the_scan

TINY = [
    "--steps", "6", "--model.width", "16", "--batch-tokens", "64", "--evaluation.every", "2", "--evaluation.samples", "8",
    "--evaluation.lengths", "8", "--curriculum.lengths", "4", "--checkpoint-every", "3",
]  # fmt: skip


def scannable(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, "-m", "scannable", *arguments], capture_output=True, text=True, check=False)


def call(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, str, str]:
    """The same within this process: exit code, what was printed, and what was said on the way out."""
    monkeypatch.setattr(sys, "argv", ["scannable", *arguments])
    code: Any = 0
    try:
        cli.main()
    except SystemExit as end:
        code = end.code
    printed = capsys.readouterr()
    if isinstance(code, str):
        return 1, printed.out, code
    return code or 0, printed.out, printed.err


def test_the_demo_shows_both_scans_equal_and_leaves_figure_and_numbers(tmp_path: Path) -> None:
    console = Console(record=True, width=160, quiet=False)
    show_the_scan(tmp_path, console)
    said = console.export_text()
    assert "65,536 of 65,536 prefixes identical" in said
    assert "(((ab)(cd))((ef)(gh)))" in said
    assert (tmp_path / "scan_cost.png").read_bytes().startswith(b"\x89PNG")
    with (tmp_path / "scan_cost.csv").open() as file:
        rows = list(csv.DictReader(file))
    last = {row["way"]: row for row in rows if row["n"] == "65536"}
    assert int(last["binary counter"]["evaluations"]) == 2 * 65_536 - 1 - 17
    assert int(last["binary counter"]["held"]) == 31
    assert int(last["static scan"]["evaluations"]) == int(last["binary counter"]["evaluations"])


def test_help_names_the_commands() -> None:
    done = scannable("--help")
    assert done.returncode == 0
    for command in ("demo", "recipes", "train", "eval", "generate", "verify", "plot", "zoo"):
        assert command in done.stdout


def test_an_unknown_command_exits_with_2() -> None:
    done = scannable("dmeo")
    assert done.returncode == 2 and "Traceback" not in done.stderr


def test_a_missing_extra_says_what_to_install() -> None:
    code = "import sys; sys.modules['tyro'] = None; from scannable.cli import main; main()"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 1 and "pip install 'scannable[train,plot]'" in done.stderr


def test_a_run_is_trained_resumed_measured_verified_generated_from_and_drawn(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    run = str(tmp_path / "run")
    code, said, _ = call(monkeypatch, capsys, "train", "demo", *TINY, "--out", run)
    assert code == 0 and "6 steps; written to" in said.replace("\n", " ")
    code, _, error = call(monkeypatch, capsys, "train", "demo", *TINY, "--out", run)
    assert code == 1 and "holds a run already; go on with --resume" in error
    assert call(monkeypatch, capsys, "train", "demo", *TINY, "--out", run, "--resume")[0] == 0
    code, _, error = call(monkeypatch, capsys, "train", "demo", *TINY, "--out", run, "--resume", "--seed", "3")
    assert code == 1 and "seed was 0, is 3" in error and "--force" in error

    code, said, _ = call(monkeypatch, capsys, "eval", "--run", run, "--lengths", "4", "9", "--samples", "8")
    assert code == 0 and [line.split()[0] for line in said.splitlines()] == ["length", "4", "9"]
    code, said, _ = call(monkeypatch, capsys, "verify", "--run", run, "--length", "20")
    assert code == 0 and said.startswith("PASSED: TransformerPSM on 2 x 20 tokens, float64")
    code, said, _ = call(monkeypatch, capsys, "generate", "--run", run, "--prompt", "1 2", "--tokens", "5")
    assert code == 0 and len(said.split()) == 5 and all(0 <= int(word) < 5 for word in said.split())
    code, _, error = call(monkeypatch, capsys, "generate", "--run", run, "--prompt", "hello")
    assert code == 1 and "is no list of tokens" in error
    picture = tmp_path / "curves.png"
    assert call(monkeypatch, capsys, "plot", "--runs", run, "--out", str(picture))[0] == 0
    assert picture.read_bytes().startswith(b"\x89PNG") and picture.with_suffix(".csv").read_text().startswith(
        "run,step,kind"
    )


def test_text_is_learned_and_generated(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    (tmp_path / "book.txt").write_text("the cat sat on the mat. " * 400)
    run = str(tmp_path / "run")
    task = ["--task.data", str(tmp_path / "book.txt"), "--evaluation.lengths", "16", "--model.chunk-length", "8"]
    code, _, error = call(monkeypatch, capsys, "train", "stdlib", *TINY, *task, "--out", run)
    assert code == 0, error
    code, said, _ = call(monkeypatch, capsys, "eval", "--run", run, "--lengths", "16")
    assert code == 0 and float(said.splitlines()[1].split()[-1]) > 0  # bits a byte
    code, said, _ = call(monkeypatch, capsys, "generate", "--run", run, "--prompt", "the c", "--tokens", "12")
    assert code == 0 and said.endswith("\n")


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (["train", "s6"], "there is no recipe 's6'; did you mean 's5'?"),
        (["eval", "--run", "nowhere"], "nowhere holds no run"),
        (["verify", "--run", "nowhere"], "nowhere holds no run"),
        (["plot", "--runs", "nowhere"], "nowhere holds no run"),
    ],
)
def test_a_mistake_is_one_line_with_the_way_out(
    arguments: list[str],
    expected: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    code, _, error = call(monkeypatch, capsys, *arguments)
    assert code != 0 and expected in error and "Traceback" not in error
    assert len(error.strip().splitlines()) == 1 and error.startswith("scannable: ")


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (["--model.widht", "3"], "--model.width"),
        (["--steps", "many"], "invalid"),
        (["--model.width", "0"], "width=0 must be a whole number of at least 1"),
        (["--task.group", "S77"], "S77"),
    ],
)
def test_a_wrong_field_type_or_value_is_answered_with_the_right_one(
    arguments: list[str], expected: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    code, said, error = call(monkeypatch, capsys, "train", "demo", *arguments)
    assert code == 2 and expected in " ".join((said + error).split())


def test_debug_shows_where_an_error_comes_from(tmp_path: Path) -> None:
    done = scannable("--debug", "eval", "--run", str(tmp_path))
    assert done.returncode == 1 and "Traceback" in done.stderr


def test_a_damaged_run_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    run = tmp_path / "run"
    assert call(monkeypatch, capsys, "train", "demo", *TINY, "--out", str(run))[0] == 0
    config = json.loads((run / "config.json").read_text())
    config["model"]["widht"] = 3
    (run / "config.json").write_text(json.dumps(config))
    code, _, error = call(monkeypatch, capsys, "eval", "--run", str(run))
    assert code == 1 and "config.json.model has no field 'widht'; did you mean 'width'?" in error


def test_recipes_and_rows_are_listed(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    code, said, _ = call(monkeypatch, capsys, "recipes")
    assert code == 0 and {line.split()[0] for line in said.splitlines()} >= {"demo", "s5", "mqar", "stdlib"}
    code, said, _ = call(monkeypatch, capsys, "zoo", "--width", "16", "--heads", "2", "--length", "64")
    assert code == 0 and "gated_deltanet" in said
    code, said, _ = call(monkeypatch, capsys, "train", "--help")
    assert code == 0 and "scannable train RECIPE" in said
