"""The commands with a shipped model in place of a run: what comes with the package, and a small one made here."""

import re
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from rich.console import Console

from scannable.cli import reading
from scannable.cli.demo import read_far_beyond
from scannable.cli.main import main
from scannable.weights import load_shipped, shipped, shipped_models

Command = Callable[..., tuple[int, str]]


@pytest.fixture
def scannable(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path) -> Command:
    """The command within this process: how it exits, and all that it says."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "200")

    def call(*arguments: object) -> tuple[int, str]:
        monkeypatch.setattr(sys, "argv", ["scannable", *map(str, arguments)])
        code: Any = 0
        try:
            main()
        except SystemExit as end:
            code = end.code or 0
        printed = capsys.readouterr()
        said = printed.out + printed.err
        return (1, said + code) if isinstance(code, str) else (int(code), said)

    return call


def test_every_shipped_model_is_listed_with_its_numbers(scannable: Command) -> None:
    code, said = scannable("models")
    assert code == 0 and shipped_models()
    for name in shipped_models():
        about = shipped(name)
        assert re.search(rf"^{name} +{re.escape(about.title)}$", said, re.MULTILINE)
        assert f"{about.parameters:,} parameters, {about.nbytes / 1e6:.1f} MB" in said and about.found in said


@pytest.mark.parametrize("name", shipped_models())
def test_a_shipped_model_is_what_its_manifest_says(name: str) -> None:
    about, found = shipped(name), load_shipped(name)
    assert sum(weight.numel() for weight in found.model.parameters()) == about.parameters
    assert about.nbytes < 8e6 and found.step == about.step


def test_the_s5_model_makes_no_error_far_beyond_its_training(scannable: Command) -> None:
    code, said = scannable("eval", "s5", "--lengths", 18, 2048, "--samples", 2)
    assert code == 0, said
    assert re.search(r"^ +18 +2 +0\.0001 +1\.0001 +0\.00% +-$", said, re.MULTILINE)
    assert re.search(r"^ +2048 +2 +0\.0001 +1\.0001 +0\.00% +-$", said, re.MULTILINE)


def test_what_is_long_is_read_in_pieces(scannable: Command, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("scannable.cli.commands.evaluate.LONG", 500)
    code, said = scannable("eval", "s5", "--lengths", 1500)
    assert code == 0, said
    model = load_shipped("s5").model
    for n in (1023, 1500):
        assert re.search(rf"^ +{n:,} +0 +{model.state_nbytes(n):,}$", said, re.MULTILINE), said
    assert "with the product in S5, computed beside it" in said
    assert f"no error in 1,500 answers; at most {model.state_nbytes(1023):,} bytes held" in said


def test_errors_are_told_with_their_place(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    found = load_shipped("s5")
    with torch.no_grad():
        found.model.identity.copy_(torch.randn_like(found.model.identity) * 50)
    reading.read(found, 40, 1, Console(width=200))
    said = capsys.readouterr().out
    wrong, first = re.findall(r"^(\d+) errors, the first at (\d+), in 40 answers", said, re.MULTILINE)[0]
    # e is seen by the first token alone.
    assert (wrong, first) == ("1", "0")


def test_a_run_in_a_folder_of_that_name_comes_first(scannable: Command, tmp_path: Path) -> None:
    (tmp_path / "s5").mkdir()
    (tmp_path / "s5" / "config.json").write_text("{}")
    code, said = scannable("eval", "s5")
    assert code == 1 and "config.json" in said


def test_what_is_neither_a_run_nor_shipped_is_told_with_what_there_is(scannable: Command) -> None:
    code, said = scannable("eval", "s6")
    expected = "there is no folder s6; give the folder of a run, such as runs/s5, or a shipped model: "
    assert code == 1 and expected + ", ".join(shipped_models()) in said


def test_what_does_not_fit_into_memory_is_refused(scannable: Command) -> None:
    code, said = scannable("eval", "s5", "--lengths", 10**12)
    assert code == 1 and "a batch of 1 x 1,000,000,000,000 tokens takes 32,000.0 GB or more, and there are" in said


def test_generate_says_so_where_no_language_model_is_shipped(
    scannable: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("scannable.weights.shipped_model.language_model", lambda: None)
    code, said = scannable("generate")
    assert code == 1 and "no language model is shipped; give the folder of a run, such as runs/stdlib" in said


def test_generate_takes_the_shipped_language_model_when_nothing_is_named(scannable: Command) -> None:
    code, said = scannable("generate", "--prompt", "def main(", "--tokens", 12)
    assert code == 0 and said.strip()
    assert scannable("generate", "stdlib-hybrid", "--prompt", "def main(", "--tokens", 12) == (0, said)


def test_a_shipped_model_generates(scannable: Command) -> None:
    code, said = scannable("generate", "s5", "--prompt", "0 3", "--tokens", 2, "--temperature", 0)
    assert code == 0 and all(0 <= int(word) < 120 for word in said.split()) and len(said.split()) == 2


def test_other_weights_than_those_shipped_are_refused(scannable: Command) -> None:
    code, said = scannable("eval", "s5", "--weights", "best")
    assert code == 1 and "the shipped model s5 has the last weights only, not the best ones" in said


def test_a_shipped_model_is_one_function(scannable: Command) -> None:
    code, said = scannable("verify", "s5", "--length", 40)
    assert code == 0 and "PASSED: TransformerPSM on 2 x 40 tokens, float64" in said


def test_the_demo_ends_with_the_shipped_model(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("scannable.cli.demo.FAR", 1200)
    read_far_beyond(Console(width=200), torch.device("cpu"))
    said = capsys.readouterr().out
    assert "413,056 parameters that come with the package" in said and "It reads 66 times the length" in said
    assert "no error in 1,200 answers" in said
