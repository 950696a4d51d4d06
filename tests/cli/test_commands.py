"""The command line as a person meets it: what is printed, what is written, how it exits."""

import csv
import json
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest
import torch
from rich.console import Console

import scannable as sc
from scannable.cli.commands.verify import check_fits
from scannable.cli.demo import train_and_stream
from scannable.cli.main import GROUPS, main
from scannable.experiments import streaming
from scannable.recipes import recipe_named
from scannable.storage.configuration import ConfigurationError
from scannable.training.loop import Run
from scannable.training.recipe import Curriculum, Evaluation

TINY = [
    "--steps", "4", "--model.width", "16", "--batch-tokens", "64", "--evaluation.every", "2", "--evaluation.samples", "8",
    "--evaluation.lengths", "8", "--curriculum.lengths", "4", "--checkpoint-every", "2", "--log-every", "1",
]  # fmt: skip


@dataclass(frozen=True)
class Ended:
    """A command that has ended."""

    code: int
    said: str
    error: str

    @property
    def words(self) -> str:
        """All of it, without the boxes."""
        return " ".join((self.said + self.error).replace("│", " ").split())


Command = Callable[..., Ended]


@pytest.fixture
def scannable(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Command:
    """The command within this process, which need not import torch again."""

    def call(*arguments: object) -> Ended:
        monkeypatch.setattr(sys, "argv", ["scannable", *map(str, arguments)])
        code: Any = 0
        try:
            main()
        except SystemExit as end:
            code = end.code or 0
        printed = capsys.readouterr()
        # Python itself prints a string that something exits with.
        said, number = (f"{code}\n", 1) if isinstance(code, str) else ("", int(code))
        return Ended(number, printed.out, printed.err + said)

    return call


def really(*arguments: object, **options: Any) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "scannable", *map(str, arguments)]
    # As many threads as here: sums are rounded differently on more.
    options["env"] = options.get("env", os.environ) | {"OMP_NUM_THREADS": "1"}
    return subprocess.run(command, capture_output=True, text=True, check=False, **options)


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run that `scannable train` left, in a process of its own; not to be changed."""
    folder = tmp_path_factory.mktemp("trained") / "run"
    done = really("train", "demo", *TINY, "--out", folder)
    assert done.returncode == 0, done.stderr
    assert "step 2: length 4, validation loss " in done.stdout and "length 8: test loss " in done.stdout
    assert done.stdout.endswith(f" parameters, 4 steps; best validation loss at step 4; written to {folder}\n")
    assert not done.stderr
    return folder


def a_copy(run: Path, folder: Path) -> Path:
    return Path(shutil.copytree(run, folder / "copy"))


def assert_one_line(ended: Ended, expected: str) -> None:
    assert ended.code == 1 and expected in ended.error
    assert ended.error.startswith("scannable: ") and len(ended.error.strip().splitlines()) == 1


# What there is.


def test_help_names_the_commands(scannable: Command) -> None:
    ended = scannable("--help")
    assert ended.code == 0
    for command in (
        "demo",
        "explain",
        "recipes",
        "train",
        "eval",
        "generate",
        "verify",
        "plot",
        "zoo",
        "models",
        "reproduce",
    ):
        assert f"\n  {command} " in ended.said
    assert "--debug     show where an error comes from" in ended.said
    # For a terminal of 80 columns.
    assert max(map(len, ended.said.splitlines())) <= 80
    assert scannable("-h") == ended and scannable() == replace(ended, code=2)


def test_the_version_is_the_packages(scannable: Command) -> None:
    assert scannable("--version") == Ended(0, f"scannable {sc.__version__}\n", "")


@pytest.mark.parametrize("command", [c for group in GROUPS.values() for c in group])
def test_the_help_of_a_command_begins_with_its_line_in_the_list_and_has_an_example(
    command: str, scannable: Command
) -> None:
    (line,) = [line for line in scannable("--help").said.splitlines() if line.startswith(f"  {command} ")]
    ended = scannable(command, *(["s5"] if command == "train" else []), "--help")
    assert ended.code == 0 and f"    scannable {command}" in ended.said
    assert command == "train" or line.split(maxsplit=1)[1] in ended.words


@pytest.mark.parametrize(
    ("command", "sentences"),
    [
        ("demo", ["--out PATH", "folder for the report", "itself. (default: demo)"]),
        ("eval", ["[OPTIONS] RUN", "folder of the run", "--lengths", "--samples", "--split {train,validation,test}", "test. (default: test)", "--device STR such as cuda. (default: cpu)"]),
        ("generate", ["[OPTIONS] [RUN]", "--prompt STR", "--tokens INT how many to generate. (default: 200)", "--temperature FLOAT 0 takes the likeliest every time. (default: 0.8)", "repeatable. (default: 0)", "--device STR"]),
        ("verify", ["RUN", "--length INT tokens to check on. (default: 300)", "--batch INT rows to check on. (default: 2)", "--device STR"]),
        ("plot", ["RUN [RUN ...]", "folders of the runs", "--out PATH"]),
        ("explain", ["--browser, --no-browser", "not only print its path. (default: True)"]),
        ("zoo", [f"--{name} INT {what} (default: {value})" for name, what, value in (("width", "of the layers that are counted.", 256), ("heads", "of the layers that are counted.", 4), ("length", "how many tokens they have seen.", 1024))]),
    ],
)  # fmt: skip
def test_the_help_of_a_command_says_what_it_takes(scannable: Command, command: str, sentences: list[str]) -> None:
    ended = scannable(command, "--help")
    assert ended.code == 0
    for sentence in sentences:
        assert sentence in ended.words


def test_the_help_of_train_lists_the_recipes_and_says_how_to_go_on(scannable: Command) -> None:
    ended = scannable("train", "--help")
    assert ended.code == 0
    assert ended.said.startswith("usage: scannable train RECIPE [--out FOLDER] [--resume] [--FIELD VALUE ...]")
    assert "\ns5              The paper's state tracking over S5" in ended.said
    assert "scannable train RECIPE --help lists the fields of a recipe." in ended.said
    assert "\n  scannable train s5 --model.width 64" in ended.said
    assert scannable("train") == replace(ended, code=2)
    late = scannable("train", "--steps", 3, "s5")
    assert late.code == 2 and late.error == "scannable: the recipe comes first, before --steps\n"


def test_the_help_of_a_recipe_has_every_field_with_its_value_and_meaning(scannable: Command) -> None:
    ended = scannable("train", "demo", "--help")
    assert ended.code == 0 and "Train demo: Sums modulo five" in ended.said
    for sentence in (
        "--model.width INT d, the same for Enc, Agg and Inf. (default: 64)",
        "--task.group STR",
        "(default: Z5)",
        "--optimizer.schedule {constant,linear,cosine,late} How the learning rate goes from its peak",
        "--curriculum.lengths [INT [INT ...]] (default: 4 8 16)",
        "--evaluation.stop-below {None}|FLOAT",
        "--resume, --no-resume Go on from the newest whole checkpoint, or start if there is none.",
    ):
        assert sentence in ended.words
    # Mamba's fields are others.
    assert "--model.activation" in scannable("train", "stdlib-mamba", "--help").words


def test_recipes_and_rows_are_listed(scannable: Command) -> None:
    ended = scannable("recipes")
    names = [line.split()[0] for line in ended.said.splitlines()]
    assert ended.code == 0 and names == [
        "demo", "s5", "s5-plain", "mqar", "stdlib", "stdlib-mamba", "stdlib-hybrid"
    ]  # fmt: skip
    ended = scannable("zoo", "--width", 16, "--heads", 2, "--length", 32)
    assert ended.code == 0 and "One layer of width 16 with 2 heads, after 32 tokens" in ended.said
    assert {"gated_deltanet", "mamba", "lstm"} <= {line.split()[0] for line in ended.said.splitlines() if line}


# The demo.


@pytest.mark.slow
def test_the_demo_shows_both_scans_equal_and_streams_a_model(
    tmp_path: Path, scannable: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With a model that has hardly learned anything: a minute is too long here."""
    short = replace(
        recipe_named("demo"),
        steps=3,
        batch_tokens=32,
        curriculum=Curriculum((2, 4), steps=2),
        evaluation=Evaluation(every=1, samples=4),
    )
    monkeypatch.setattr("scannable.cli.demo.demo_recipe", lambda: short)
    ended = scannable("demo", "--out", tmp_path)
    assert ended.code == 0, ended.error
    assert "65,536 of 65,536 prefixes identical" in ended.words
    assert "(((ab)(cd))((ef)(gh)))" in ended.said
    assert "PASSED: TransformerPSM on 2 x 100 tokens, float64" in ended.said
    names = ("scan_cost.csv", "scan_cost.png", "scan_cost.svg", "streaming.csv", "streaming.png", "streaming.svg")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["run", *names]
    assert (tmp_path / "scan_cost.png").read_bytes().startswith(b"\x89PNG")
    with (tmp_path / "scan_cost.csv").open() as file:
        rows = list(csv.DictReader(file))
    last = {row["way"]: row for row in rows if row["n"] == "65536"}
    assert int(last["binary counter"]["evaluations"]) == 2 * 65_536 - 1 - 17
    assert int(last["binary counter"]["held"]) == 31
    assert int(last["static scan"]["evaluations"]) == int(last["binary counter"]["evaluations"])
    with (tmp_path / "streaming.csv").open() as file:
        assert [int(row["n"]) for row in csv.DictReader(file)] == [1, 3, 7, 15, 31, 63, 127, 255]  # 64 times 4
    # And once more in the same place, the part that trains.
    train_and_stream(tmp_path, Console(quiet=True), torch.device("cpu"))
    assert json.loads((tmp_path / "run" / "result.json").read_text())["steps"] == 3


