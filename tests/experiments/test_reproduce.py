"""`scannable reproduce` at its smallest: what it leaves, what it says, and that all models had the same to learn from."""

import csv
import json
import shutil
import signal
import sys
from collections.abc import Callable
from dataclasses import dataclass, replace
from math import exp
from pathlib import Path
from typing import Any, get_args

import pytest

from scannable.cli.main import main
from scannable.experiments import language_runs, recall, recall_runs, state_tracking_runs
from scannable.experiments.laboratory import Laboratory
from scannable.experiments.profile import Profile, profile_named
from scannable.experiments.reproduce import ABOUT, Name, named
from scannable.recipes.seeds import TRIALS
from scannable.storage.configuration import from_plain
from scannable.training.recipe import Recipe
from scannable.training.run_folder import load_recipe, load_result

Row = dict[str, str]


@dataclass(frozen=True)
class Left:
    """What an experiment left behind."""

    name: Name
    results: Path
    runs: Path

    @property
    def rows(self) -> list[Row]:
        with (self.results / f"{self.name}.csv").open() as file:
            return list(csv.DictReader(file))

    @property
    def page(self) -> str:
        return (self.results / "README.md").read_text()

    def files(self) -> dict[str, bytes]:
        return {str(path.relative_to(self.results)): path.read_bytes() for path in self.results.rglob("*.*")}

    def recipes(self) -> dict[str, Recipe[Any, Any]]:
        paths = (self.results / "configurations").iterdir()
        return {path.stem: from_plain(json.loads(path.read_text()), Recipe, path.name) for path in paths}


@dataclass(frozen=True)
class Ended:
    """A command that has ended."""

    code: int
    said: str
    error: str


Command = Callable[..., Ended]


