"""The command line as a person meets it: what is printed, what is written, how it exits."""

import csv
import subprocess
import sys
from pathlib import Path


def scannable(*arguments: str) -> subprocess.CompletedProcess[str]:
    code = "import sys; sys.argv[0] = 'scannable'; from scannable.cli import main; main()"
    return subprocess.run([sys.executable, "-c", code, *arguments], capture_output=True, text=True, check=False)


def test_the_demo_shows_both_scans_equal_and_leaves_figure_and_numbers(tmp_path: Path) -> None:
    done = scannable("demo", "--out", str(tmp_path))
    assert done.returncode == 0, done.stderr
    assert "65,536 of 65,536 prefixes identical" in done.stdout
    assert "(((ab)(cd))((ef)(gh)))" in done.stdout
    assert (tmp_path / "scan_cost.png").read_bytes().startswith(b"\x89PNG")
    with (tmp_path / "scan_cost.csv").open() as file:
        rows = list(csv.DictReader(file))
    last = {row["way"]: row for row in rows if row["n"] == "65536"}
    assert int(last["binary counter"]["evaluations"]) == 2 * 65_536 - 1 - 17
    assert int(last["binary counter"]["held"]) == 31
    assert int(last["static scan"]["evaluations"]) == int(last["binary counter"]["evaluations"])
    assert sorted(path.name for path in tmp_path.iterdir()) == ["scan_cost.csv", "scan_cost.png", "scan_cost.svg"]


def test_help_names_the_commands() -> None:
    done = scannable("--help")
    assert done.returncode == 0 and "demo" in done.stdout


def test_an_unknown_command_exits_with_2() -> None:
    assert scannable("dmeo").returncode == 2


def test_a_place_that_cannot_be_written_is_one_line(tmp_path: Path) -> None:
    (tmp_path / "taken").write_text("a file")
    done = scannable("demo", "--out", str(tmp_path / "taken" / "inside"))
    assert done.returncode == 1
    assert done.stderr.startswith("scannable: ") and "taken" in done.stderr and "Traceback" not in done.stderr


def test_a_missing_extra_says_what_to_install() -> None:
    code = "import sys; sys.modules['tyro'] = None; from scannable.cli import main; main()"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 1 and "pip install 'scannable[train,plot]'" in done.stderr
