"""An experiment asks for runs and gets them trained: once, wherever they were interrupted, in however many processes."""

import io
import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from rich.console import Console

import scannable as sc
from scannable.experiments import laboratory, worker
from scannable.experiments.laboratory import Laboratory
from scannable.tasks import GroupTask
from scannable.tasks.text import TextTask
from scannable.training import checkpoint as checkpoints
from scannable.training.loop import Interrupted, Run
from scannable.training.recipe import Curriculum, Evaluation, Optimizer, Recipe
from scannable.training.run_folder import TrainingError, load_recipe, write_config


def recipe_of(**changes: Any) -> Recipe[Any, Any]:
    values: dict[str, Any] = {
        "model": sc.TransformerPSMConfig(6, 16, chunk_length=2, agg_layers=1, inf_layers=1, heads=2, dropout=0.1),
        "task": GroupTask("S3"),
        "steps": 8,
        "batch_tokens": 64,
        "optimizer": Optimizer(warmup=3),
        "curriculum": Curriculum((3, 5), steps=4),
        "evaluation": Evaluation(every=4, samples=16, lengths=(12,)),
        "ema": 0.9,
        "checkpoint_every": 3,
        "log_every": 1,
    }
    return Recipe(**(values | changes))


TWO = {"one": recipe_of(), "two": recipe_of(seed=1)}
ENDLESS = recipe_of(steps=50_000, evaluation=Evaluation(every=50_000, samples=4))


def laboratory_in(folder: Path, **options: Any) -> Laboratory:
    console = Console(record=True, file=io.StringIO(), width=300)
    return Laboratory("s5", "smoke", folder / "results", folder / "runs", console, **options)


def files_of(folder: Path) -> dict[str, tuple[bytes, int]]:
    """Content and time of change of every file."""
    found = [path for path in folder.rglob("*") if path.is_file()]
    return {str(path.relative_to(folder)): (path.read_bytes(), path.stat().st_mtime_ns) for path in found}


def results_of(folder: Path) -> dict[str, bytes]:
    return {path.parent.name: path.read_bytes() for path in folder.glob("runs/*/result.json")}


def processes_at(folder: Path) -> list[int]:
    """The processes whose command line names the folder; that of one that has ended is empty."""
    found: list[int] = []
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            if str(folder).encode() in path.read_bytes():
                found.append(int(path.parent.name))
        except OSError:  # ended meanwhile
            continue
    return found


def wait_until(true: Callable[[], object], process: subprocess.Popen[str] | None = None) -> None:
    end = time.monotonic() + 300
    while not true():
        assert time.monotonic() < end, "waited in vain"
        assert process is None or process.poll() is None, "ended too early"
        time.sleep(0.02)


def has_metrics(run: Path) -> bool:
    path = run / "metrics.jsonl"
    return path.exists() and path.stat().st_size > 0


@pytest.fixture
def one_thread(monkeypatch: pytest.MonkeyPatch) -> None:
    """In the workers as here, so that sums are rounded alike."""
    assert torch.get_num_threads() == 1
    monkeypatch.setenv("OMP_NUM_THREADS", "1")


# In this process.


def test_what_is_missing_is_trained_and_only_that(tmp_path: Path) -> None:
    first = laboratory_in(tmp_path).train({"one": TWO["one"]})
    assert first["one"].result["steps"] == 8 and sorted(first["one"].test) == [5, 12]
    before = files_of(tmp_path / "runs" / "one")
    lab = laboratory_in(tmp_path)
    both = lab.train(TWO)
    assert files_of(tmp_path / "runs" / "one") == before
    assert both["one"] == first["one"] and both["two"].recipe == TWO["two"]
    assert both["two"].result == json.loads((tmp_path / "runs" / "two" / "result.json").read_text())
    said = lab.console.export_text()
    assert "s5: 1 of 2 runs are there already" in said and "s5: run 1 of 1, two" in said
    lab.leave_records()
    for name, recipe in TWO.items():
        # What a result was made of lies beside it.
        plain = json.loads((tmp_path / "results" / "configurations" / f"{name}.json").read_text())
        assert plain == json.loads((tmp_path / "runs" / name / "config.json").read_text())
        assert load_recipe(tmp_path / "runs" / name) == recipe
    before = files_of(tmp_path / "runs")
    assert laboratory_in(tmp_path).train(TWO) == both
    assert files_of(tmp_path / "runs") == before