# A run, from its beginning to its picture.


def test_a_run_leaves_what_it_is_and_what_it_found(trained: Path) -> None:
    config = json.loads((trained / "config.json").read_text())
    assert (config["kind"], config["steps"], config["model"]["width"]) == ("scannable.training.recipe:Recipe", 4, 16)
    assert json.loads((trained / "result.json").read_text())["steps"] == 4
    assert sorted(path.name for path in (trained / "checkpoints").iterdir()) == ["step-00000002", "step-00000004"]


def test_a_run_is_not_overwritten(trained: Path, scannable: Command) -> None:
    before = {path: path.read_bytes() for path in trained.rglob("*") if path.is_file()}
    assert_one_line(
        scannable("train", "demo", *TINY, "--out", trained),
        f"{trained} holds a run already; go on with --resume, or choose another folder",
    )
    assert before == {path: path.read_bytes() for path in trained.rglob("*") if path.is_file()}


def test_a_run_is_resumed_where_its_newest_checkpoint_is(tmp_path: Path, trained: Path, scannable: Command) -> None:
    run = a_copy(trained, tmp_path)
    result = (run / "result.json").read_bytes()
    shutil.rmtree(run / "checkpoints" / "step-00000004")
    (run / "result.json").unlink()
    ended = scannable("train", "demo", *TINY, "--out", run, "--resume")
    assert ended.code == 0 and "step 4: " in ended.said and "step 2: " not in ended.said
    assert (run / "result.json").read_bytes() == result
    assert (run / "metrics.jsonl").read_bytes() == (trained / "metrics.jsonl").read_bytes()