@pytest.fixture
def reproduce(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Command:
    """The command within this process."""

    def call(*arguments: object) -> Ended:
        monkeypatch.setattr(sys, "argv", ["scannable", "reproduce", *map(str, arguments)])
        monkeypatch.setenv("COLUMNS", "300")
        code: Any = 0
        try:
            main()
        except SystemExit as end:
            code = end.code or 0
        printed = capsys.readouterr()
        said, number = (f"{code}\n", 1) if isinstance(code, str) else ("", int(code))
        return Ended(number, printed.out, printed.err + said)

    return call


# What it leaves.

FIGURES: dict[Name, list[str]] = {
    "s5": ["s5", "associativity"],
    "mqar": ["mqar"],
    "wikitext": ["wikitext", "streams"],
}
MODELS: dict[Name, set[str]] = {
    "s5": set(state_tracking_runs.TITLES),
    "mqar": set(recall_runs.setting("smoke").models),
    "wikitext": set(language_runs.models("smoke", 257)),
}
SWEPT: dict[Name, set[str]] = {
    "s5": set(state_tracking_runs.setting("smoke").opponents),
    "mqar": {family.swept for family in recall_runs.setting("smoke").families.values()},
    "wikitext": {"psm-16", "gpt", "mamba", "hybrid", "alternating", "paper-psm-16", "paper-gpt2"},
}
"""Models whose learning rate is chosen among several: all kinds of baselines at least."""
SENTENCES: dict[Name, list[str]] = {
    "s5": [
        "Transformer-PSM keeps a low error past 160 tokens; GPT-2 and Mamba fail soon after 18",
        "width 16 instead",
        "4 layers for GPT-2",
    ],
    "mqar": [
        "The paper at 512 tokens, 8 pairs: Transformer-PSM with c = 64 perfect, with c = 32 degraded, Mamba fails"
    ],
    "wikitext": ["context 64: 22.28", "Mamba: 24.7", "c = 32: 24.12", "monotonically with c from 8 to 32"],
}
"""The paper's results, and what was scaled down."""


def assert_all_files(left: Left) -> None:
    files = left.files()
    for name in FIGURES[left.name]:
        assert files[f"{name}.png"].startswith(b"\x89PNG") and b"<svg" in files[f"{name}.svg"]
        assert f"{name}.csv" in files and f"]({name}.png)" in left.page


def assert_page(left: Left, command: str) -> None:
    assert f"`{command}`" in left.page
    # GPT-2's and Mamba's perplexities have a row each; T-PSM's 24.12 is at c = 32.
    for sentence in SENTENCES[left.name]:
        assert sentence in left.page
    # Whole tables: as many cells in each row as in its head.
    tables = [block.splitlines() for block in left.page.split("\n\n") if block.startswith("| ")]
    assert len(tables) >= 2
    for lines in tables:
        assert len({line.count("|") for line in lines}) == 1
    taken = [line for line in tables[-1] if "(taken)" in line]
    assert len(taken) == len(SWEPT[left.name])


def assert_rows(left: Left) -> None:
    rows = left.rows
    final = [row for row in rows if row["part"] == "final"]
    assert {row["model"] for row in final} == MODELS[left.name]
    rates = {
        name: {r["learning_rate"] for r in rows if (r["model"], r["part"]) == (name, "sweep")}
        for name in MODELS[left.name]
    }
    assert {name for name, found in rates.items() if found} == SWEPT[left.name]
    assert all(len(rates[name]) >= 3 for name in SWEPT[left.name])
    for row in rows:
        assert 0 <= float(row["error"]) <= 1 and float(row["loss"]) > 0
        assert int(row["parameters"]) > 0 and int(row["steps"]) > 0 and int(row["samples"]) > 0
        # The figure has the rate that won.
        if row["part"] == "final" and row["model"] in SWEPT[left.name]:
            assert row["learning_rate"] in rates[row["model"]]


def assert_rows_are_what_the_runs_found(left: Left) -> None:
    runs = {path.name: (load_recipe(path), load_result(path) or {}) for path in left.runs.iterdir()}
    found = {
        (
            result["parameters"],
            recipe.optimizer.learning_rate,
            result["steps"],
            result["best"]["loss"],
            score["length"],
            score["loss"],
            score["error"],
        )
        for recipe, result in runs.values()
        for score in result["test"]
    }
    for row in left.rows:
        rate, validation, loss, error = (
            float(row[name]) for name in ("learning_rate", "validation_loss", "loss", "error")
        )
        parameters, steps, length = (int(row[name]) for name in ("parameters", "steps", "length"))
        assert (parameters, rate, steps, validation, length, loss, error) in found


def assert_configurations(left: Left) -> None:
    recipes = left.recipes()
    assert recipes.keys() == {path.name for path in left.runs.iterdir()}
    for name, recipe in recipes.items():
        assert recipe == load_recipe(left.runs / name)


OTHER: dict[Name, Callable[[str], bool]] = {
    "s5": lambda name: (
        name.startswith("psm-helped")
        or any(part in name for part in ("-without-", "-to-", "-at-", "-generators", "-noise"))
    ),
    "mqar": lambda name: "-pairs" in name,
    "wikitext": lambda name: "-at-" in name,
}
"""Runs that have something beside the model and the optimizer for themselves, and are meant to."""


def assert_same_samples(left: Left) -> None:
    """All models of a figure, and all rates of a sweep, have one task, batch and number of steps at most."""
    recipes = left.recipes()
    sweep = {name: recipe for name, recipe in recipes.items() if name.startswith("sweep-")}
    final = {name: recipe for name, recipe in recipes.items() if name not in sweep and not OTHER[left.name](name)}
    for part in (sweep, final):
        for seed in {recipe.seed for recipe in part.values()}:
            mine = [recipe for recipe in part.values() if recipe.seed == seed]
            alike = [replace(recipe, model=mine[0].model, optimizer=mine[0].optimizer) for recipe in mine]
            assert all(recipe == alike[0] for recipe in alike)
    most = max(recipe.steps for recipe in recipes.values())
    assert all(int(row["steps"]) <= most for row in left.rows)


def check(left: Left, command: str) -> None:
    assert_all_files(left)
    assert_page(left, command)
    assert_rows(left)
    assert_rows_are_what_the_runs_found(left)
    assert_configurations(left)
    assert_same_samples(left)


def again(reproduce: Command, left: Left, *arguments: object) -> None:
    """The same command once more trains nothing, and writes the same."""
    before = left.files()
    trained = {path: path.stat().st_mtime_ns for path in left.runs.rglob("*")}
    ended = reproduce(*arguments)
    assert ended.code == 0, ended.error
    assert " runs are there already" in ended.said and ": run 1 of " not in ended.said
    assert {path: path.stat().st_mtime_ns for path in left.runs.rglob("*")} == trained
    assert left.files() == before


def places(folder: Path) -> list[object]:
    return ["--profile", "smoke", "--out", folder / "results", "--runs", folder / "runs"]


def left_in(folder: Path, name: Name) -> Left:
    return Left(name, folder / "results" / name / "smoke", folder / "runs" / name / "smoke")


@pytest.mark.slow
def test_s5_in_seconds(tmp_path: Path, reproduce: Command) -> None:
    handler = signal.getsignal(signal.SIGTERM)
    ended = reproduce("s5", *places(tmp_path))
    assert ended.code == 0, ended.error
    assert ended.said.startswith("s5: state tracking: error by length") and "s5: written to" in ended.said
    assert signal.getsignal(signal.SIGTERM) is handler
    left = left_in(tmp_path, "s5")
    check(left, "scannable reproduce s5 --profile smoke")
    rows, use = left.rows, state_tracking_runs.setting("smoke")
    # All of them as long as each other, the helped one too.
    assert {int(row["steps"]) for row in rows if row["part"] != "sweep"} == {use.recipe.steps}
    # Choices were made with samples that no reported run has.
    seeds = {name: recipe.task.seed for name, recipe in left.recipes().items()}
    assert {seed for name, seed in seeds.items() if name.startswith("sweep-")} == {TRIALS}
    assert TRIALS not in {seed for name, seed in seeds.items() if not name.startswith("sweep-")}
    with (left.results / "reading.csv").open() as file:
        read = [(row["model"], row["seed"], row["length"], row["asked"]) for row in csv.DictReader(file)]
    assert [row for row in read if row[0] == "psm-helped"] == [
        ("psm-helped", "0", "300", "600"), ("psm-helped", "0", "600", "600"), ("psm-helped", "1", "300", "600"),
    ]  # fmt: skip
    for heading in (
        "million tokens", "three aids one by one", "trained to 8", "8 from the start", "a few generators",
        "associative Agg",
    ):  # fmt: skip
        assert heading in left.page
    assert "PD-SSM (theirs) |  |  | 100 |" in left.page and "arXiv 2507.02782" in left.page
    with (left.results / "associativity.csv").open() as file:
        along = list(csv.DictReader(file))
    assert [int(row["step"]) for row in along] == [20]
    assert all(float(row["associativity_defect"]) > 0 for row in along)
    again(reproduce, left, "s5", *places(tmp_path))
    # With some runs gone, the page is made of the others, and says so; nothing is trained.
    sweep = [f"sweep-lstm{way}-{rate}" for way in ("", "-adamw") for rate in ("0.001", "0.003", "0.01")]
    for name in (*sweep, "psm-helped-1", "gpt2-0", "psm-plain-0"):
        shutil.rmtree(left.runs / name)
    ended = reproduce("s5", *places(tmp_path), "--only-finished")
    assert ended.code == 0, ended.error
    assert ": run 1 of " not in ended.said and not (left.runs / "gpt2-0").exists()
    (said,) = (line for line in left.page.splitlines() if line.startswith("**Made before all runs were finished.**"))
    for name in (
        "`psm-helped` 1;", "`gpt2` 0.", "`psm-plain` 0;", "`lstm` 0;", "`lstm-to-8` 0;", "`lstm-noise` 0, 1;", "`lstm-4-generators` 1",
        "`sweep-lstm` 0.001, 0.003, 0.01;", "`sweep-lstm-adamw` 0.001, 0.003, 0.01;",
    ):  # fmt: skip
        assert name in said
    models = {row["model"] for row in left.rows if row["part"] == "final"}
    assert models == MODELS["s5"] - {"lstm", "lstm-noise", "gpt2", "psm-plain"}
    # Its record stays: it may be all that is left of it.
    assert (left.results / "finished" / "gpt2-0.json").exists()
    # A part by itself is trained, and nothing else.
    ended = reproduce("s5", *places(tmp_path), "--parts", "psm")
    assert ended.code == 0 and "run 1 of 2, psm-helped-1" in ended.said and not (left.runs / "gpt2-0").exists()


def test_a_page_of_no_runs_at_all_is_a_page(tmp_path: Path, reproduce: Command) -> None:
    ended = reproduce("s5", *places(tmp_path), "--only-finished")
    assert ended.code == 0, ended.error
    left = left_in(tmp_path, "s5")
    assert "`psm-helped` 0, 1;" in left.page and left.rows == [] and not left.runs.exists()


@pytest.mark.slow
def test_mqar_in_seconds(tmp_path: Path, reproduce: Command) -> None:
    ended = reproduce("mqar", *places(tmp_path))
    assert ended.code == 0, ended.error
    left = left_in(tmp_path, "mqar")
    check(left, "scannable reproduce mqar --profile smoke")
    # A family has one rate, and it is one of those that were tried.
    rates = {row["model"]: row["learning_rate"] for row in left.rows if row["part"] == "final"}
    for family in recall_runs.setting("smoke").families.values():
        (rate,) = {rates[name] for name in family.models}
        swept = [row for row in left.rows if (row["model"], row["part"]) == (family.swept, "sweep")]
        best = max(swept, key=lambda row: (int(row["trained_to"]), -float(row["validation_loss"])))
        assert best["learning_rate"] == rate
    with (left.results / "state.csv").open() as file:
        held = {row["model"]: int(row["nbytes"]) for row in csv.DictReader(file)}
    assert held.keys() == MODELS["mqar"] and held["psm-right-8"] < held["psm-right-16"] < held["attention-16"]
    for name in MODELS["mqar"]:
        final = [row for row in left.rows if (row["model"], row["part"]) == (name, "final")]
        assert [int(row["length"]) for row in final] == [32, 48]
    again(reproduce, left, "mqar", *places(tmp_path))
    # With some of the sweep gone, its family is missing.
    for path in left.runs.glob("sweep-gla-*"):
        shutil.rmtree(path)
    ended = reproduce("mqar", *places(tmp_path), "--only-finished")
    assert ended.code == 0, ended.error
    assert (
        "| c = 8 | " in left.page
        and "`gla-8` 0; `gla-16` 0" in left.page
        and "| GLA" not in left.page
        and "| Mamba, width 8 |" in left.page
    )


@pytest.mark.slow
def test_wikitext_in_seconds(tmp_path: Path, reproduce: Command, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    book = tmp_path / "book"
    book.mkdir()
    (book / "chapter.txt").write_text("the cat sat on the mat, and the dog on the log. " * 300)
    arguments = ["wikitext", *places(tmp_path), "--data", book, "--tokenizer", "bytes"]
    ended = reproduce(*arguments)
    assert ended.code == 0, ended.error
    left = left_in(tmp_path, "wikitext")
    check(left, f"scannable reproduce wikitext --profile smoke --data {book} --tokenizer bytes")
    assert (tmp_path / "cache" / "scannable").is_dir()
    final = [row for row in left.rows if row["part"] == "final"]
    assert len({int(row["tokens"]) for row in final}) == 1
    # Every token of the test split but the first is scored, in windows of 64 or of 256.
    tokens = next(iter(left.recipes().values())).task.counts("test").tokens - 1
    assert {int(row["samples"]) for row in final} == {-(-tokens // 64), -(-tokens // 256)}
    lines = {line.split(" | ")[0].strip("| "): line for line in left.page.splitlines() if line.startswith("| ")}
    for name, title in (("gpt", "GPT, context 64"), ("paper-gpt2", "GPT-2, context 64"), ("mamba", "Mamba")):
        loss = next(float(row["loss"]) for row in final if row["model"] == name)
        assert f"| {exp(loss):.3f} |" in left.page and title in lines
    assert f"`{book}`" in left.page and "2 layers" in left.page
    with (left.results / "streams.csv").open() as file:
        streams = list(csv.DictReader(file))
    known = language_runs.models("smoke", 257)
    assert {row["model"]: int(row["trained_at"]) for row in streams} == {
        **dict.fromkeys(
            ("psm-16", "gpt", "gpt-cache", "hybrid", "alternating", "deep-hybrid", "mamba"), known["gpt"].context
        ),
        **{name: model.context for name, model in known.items() if model.part == "longer"},
        "gpt-at-256-cache": 256,
    }
    longer = {f"{name}-at-256" for name in ("psm-16", "gpt", "alternating", "wide-hybrid")} | {"gpt-at-256-cache"}
    assert {row["model"] for row in streams if row["trained_at"] == "256"} == longer
    for name in {row["model"] for row in streams}:
        assert sum(int(row["asked"]) for row in streams if row["model"] == name) == tokens
    # Whole windows of both splits, hybrids beside GPT.
    with (left.results / "windows.csv").open() as file:
        compared = {(row["hybrid"], row["gpt"], row["split"]): int(row["windows"]) for row in csv.DictReader(file)}
    pairs = (("deep-hybrid", "gpt"), ("alternating-at-256", "gpt-at-256"))
    assert compared.keys() == {(*pair, split) for pair in pairs for split in ("test", "validation")}
    assert compared["deep-hybrid", "gpt", "test"] == tokens // 64
    again(reproduce, left, *arguments)


# What is asked for by name.


def test_experiments_and_profiles_have_names() -> None:
    assert named("all") == list(ABOUT) == list(get_args(Name))
    assert [named(name) for name in ABOUT] == [[name] for name in ABOUT]
    assert [profile_named(name) for name in ("smoke", "laptop", "paper")] == list(get_args(Profile))


def test_the_help_has_every_experiment_and_profile(reproduce: Command) -> None:
    ended = reproduce("--help")
    assert ended.code == 0
    assert f"{{{','.join((*ABOUT, 'all'))}}}" in ended.said
    assert f"--profile {{{','.join(get_args(Profile))}}}" in ended.said


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (["s55"], "there is no experiment 's55'; did you mean 's5'? known: s5, mqar, wikitext, latency, spd, space, corrected, all"),
        (["wikitex"], "there is no experiment 'wikitex'; did you mean 'wikitext'?"),
        (["s5", "--profile", "smok"], "there is no profile 'smok'; did you mean 'smoke'? known: smoke, laptop, paper"),
        (["s5", "--parts", "opponent"], "s5 has no part 'opponent'; did you mean 'opponents'?"),
        (["s5", "--workers", "0"], "workers=0 must be above 0"),
        (["mqar", "--workers", "-1", "--profile", "smoke"], "workers=-1 must be above 0"),
        (["s5", "--profile", "smoke", "--out", "file"], "Not a directory: 'file/s5/smoke'"),
        (["s5", "--profile", "smoke", "--runs", "file"], "Not a directory"),
        (["s5", "--profile", "smoke", "--out", "out", "--runs", "runs", "--device", "nonesuch"], "nonesuch"),
        (
            ["wikitext", "--profile", "smoke", "--out", "out", "--runs", "runs", "--data", "nowhere"],
            "nowhere' is neither a file nor a folder",
        ),
        (
            ["wikitext", "--profile", "smoke", "--out", "out", "--runs", "runs", "--data", "file"],
            "but a sample of length=256 needs 257",
        ),
        (
            # Before the experiments that come first.
            ["all", "--profile", "smoke", "--out", "out", "--runs", "runs", "--data", "file"],
            "but a sample of length=256 needs 257",
        ),
    ],
)  # fmt: skip
def test_a_mistake_is_one_line_before_anything_is_trained(
    arguments: list[str], expected: str, tmp_path: Path, reproduce: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    (tmp_path / "file").write_text("a file\n" * 9)
    ended = reproduce(*arguments)
    assert ended.code == 1 and expected in ended.error
    assert ended.error.startswith("scannable: ") and len(ended.error.strip().splitlines()) == 1
    assert not list(tmp_path.rglob("metrics.jsonl"))


@pytest.mark.parametrize("arguments", [[], ["s5", "--workers", "many"], ["s5", "--worker", "2"]])
def test_what_cannot_be_parsed_exits_with_2(arguments: list[str], reproduce: Command) -> None:
    ended = reproduce(*arguments)
    assert ended.code == 2 and "Traceback" not in ended.error


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_an_interruption_exits_with_the_signals_code_and_says_how_to_go_on(
    tmp_path: Path, reproduce: Command, monkeypatch: pytest.MonkeyPatch, number: int, code: int
) -> None:
    def interrupted(lab: Laboratory) -> None:
        signal.raise_signal(number)

    monkeypatch.setattr(recall, "run", interrupted)
    ended = reproduce("mqar", *places(tmp_path))
    assert ended.code == code and ended.said.endswith("interrupted; the same command goes on\n") and not ended.error