def test_what_is_finished_is_taken_and_what_is_not_is_noted(tmp_path: Path) -> None:
    first = laboratory_in(tmp_path).train({"one": TWO["one"]})
    before = files_of(tmp_path / "runs")
    for folder in ("configurations", "finished"):
        (tmp_path / "results" / folder / "older.json").write_text("{}")
    for options in ({"only_finished": True}, {"parts": ("other",)}):
        lab = laboratory_in(tmp_path, **options)
        assert not lab.trains("final") and lab.train(TWO, "final") == first
        assert (lab.taken, lab.missing) == (["one"], ["two"])
        assert lab.sweep({"three": lambda rate: TWO["two"]}, (0.1, 0.2), "final") == {}
        assert lab.missing == ["two", "sweep-three-0.1", "sweep-three-0.2"]
        assert files_of(tmp_path / "runs") == before
    # What a page is not made of goes, once it is whole.
    whole = laboratory_in(tmp_path, only_finished=True)
    for each, left in ((lab, {"one.json", "older.json"}), (whole, {"one.json"})):
        each.train({"one": TWO["one"]})
        each.leave_records()
        for folder in ("configurations", "finished"):
            assert {path.name for path in (tmp_path / "results" / folder).iterdir()} == left
    with pytest.raises(TrainingError, match="holds a run of another configuration"):
        laboratory_in(tmp_path, only_finished=True).train({"one": recipe_of(seed=5)})
    # The part that is asked for is trained.
    assert laboratory_in(tmp_path, parts=("final",)).train(TWO, "final").keys() == {"one", "two"}


def stop_at(monkeypatch: pytest.MonkeyPatch, method: str, when: Callable[[Run], bool]) -> None:
    """Send this process a signal, as someone from outside would."""
    whole = getattr(Run, method)

    def stopping(run: Run, *given: Any) -> Any:
        if when(run):
            os.kill(os.getpid(), signal.SIGTERM)
        return whole(run, *given)

    monkeypatch.setattr(Run, method, stopping)


def test_an_interrupted_run_goes_on_exactly_with_the_next_call(tmp_path: Path) -> None:
    laboratory_in(tmp_path / "whole").train(TWO)
    with pytest.MonkeyPatch.context() as monkeypatch:
        stop_at(monkeypatch, "_one_step", lambda run: run.recipe.seed == 1 and run.progress.step == 4)
        with pytest.raises(Interrupted, match="stopped at step 5 of 8"):
            laboratory_in(tmp_path / "parts").train(TWO)
    assert results_of(tmp_path / "parts").keys() == {"one"}
    assert checkpoints.steps(tmp_path / "parts" / "runs" / "two" / "checkpoints")[-1] == 5
    laboratory_in(tmp_path / "parts").train(TWO)
    assert results_of(tmp_path / "parts") == results_of(tmp_path / "whole")
    for name in TWO:
        one, other = (tmp_path / way / "runs" / name / "metrics.jsonl" for way in ("parts", "whole"))
        assert one.read_bytes() == other.read_bytes()


@pytest.mark.parametrize("where", ["the last step", "the last evaluation"])
def test_a_signal_that_a_run_came_to_its_end_with_is_not_forgotten(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, where: str
) -> None:
    stop_at(monkeypatch, "_one_step" if where == "the last step" else "_finish", lambda run: run.progress.step >= 7)
    with pytest.raises(Interrupted, match=r"stopped (at|in the test after) step 8 of 8; checkpoint saved in .*one"):
        laboratory_in(tmp_path).train(TWO)
    assert not (tmp_path / "runs" / "one" / "result.json").exists()
    assert not (tmp_path / "runs" / "two" / "metrics.jsonl").exists()