def test_a_run_that_is_not_there_can_be_resumed_from_its_beginning(tmp_path: Path, scannable: Command) -> None:
    ended = scannable("train", "demo", *TINY, "--steps", 1, "--out", tmp_path / "new", "--resume")
    assert ended.code == 0 and (tmp_path / "new" / "result.json").is_file()


def test_a_changed_configuration_needs_force(tmp_path: Path, trained: Path, scannable: Command) -> None:
    run = a_copy(trained, tmp_path)
    shutil.rmtree(run / "checkpoints" / "step-00000004")
    changed = ["train", "demo", *TINY, "--steps", 5, "--optimizer.clip", 2.0, "--out", run, "--resume"]
    ended = scannable(*changed)
    assert_one_line(ended, "was trained with another configuration (optimizer.clip was 1.0, is 2.0; steps was 4, is 5)")
    assert "--force" in ended.error
    ended = scannable(*changed, "--force")
    assert ended.code == 0 and json.loads((run / "result.json").read_text())["steps"] == 5


def test_a_run_is_measured(trained: Path, scannable: Command) -> None:
    ended = scannable("eval", trained, "--lengths", 4, 9, "--samples", 8)
    assert ended.code == 0
    weights, *lines = ended.said.splitlines()
    assert weights == f"{trained}: weights of step 4 (last, averaged), on the test split"
    head, *rows = [line.split() for line in lines]
    assert head == ["length", "samples", "loss", "perplexity", "error", "bits/byte"]
    assert [row[:2] for row in rows] == [["4", "8"], ["9", "8"]] and all(row[5] == "-" for row in rows)
    assert all(float(row[2]) > 0 and 0 <= float(row[4].rstrip("%")) <= 100 for row in rows)
    ended = scannable("eval", trained, "--split", "validation")
    assert ended.said.splitlines()[2].split()[:2] == ["4", "256"]


