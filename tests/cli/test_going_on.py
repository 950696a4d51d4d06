"""An interrupted `scannable train` exits as the signal says, and prints a line that goes on with the run."""

import os
import re
import shlex
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from scannable.cli.go_on import command_to_go_on
from scannable.training.run_folder import load_result

SLOWLY = [
    "--steps", "200", "--model.width", "16", "--batch-tokens", "64", "--evaluation.every", "1000", "--evaluation.samples",
    "4", "--evaluation.lengths", "8", "--curriculum.lengths", "4", "--curriculum.below", "--checkpoint-every", "1000",
    "--log-every", "1",
]  # fmt: skip


def environment(**more: str) -> dict[str, str]:
    return os.environ | {"OMP_NUM_THREADS": "1", "COLUMNS": "40", **more}


def interrupted(command: list[str], run: Path, number: int, where: Path) -> tuple[int, str]:
    """Exit code and output of a command that got a signal when it had begun to train."""
    process = subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, cwd=where, env=environment()
    )
    end = time.monotonic() + 120
    while not (run / "metrics.jsonl").exists():
        assert process.poll() is None and time.monotonic() < end
        time.sleep(0.02)
    process.send_signal(number)
    said, _ = process.communicate(timeout=120)
    return process.returncode, said


def pasted(said: str, where: Path) -> subprocess.CompletedProcess[str]:
    """What the line after "To go on: " does in a shell in another folder."""
    (line,) = re.findall(r"^To go on: (.*)$", said, re.MULTILINE)
    return subprocess.run(
        line, shell=True, capture_output=True, text=True, check=False, cwd=where, env=environment(), timeout=300
    )


@pytest.mark.slow
@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_a_signal_exits_with_its_code_and_the_printed_line_goes_on_from_any_folder(
    number: int, code: int, tmp_path: Path
) -> None:
    elsewhere, home = tmp_path / "elsewhere", tmp_path / "the home's folder"
    elsewhere.mkdir()
    home.mkdir()
    run = home / "a run"
    command = [sys.executable, "-m", "scannable", "train", "demo", *SLOWLY, "--out", "a run"]
    ended, said = interrupted(command, run, number, home)
    assert ended == code and "stopped at step " in said and not (run / "result.json").exists()
    done = pasted(said, elsewhere)
    assert done.returncode == 0, done.stderr
    result = load_result(run)
    assert result is not None and result["steps"] == 200
    assert not list(elsewhere.iterdir())


@pytest.mark.slow
def test_a_finished_run_that_is_resumed_says_so(tmp_path: Path) -> None:
    command = [
        sys.executable,
        "-m",
        "scannable",
        "train",
        "demo",
        *SLOWLY,
        "--steps",
        "2",
        "--out",
        str(tmp_path / "run"),
    ]
    first = subprocess.run(command, capture_output=True, text=True, check=True, env=environment())
    assert "has finished" not in first.stdout
    second = subprocess.run([*command, "--resume"], capture_output=True, text=True, check=True, env=environment())
    assert f"{tmp_path / 'run'} has finished at step 2; a greater --steps goes on from there\n" in second.stdout


@pytest.mark.slow
def test_under_torchrun_every_process_stops_and_the_line_starts_as_many(tmp_path: Path) -> None:
    run = tmp_path / "run"
    # Its own group: the signal goes to all of them, as from a terminal.
    process = subprocess.Popen(
        [
            sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2", "-m", "scannable",
            "train", "demo", *SLOWLY, "--out", str(run),
        ],
        stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, env=environment(), start_new_session=True,
    )  # fmt: skip
    end = time.monotonic() + 180
    while not (run / "metrics.jsonl").exists():
        assert process.poll() is None and time.monotonic() < end
        time.sleep(0.05)
    os.killpg(process.pid, signal.SIGINT)
    said, _ = process.communicate(timeout=180)
    assert process.returncode != 0
    (line,) = re.findall(r"^To go on: (.*)$", said, re.MULTILINE)
    words = shlex.split(line)
    start = words.index("--nproc-per-node")
    assert words[start : start + 6] == ["--nproc-per-node", "2", "-m", "scannable", "train", "demo"]
    assert "torchrun" in words[0] or words[2] == "torch.distributed.run"
    assert words[-3:] == ["--out", str(run), "--resume"]


# What the line holds.


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "argv", ["/a place/bin/scannable"])
    for name in ("WORLD_SIZE", "LOCAL_WORLD_SIZE"):
        monkeypatch.delenv(name, raising=False)
    return tmp_path


def test_the_line_repeats_the_recipe_but_neither_force_nor_the_old_folder(here: Path) -> None:
    typed = ["--out", "x", "--steps", "5", "--force", "--resume", "--task.group=S3", "--out=y"]
    assert command_to_go_on("s5", typed, Path("y")) == (
        f"'/a place/bin/scannable' train s5 --steps 5 --task.group=S3 --out {here}/y --resume"
    )


def test_a_relative_path_in_the_recipe_is_read_from_where_it_was_typed(here: Path) -> None:
    """It is part of the configuration, so it cannot be made absolute."""
    (here / "my book").write_text("text")
    line = command_to_go_on("stdlib", ["--task.data", "my book"], here / "run")
    assert line == f"cd {here} && '/a place/bin/scannable' train stdlib --task.data 'my book' --out {here}/run --resume"
    assert "cd " in command_to_go_on("stdlib", ["--task.data=my book"], here / "run")
    assert "cd " not in command_to_go_on("stdlib", ["--task.data", str(here / "my book")], here / "run")


def test_the_line_starts_as_many_processes_on_as_many_machines(here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WORLD_SIZE", "8")
    monkeypatch.setenv("LOCAL_WORLD_SIZE", "8")
    monkeypatch.setattr("shutil.which", lambda name: f"/bin/{name}")
    assert (
        command_to_go_on("s5", [], here) == f"torchrun --nproc-per-node 8 -m scannable train s5 --out {here} --resume"
    )
    monkeypatch.setenv("LOCAL_WORLD_SIZE", "4")
    assert command_to_go_on("s5", [], here).startswith("torchrun --nnodes 2 --nproc-per-node 4 -m scannable")


def test_the_command_is_named_as_the_shell_finds_it(here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("shutil.which", lambda name: "/a place/bin/scannable")
    assert command_to_go_on("s5", [], here).startswith("scannable train s5")
    monkeypatch.setattr(sys, "argv", ["/somewhere/scannable/__main__.py"])
    assert command_to_go_on("s5", [], here).startswith(f"{shlex.quote(sys.executable)} -m scannable train s5")