def test_a_sweep_is_every_model_at_every_rate(tmp_path: Path) -> None:
    wider = replace(recipe_of().model, width=32)
    models = {"narrow": recipe_of().model, "wide": wider}
    swept = laboratory_in(tmp_path).sweep(
        {name: laboratory.at_rate(recipe_of(steps=4), model) for name, model in models.items()}, (1e-3, 3e-4)
    )
    assert {(name, rate) for name, runs in swept.items() for rate in runs} == {
        (name, rate) for name in models for rate in (1e-3, 3e-4)
    }
    for name, runs in swept.items():
        for rate, run in runs.items():
            assert (run.recipe.model, run.recipe.optimizer.learning_rate) == (models[name], rate)
            assert run.folder == tmp_path / "runs" / f"sweep-{name}-{rate:g}"
    assert swept["narrow"][1e-3].result["parameters"] < swept["wide"][1e-3].result["parameters"]


@pytest.mark.parametrize(("rate", "code"), [(1e30, 3), (1e-3, None)])
def test_a_worker_says_by_its_exit_code_that_a_run_diverged(
    rate: float, code: int | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    write_config(tmp_path / "run", recipe_of(steps=4, optimizer=Optimizer(rate, warmup=0)))
    monkeypatch.setattr(sys, "argv", ["worker", str(tmp_path / "run"), "cpu"])
    if code is None:
        worker.main()
    else:
        with pytest.raises(SystemExit) as ended:
            worker.main()
        assert ended.value.code == code
        assert "start anew with a lower learning rate" in capsys.readouterr().err.splitlines()[-1]


def test_a_worker_that_fails_otherwise_has_another_exit_code(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "argv", ["worker", str(tmp_path / "nowhere"), "cpu"])
    with pytest.raises(SystemExit) as ended:
        worker.main()
    assert ended.value.code == 1
    assert "nowhere" in capsys.readouterr().err.splitlines()[-1]


@pytest.mark.slow
@pytest.mark.parametrize("workers", [1, 2])
@pytest.mark.usefixtures("one_thread")
def test_a_sweep_goes_on_without_the_rates_that_diverge(tmp_path: Path, workers: int) -> None:
    lab = laboratory_in(tmp_path, workers=workers)
    make = laboratory.at_rate(recipe_of(steps=4, optimizer=Optimizer(warmup=0)), recipe_of().model)
    assert lab.sweep({"model": make}, (1e30, 1e-3))["model"].keys() == {1e-3}
    assert "s5: sweep-model-1e+30 has diverged" in lab.console.export_text()
    with pytest.raises(TrainingError, match=r"^model diverges at every learning rate of the sweep \(1e\+30\)$"):
        lab.sweep({"model": make}, (1e30,))


def test_a_run_of_another_configuration_is_refused_with_the_way_out(tmp_path: Path) -> None:
    laboratory_in(tmp_path).train({"one": TWO["one"]})
    before = files_of(tmp_path)
    expected = (
        r"runs/one holds a run of another configuration \(steps was 8, is 9\); delete it, or choose another --runs"
    )
    for workers in (1, 2):
        with pytest.raises(TrainingError, match=expected):
            laboratory_in(tmp_path, workers=workers).train({"one": recipe_of(steps=9)})
    assert files_of(tmp_path) == before
    # One that this version cannot read is another one, too.
    path = tmp_path / "runs" / "one" / "config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {"velocity": 3}))
    with pytest.raises(
        TrainingError, match=r"another configuration \(config.json has no field 'velocity'.*; delete it"
    ):
        laboratory_in(tmp_path).train({"one": TWO["one"]})


def test_a_run_of_which_nothing_is_trained_yet_may_become_another_one(tmp_path: Path) -> None:
    missing = recipe_of(task=TextTask(str(tmp_path / "nowhere.txt")), model=replace(recipe_of().model, vocab_size=257))
    with pytest.raises(FileNotFoundError, match="is neither a file nor a folder"):
        laboratory_in(tmp_path).train({"one": missing})
    assert laboratory_in(tmp_path).train({"one": TWO["one"]})["one"].result["steps"] == 8


@pytest.mark.parametrize("content", ["{", "[]", "{}", '{"steps": 8}', "3"])
def test_a_damaged_result_is_refused_and_written_anew_when_deleted(tmp_path: Path, content: str) -> None:
    laboratory_in(tmp_path).train({"one": TWO["one"]})
    path = tmp_path / "runs" / "one" / "result.json"
    whole = path.read_bytes()
    path.write_text(content)
    with pytest.raises(TrainingError, match=r"one/result\.json is damaged: .*; delete it, and"):
        laboratory_in(tmp_path).train({"one": TWO["one"]})
    path.unlink()
    laboratory_in(tmp_path).train({"one": TWO["one"]})
    assert path.read_bytes() == whole


# In processes of their own.


@pytest.mark.slow
@pytest.mark.usefixtures("one_thread")
def test_processes_find_what_one_process_finds(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(laboratory, "EVERY", 0.0)
    here = laboratory_in(tmp_path / "here").train(TWO)
    lab = laboratory_in(tmp_path / "there", workers=2)
    there = lab.train(TWO)
    assert results_of(tmp_path / "there") == results_of(tmp_path / "here")
    for name in TWO:
        assert there[name].result == here[name].result
        assert "length 12: test loss" in (tmp_path / "there" / "runs" / name / "log.txt").read_text()
    said = lab.console.export_text()
    assert "length 12" not in said
    # Both at once, and what was said of them on the way.
    assert said.index("s5: two begins") < said.index("is done")
    assert "s5: one at step 0 of 8, two at step 0 of 8\n" in said
    assert "is done; 0 of 2 left" in said
    before = files_of(tmp_path / "there" / "runs")
    laboratory_in(tmp_path / "there", workers=2).train(TWO)
    assert files_of(tmp_path / "there" / "runs") == before


def test_a_text_that_is_not_there_is_said_before_anything_is_trained(tmp_path: Path) -> None:
    missing = recipe_of(task=TextTask(str(tmp_path / "nowhere.txt")), model=replace(recipe_of().model, vocab_size=257))
    with pytest.raises(FileNotFoundError, match=r"nowhere\.txt' is neither a file nor a folder"):
        laboratory_in(tmp_path).train({"one": TWO["one"], "missing": missing})
    assert not (tmp_path / "runs" / "one" / "metrics.jsonl").exists()


def start_after(monkeypatch: pytest.MonkeyPatch, late: str, early: str) -> None:
    """Let one run begin only when another has been going for a while."""
    start = Laboratory._start

    def patient(lab: Laboratory, name: str) -> Any:
        if name == late:
            wait_until(lambda: checkpoints.steps(lab.runs / early / "checkpoints"))
        return start(lab, name)

    monkeypatch.setattr(Laboratory, "_start", patient)


@pytest.mark.slow
@pytest.mark.usefixtures("one_thread")
@pytest.mark.parametrize(
    ("broken", "code", "expected"),
    [
        (recipe_of(optimizer=Optimizer(1e30, warmup=0)), 3, r"step 2: the loss is nan.*the weights have not moved"),
        (recipe_of(model=replace(recipe_of().model, vocab_size=2)), 1, "the task has 6 tokens, the model only 2"),
    ],
    ids=["nan", "too small"],
)
def test_a_worker_that_fails_is_named_with_its_log_and_the_others_save_themselves(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, broken: Recipe[Any, Any], code: int, expected: str
) -> None:
    start_after(monkeypatch, "broken", "endless")
    lab, runs = laboratory_in(tmp_path, workers=2), tmp_path / "runs"
    with pytest.raises(TrainingError) as raised:
        lab.train({"endless": ENDLESS, "broken": broken, "waiting": TWO["one"]})
    assert raised.match(
        f"^broken failed with exit code {code}, see {runs / 'broken' / 'log.txt'}: {expected}.*. The others have saved "
        "themselves, and go on with the same command$"
    )
    assert "Traceback" in (runs / "broken" / "log.txt").read_text() and "Traceback" not in str(raised.value)
    stopped_at = checkpoints.steps(runs / "endless" / "checkpoints")[-1]
    assert f"stopped at step {stopped_at} of 50000" in (runs / "endless" / "log.txt").read_text()
    assert not (runs / "waiting" / "log.txt").exists()
    said = lab.console.export_text()
    assert "s5: broken failed; 2 of 3 left" in said and "s5: endless has stopped; 1 of 3 left" in said
    assert not processes_at(tmp_path)


@pytest.mark.usefixtures("one_thread")
def test_a_worker_that_is_killed_is_a_failure_too(tmp_path: Path) -> None:
    lab, run = laboratory_in(tmp_path, workers=2), tmp_path / "runs" / "endless"

    def kill() -> None:
        wait_until(lambda: has_metrics(run))
        (worker,) = processes_at(run)
        os.kill(worker, signal.SIGKILL)

    killing = threading.Thread(target=kill)
    killing.start()
    with pytest.raises(TrainingError, match=r"^endless failed by signal 9, see .*endless/log.txt"):
        lab.train({"endless": ENDLESS})
    killing.join()


@pytest.mark.slow
@pytest.mark.usefixtures("one_thread")
def test_a_second_ctrl_c_does_not_wait_and_leaves_nothing_behind(tmp_path: Path) -> None:
    def insist() -> None:
        wait_until(lambda: has_metrics(tmp_path / "runs" / "endless"))
        for _ in range(2):
            os.kill(os.getpid(), signal.SIGINT)
            time.sleep(0.05)

    insisting = threading.Thread(target=insist)
    insisting.start()
    before = signal.getsignal(signal.SIGINT)
    with pytest.raises(KeyboardInterrupt):
        laboratory_in(tmp_path, workers=2).train({"endless": ENDLESS, "other": replace(ENDLESS, seed=1)})
    insisting.join()
    assert signal.getsignal(signal.SIGINT) is before
    assert not processes_at(tmp_path)


SHORT_EXPERIMENT = """
import sys
from dataclasses import replace
from scannable.cli.main import main
from scannable.experiments import recall

use = recall.setting("smoke")
rarely = replace(use.recipe.evaluation, every=200, samples=4)
recipe = replace(use.recipe, steps=400, batch_tokens=64, evaluation=rarely, checkpoint_every=200)
families = {name: replace(use.families[name], rates=(1e-3,)) for name in ("attention", "deltanet")}
recall.setting = lambda profile: replace(use, recipe=recipe, families=families, sweep_steps=recipe.steps)
sys.argv[0] = "scannable"
main()
"""
"""The command line, with fewer models to wait for."""


@pytest.mark.slow
def test_ctrl_c_lets_every_worker_save_itself_and_the_same_command_goes_on(tmp_path: Path) -> None:
    (tmp_path / "short.py").write_text(SHORT_EXPERIMENT)
    where = ["--out", str(tmp_path / "results"), "--runs", str(tmp_path / "runs")]
    command = [sys.executable, "short.py", "reproduce", "mqar", "--profile", "smoke", "--workers", "2", *where]
    options: dict[str, Any] = {"cwd": tmp_path, "env": os.environ | {"OMP_NUM_THREADS": "1"}, "text": True}
    runs = [tmp_path / "runs" / "mqar" / "smoke" / f"sweep-{name}-0.001" for name in ("attention-16", "deltanet-16")]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, **options)
    wait_until(lambda: all(has_metrics(run) for run in runs), process)
    process.send_signal(signal.SIGINT)
    said, _ = process.communicate(timeout=300)
    assert process.returncode == 130, said
    assert said.endswith("interrupted; every run has saved itself; the same command goes on\n")
    assert not processes_at(tmp_path)
    for run in runs:
        stopped_at = checkpoints.steps(run / "checkpoints")[-1]
        assert 0 < stopped_at < 400 and not (run / "result.json").exists()
        assert f"stopped at step {stopped_at} of 400" in (run / "log.txt").read_text()
    done = subprocess.run(command, capture_output=True, check=False, timeout=600, **options)
    assert done.returncode == 0, done.stdout + done.stderr
    assert {json.loads((run / "result.json").read_text())["steps"] for run in runs} == {400}
    assert (tmp_path / "results" / "mqar" / "smoke" / "README.md").is_file()