def test_a_run_is_verified(trained: Path, scannable: Command) -> None:
    ended = scannable("verify", trained, "--length", 40, "--batch", 3)
    assert ended.code == 0 and ended.said.startswith("PASSED: TransformerPSM on 3 x 40 tokens, float64")


def test_a_model_that_is_not_one_function_exits_with_1(
    trained: Path, scannable: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    from scannable import TransformerPSM

    whole = TransformerPSM.step

    def a_little_off(*given: Any) -> Any:
        logits, state = whole(*given)
        return logits + 1e-3, state

    monkeypatch.setattr(TransformerPSM, "step", a_little_off)
    ended = scannable("verify", trained, "--length", 20)
    assert ended.code == 1 and ended.said.startswith("FAILED")


def test_tokens_are_generated_the_same_for_the_same_seed(trained: Path, scannable: Command) -> None:
    ended = scannable("generate", trained, "--prompt", "1 2", "--tokens", 30)
    assert ended.code == 0 and len(ended.said.split()) == 30
    assert all(0 <= int(word) < 5 for word in ended.said.split())
    assert scannable("generate", trained, "--prompt", "1 2", "--tokens", 30) == ended
    assert scannable("generate", trained, "--prompt", "1 2", "--tokens", 30, "--seed", 1) != ended
    likeliest = [scannable("generate", trained, "--temperature", 0, "--tokens", 9, "--seed", n).said for n in (0, 1)]
    assert likeliest[0] == likeliest[1] == scannable("generate", trained, "--top-k", 1, "--tokens", 9).said


def test_runs_are_drawn(tmp_path: Path, trained: Path, scannable: Command) -> None:
    picture = tmp_path / "curves.png"
    ended = scannable("plot", trained, a_copy(trained, tmp_path), "--out", picture)
    assert ended.code == 0 and f"written to {picture} and {picture.with_suffix('.csv')}" in ended.said
    assert picture.read_bytes().startswith(b"\x89PNG\r\n\x1a\n")
    with picture.with_suffix(".csv").open() as file:
        rows = list(csv.DictReader(file))
    assert {row["run"] for row in rows} == {"run", "copy"}
    assert [row["step"] for row in rows if (row["run"], row["kind"]) == ("run", "train")] == ["1", "2", "3", "4"]


@pytest.mark.parametrize(
    "tokenizer",
    [
        ["--task.tokenizer", "bytes", "--task.bpe-size", "None", "--model.vocab-size", "257"],
        ["--task.bpe-size", "260", "--model.vocab-size", "260"],
    ],
)
def test_text_is_learned_and_generated(
    tmp_path: Path, scannable: Command, monkeypatch: pytest.MonkeyPatch, tokenizer: list[str]
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    (tmp_path / "book.txt").write_text("the cät sat on the mat. " * 400)
    run = tmp_path / "run"
    task = ["--task.data", tmp_path / "book.txt", "--model.chunk-length", 8, "--model.heads", 2, *tokenizer]
    ended = scannable("train", "stdlib", *TINY, *task, "--out", run)
    assert ended.code == 0, ended.error
    assert (tmp_path / "cache" / "scannable").is_dir()
    ended = scannable("eval", run, "--lengths", 16)
    assert ended.code == 0 and float(ended.said.splitlines()[2].split()[-1]) > 0  # bits a byte
    ended = scannable("generate", run, "--prompt", "the c", "--tokens", 12)
    # Byte by byte it may be half a character, but it can be printed.
    assert ended.code == 0 and ended.said.endswith("\n") and ended.said.encode()
    assert scannable("generate", run, "--tokens", 3).code == 0
    assert scannable("verify", run, "--length", 30).code == 0


# Mistakes.


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (["train", "dmo"], "there is no recipe 'dmo'; did you mean 'demo'? known: demo, s5, s5-plain, mqar"),
        (["train", "demo", "--steps", "0"], "steps=0 must be above 0"),
        (["train", "demo", "--steps", "1" + "0" * 30], "is out of the range of 64 bits"),
        (["train", "demo", "--task.group", "S3"], "the task has 6 tokens, the model only 5; set --model.vocab-size 6"),
        (["train", "demo", "--model.width", "1000000000"], "the model of this TransformerPSMConfig is too large"),
        (["train", "demo", "--batch-tokens", "1000000000000"], "choose a smaller length or batch_tokens"),
        (["train", "demo", "--device", "nonesuch"], "nonesuch"),
        (["train", "demo", *TINY, "--out", "file"], "file"),
        (["train", "demo", *TINY, "--out", "file/inside"], "Not a directory: 'file/inside"),
        (["train", "stdlib", "--task.data", "nowhere.txt"], "nowhere.txt' is neither a file nor a folder"),
        (["train", "stdlib", "--task.data", "file"], "but a sample of length=512 needs 513"),
        (["train", "mqar", "--evaluation.lengths", "8"], "length=8 is too short for pairs=16"),
        (["train", "demo", "--curriculum.lengths", "1"], "which holds too few sequences of length 1 or none"),
        (["demo", "--out", "file/inside"], "Not a directory: 'file/inside"),
        (["eval", "nowhere"], "there is no folder nowhere; give the folder of a run, such as runs/s5"),
        (["generate", "nowhere"], "there is no folder nowhere"),
        (["verify", "nowhere"], "there is no folder nowhere"),
        (["plot", "nowhere"], "there is no folder nowhere"),
        (["plot", "empty"], "empty holds no run: config.json is missing"),
        (["plot"], "no run to draw; give one folder or several"),
        (["eval", "empty"], "empty holds no run: config.json is missing; `scannable train` makes one"),
        (["eval", "file"], "there is no folder file"),
        (["zoo", "--length", "0"], "length=0 must be above 0"),
        (["zoo", "--width", "-64"], "width=-64 must be above 0"),
        (["zoo", "--length", "1000000000000"], "a layer of width 256 over 1,000,000,000,000 tokens takes"),
    ],
)
def test_a_mistake_is_one_line_with_the_way_out(
    arguments: list[str], expected: str, tmp_path: Path, scannable: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / ".cache"))
    (tmp_path / "file").write_text("a file\n" * 20)
    (tmp_path / "empty").mkdir()
    monkeypatch.setattr("scannable.cli.demo.demo_recipe", lambda: pytest.fail("trained"))
    assert_one_line(scannable(*arguments), expected)
    # Nothing is left that a second attempt would stumble over.
    assert sorted(path.name for path in tmp_path.glob("[!.]*")) == ["empty", "file"]


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (["eval", "--lengths", "0"], "lengths=0 must be above 0"),
        (["eval", "--samples", "0"], "samples=0 must be above 0"),
        (["eval", "--lengths", "1000000000000"], "a batch of 1 x 1,000,000,000,000 tokens takes"),
        (["generate", "--prompt", "hello"], "prompt 'hello' is no list of tokens"),
        (["generate", "--prompt", "0 9"], "token 9 is outside the vocabulary of 5"),
        (["generate", "--tokens", "-1"], "tokens=-1 must be 0 or above"),
        (["generate", "--temperature", "nan"], "temperature=nan must be 0 (the likeliest token) or above"),
        (["generate", "--top-k", "0"], "top_k=0 must be above 0"),
        (["generate", "--seed", "-1"], "seed=-1 must be a whole number from 0 to 2^63 - 1"),
        (["verify", "--length", "0"], "length=0 must be above 0"),
        (["verify", "--batch", "-3"], "batch=-3 must be above 0"),
        (["verify", "--length", "1000000000000"], "outputs for 2 x 1,000,000,000,000 tokens take"),
        (["verify", "--batch", "1000000000000"], "choose a smaller length or batch"),
        (["plot", "--out", "picture.nonesuch"], "nonesuch"),
    ],
)
def test_a_mistake_about_a_run_is_one_line(
    arguments: list[str], expected: str, trained: Path, scannable: Command
) -> None:
    command, *rest = arguments
    assert_one_line(scannable(command, trained, *rest), expected)


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (["dmeo"], "there is no command 'dmeo'; did you mean 'demo'? known: demo, explain, zoo, models, recipes"),
        (["--help-me"], "there is no command '--help-me'"),
        (["eval"], "folder of the run"),
        (["eval", "run", "--split", "tset"], "invalid choice 'tset' for argument '--split'"),
        (["train", "demo", "--model.widht", "3"], "Perhaps you meant: --model.width"),
        (["train", "demo", "--steps", "many"], "Error parsing --steps: invalid literal for int"),
        (["train", "demo", "--steps", "1.5"], "Error parsing --steps"),
        (["train", "demo", "--model.width", "0"], "width=0 must be a whole number of at least 1"),
        (["train", "demo", "--model.heads", "7"], "width=64 is not a multiple of heads=7"),
        (["train", "demo", "--task.group", "S77"], "group='S77' has more than 2,048 elements"),
        (
            ["train", "demo", "--optimizer.schedule", "cosin"],
            "Expected one of ('constant', 'linear', 'cosine', 'late')",
        ),
        (["train", "demo", "--optimizer.learning-rate", "nan"], "learning_rate=nan is not finite"),
        (["train", "demo", "--curriculum.lengths"], "lengths is empty; give at least one length"),
        (["train", "demo", "--out"], "--out"),
    ],
)
def test_what_cannot_be_parsed_exits_with_2_and_says_what_was_meant(
    arguments: list[str], expected: str, tmp_path: Path, scannable: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    ended = scannable(*arguments)
    assert ended.code == 2 and expected in ended.words and "Traceback" not in ended.words
    assert not list(tmp_path.iterdir())


def damage_config(run: Path) -> None:
    config = json.loads((run / "config.json").read_text())
    config["model"]["widht"] = 3
    (run / "config.json").write_text(json.dumps(config))


def cut(name: str) -> Callable[[Path], None]:
    def damage(run: Path) -> None:
        path = run / name
        path.write_bytes(path.read_bytes()[:-9])

    return damage


@pytest.mark.parametrize(
    ("damage", "expected"),
    [
        (damage_config, "config.json.model has no field 'widht'; did you mean 'width'?"),
        (cut("config.json"), "config.json is damaged: "),
        (cut("checkpoints/step-00000004/model.safetensors"), "model.safetensors is not what was written"),
        (cut("checkpoints/step-00000004/MANIFEST.json"), "MANIFEST.json is damaged"),
        (lambda run: (run / "checkpoints/step-00000004/state.json").unlink(), "state.json is missing"),
        (lambda run: shutil.rmtree(run / "checkpoints"), "has no checkpoint yet"),
    ],
)
def test_a_damaged_run_is_named(
    tmp_path: Path, trained: Path, scannable: Command, damage: Callable[[Path], None], expected: str
) -> None:
    run = a_copy(trained, tmp_path)
    damage(run)
    for command in ("eval", "generate", "verify"):
        assert_one_line(scannable(command, run), expected)


def test_a_picture_of_damaged_metrics_is_refused(tmp_path: Path, trained: Path, scannable: Command) -> None:
    run = a_copy(trained, tmp_path)
    lines = (run / "metrics.jsonl").read_text().splitlines()
    (run / "metrics.jsonl").write_text("\n".join([lines[0], lines[1][:-9], *lines[2:]]) + "\n")
    assert_one_line(scannable("plot", run, "--out", tmp_path / "plot.png"), "metrics.jsonl, line 2 is damaged")


def test_a_damaged_run_goes_on_from_the_checkpoint_before(tmp_path: Path, trained: Path, scannable: Command) -> None:
    run = a_copy(trained, tmp_path)
    cut("checkpoints/step-00000004/model.safetensors")(run)
    ended = scannable("train", "demo", *TINY, "--out", run, "--resume")
    assert ended.code == 0 and "skipped: " in ended.said and "model.safetensors is not what was written" in ended.words
    assert (run / "result.json").read_bytes() == (trained / "result.json").read_bytes()


def test_debug_shows_where_an_error_comes_from(tmp_path: Path, scannable: Command) -> None:
    for arguments in (["--debug", "eval", tmp_path], ["eval", tmp_path, "--debug"]):
        with pytest.raises(ConfigurationError, match="holds no run"):
            scannable(*arguments)
    done = really("eval", tmp_path, "--debug")
    assert done.returncode == 1 and done.stderr.startswith("Traceback") and "ConfigurationError" in done.stderr


def test_a_reader_that_has_seen_enough_is_no_error() -> None:
    shell = f"{sys.executable} -m scannable train demo --help | head -n 1"
    done = subprocess.run(["bash", "-c", shell], capture_output=True, text=True, check=False)
    assert done.stdout == "usage: scannable train demo [-h] [OPTIONS]\n" and not done.stderr


def test_ctrl_c_is_no_traceback(scannable: Command, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(*given: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("scannable.cli.layer_costs.table", interrupted)
    ended = scannable("zoo")
    assert ended.code == 130 and not ended.error


def test_a_missing_extra_says_what_to_install() -> None:
    code = "import sys; sys.modules['tyro'] = None; from scannable.cli.main import main; main()"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 1 and "pip install 'scannable[train,plot]'" in done.stderr


# Devices, and being stopped.


@pytest.mark.parametrize(
    "arguments",
    [
        ["eval", "RUN", "--samples", 8],
        ["generate", "RUN", "--tokens", 3],
        ["verify", "RUN", "--length", 20],
        ["train", "demo", *TINY, "--out", "NEW"],
        ["reproduce", "s5", "--profile", "smoke", "--out", "OUT", "--runs", "RUNS"],
        ["demo", "--out", "DEMO"],
    ],
    ids=lambda arguments: arguments[0],
)
def test_every_command_that_runs_a_model_takes_a_device(
    arguments: list[object], trained: Path, tmp_path: Path, scannable: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And one that is not there is refused before anything is trained."""
    monkeypatch.chdir(tmp_path)
    given = [trained if argument == "RUN" else argument for argument in arguments]
    device = f"cuda:{torch.cuda.device_count()}"
    assert_one_line(scannable(*given, "--device", device), f"device='{device}' is not there, or torch ")
    assert not list(tmp_path.rglob("config.json"))
    if arguments[0] in ("eval", "generate", "verify", "train"):
        there = "cuda" if torch.cuda.is_available() else "cpu"
        assert scannable(*given, "--device", there).code == 0


@pytest.mark.parametrize("moment", ["train", "stream"])
def test_ctrl_c_ends_the_demo_with_130(
    moment: str, tmp_path: Path, scannable: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    """While it trains, when the run saves itself first, and after."""
    short = replace(recipe_named("demo"), steps=3, evaluation=Evaluation(every=1, samples=4))
    monkeypatch.setattr("scannable.cli.demo.demo_recipe", lambda: short)
    monkeypatch.setattr("scannable.cli.demo.show_the_scan", lambda *given: None)
    holder, name = (Run, "score") if moment == "train" else (streaming, "report")
    whole = getattr(holder, name)

    def signalled(*given: Any, **options: Any) -> Any:
        signal.raise_signal(signal.SIGINT)
        return whole(*given, **options)

    monkeypatch.setattr(holder, name, signalled)
    ended = scannable("demo", "--out", tmp_path)
    assert ended.code == 130 and not ended.error


def test_weights_are_chosen_when_a_run_is_exported_and_not_when_one_is_imported(
    trained: Path, scannable: Command, tmp_path: Path
) -> None:
    ended = scannable("hf", "export", trained, tmp_path / "exported", "--weights", "last")
    assert ended.code == 0, ended.error
    ended = scannable("hf", "import", tmp_path / "exported", tmp_path / "again", "--weights", "last")
    assert_one_line(ended, "weights=last is for export: a folder has one set of weights; drop it")
    assert not (tmp_path / "again").exists()


def test_what_just_fits_is_verified(monkeypatch: pytest.MonkeyPatch) -> None:
    recipe = recipe_named("demo")
    # A token, and two outputs for each element that are compared in float64.
    needed = 3 * 40 * (8 + 2 * 8 * recipe.task.out_size)
    monkeypatch.setattr("scannable.training.limits.memory_of", lambda device: needed)
    check_fits(recipe, 3, 40, "cpu")
    with pytest.raises(ConfigurationError, match="choose a smaller length or batch"):
        check_fits(recipe, 3, 41, "cpu")


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGUSR1])
def test_a_run_that_a_signal_stopped_ends_with_its_exit_code_and_the_way_on(
    number: signal.Signals, scannable: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    step = Run._one_step

    def one_step(run: Run, length: int) -> Any:
        if run.progress.step == 1:
            os.kill(os.getpid(), number)
        return step(run, length)

    monkeypatch.setattr(Run, "_one_step", one_step)
    ended = scannable("train", "demo", *TINY, "--out", tmp_path / "run")
    assert ended.code == 128 + number
    assert "stopped at step 2 of 4" in ended.said and "To go on: " in ended.said
    assert not (tmp_path / "run" / "result.json").exists()
