"""A run can be extended, changed on purpose, and found out when its folder does not say what it is."""

import copy
import io
import json
import os
import shutil
import signal
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from rich.console import Console

from scannable.models.lm_config import LMConfig
from scannable.tasks import GroupTask
from scannable.training import checkpoint as checkpoints
from scannable.training.logging import read_metrics
from scannable.training.loop import Interrupted, Run
from scannable.training.recipe import Curriculum, Evaluation, Optimizer, Recipe
from scannable.training.run_folder import TrainingError, load_recipe, load_result, load_trained


def recipe_of(**changes: Any) -> Recipe[Any, Any]:
    values: dict[str, Any] = {
        "model": LMConfig(6, ("gla",), width=8, heads=2),
        "task": GroupTask("S3"),
        "steps": 6,
        "batch_samples": 4,
        "optimizer": Optimizer(1e-2, schedule="constant", warmup=0),
        "curriculum": Curriculum((4,)),
        "evaluation": Evaluation(every=3, samples=8, lengths=(6,)),
        "checkpoint_every": 2,
        "log_every": 1,
    }
    return Recipe(**(values | changes))


def train(recipe: Recipe[Any, Any], folder: Path, **options: Any) -> tuple[dict[str, Any], str]:
    console = Console(record=True, file=io.StringIO(), width=300)
    result = Run(recipe, folder, console=console).train(**options)
    return result, console.export_text()


def weights(folder: Path, step: int) -> dict[str, torch.Tensor]:
    return dict(checkpoints.read(checkpoints.path_of(folder / "checkpoints", step)).model)


def test_a_finished_run_says_so_and_more_steps_extend_it(tmp_path: Path) -> None:
    whole, _ = train(recipe_of(steps=10), tmp_path / "whole")
    first, _ = train(recipe_of(), tmp_path / "run")
    again, said = train(recipe_of(), tmp_path / "run", resume=True)
    assert again == first and "has finished at step 6; a greater --steps goes on from there" in said
    extended, said = train(recipe_of(steps=10), tmp_path / "run", resume=True)
    assert "steps was 6, is 10" in said and extended["steps"] == 10
    # The rate is constant, so that it is the run of ten steps but for one evaluation at its old end.
    for name, weight in weights(tmp_path / "whole", 10).items():
        assert torch.equal(weight, weights(tmp_path / "run", 10)[name])
    assert extended["test"] == whole["test"] == (load_result(tmp_path / "run") or {})["test"]
    assert load_recipe(tmp_path / "run").steps == 10 and load_trained(tmp_path / "run").step == 10


def test_fewer_steps_than_were_made_are_refused(tmp_path: Path) -> None:
    train(recipe_of(), tmp_path)
    with pytest.raises(TrainingError, match="steps=5 are fewer than the 6 that this run has made"):
        train(recipe_of(steps=5), tmp_path, resume=True, force=True)


def test_a_run_that_stopped_early_goes_on_only_under_another_rule(tmp_path: Path) -> None:
    early = recipe_of(evaluation=Evaluation(every=2, samples=8, stop_below=1.1))
    assert train(early, tmp_path)[0]["steps"] == 2
    assert train(early, tmp_path, resume=True)[0]["steps"] == 2
    assert train(replace(early, steps=9), tmp_path, resume=True, force=True)[0]["steps"] == 2
    other = replace(early, evaluation=Evaluation(every=2, samples=8))
    assert train(replace(other, steps=9), tmp_path, resume=True, force=True)[0]["steps"] == 9


def test_a_forced_configuration_is_the_one_that_is_loaded_afterwards(tmp_path: Path) -> None:
    train(recipe_of(), tmp_path)
    changed = recipe_of(steps=9, ema=0.0, seed=7, keep=5)
    with pytest.raises(TrainingError, match=r"another configuration \(keep was 2, is 5; seed was 0, is 7; steps was 6"):
        train(changed, tmp_path, resume=True)
    assert load_recipe(tmp_path) == recipe_of()
    train(changed, tmp_path, resume=True, force=True)
    assert load_recipe(tmp_path) == changed == load_trained(tmp_path).recipe


def test_a_forced_configuration_survives_a_kill_right_after(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    train(recipe_of(), tmp_path)
    changed = recipe_of(steps=9, seed=7)
    run = Run(changed, tmp_path, console=Console(quiet=True))

    def killed(length: int) -> Any:
        raise KeyboardInterrupt

    monkeypatch.setattr(run, "_one_step", killed)
    with pytest.raises(KeyboardInterrupt):
        run.train(resume=True, force=True)
    assert load_recipe(tmp_path) == changed == load_trained(tmp_path).recipe
    assert load_result(tmp_path) is None  # the one of the old run is not this one's
    assert train(changed, tmp_path, resume=True)[0]["steps"] == 9


def test_a_configuration_that_was_edited_is_noticed(tmp_path: Path) -> None:
    train(recipe_of(), tmp_path)
    path = tmp_path / "config.json"
    plain = json.loads(path.read_text())
    plain["model"]["layers"] = ["retnet"]
    path.write_text(json.dumps(plain))
    with pytest.raises(
        TrainingError, match=r"config\.json does not agree with the checkpoint of step 6 \(model\.layers was"
    ):
        load_trained(tmp_path)
    _, said = train(recipe_of(), tmp_path, resume=True)
    assert "did not agree with the checkpoint and is written anew" in said
    assert load_trained(tmp_path).recipe == recipe_of()


def test_a_lost_configuration_is_written_anew(tmp_path: Path) -> None:
    train(recipe_of(), tmp_path)
    (tmp_path / "config.json").unlink()
    with pytest.raises(TrainingError, match=r"holds no run: config\.json is missing"):
        load_trained(tmp_path)
    train(recipe_of(), tmp_path, resume=True)
    assert load_recipe(tmp_path) == recipe_of()


def test_another_model_cannot_be_forced_into_the_weights(tmp_path: Path) -> None:
    train(recipe_of(), tmp_path)
    wider = recipe_of(model=LMConfig(6, ("gla",), width=16, heads=2), steps=9)
    with pytest.raises(TrainingError, match=r"the checkpoint of step 6 does not fit this recipe: .*size mismatch"):
        train(wider, tmp_path, resume=True, force=True)
    assert load_trained(tmp_path).recipe == recipe_of()


def test_lost_metrics_do_not_make_checkpoints_useless(tmp_path: Path) -> None:
    train(recipe_of(), tmp_path / "whole")
    shutil.copytree(tmp_path / "whole", tmp_path / "run")
    shutil.rmtree(checkpoints.path_of(tmp_path / "run" / "checkpoints", 6))
    (tmp_path / "run" / "metrics.jsonl").unlink()
    _, said = train(recipe_of(), tmp_path / "run", resume=True)
    assert "metrics.jsonl lacks" in said and "the run goes on without them" in said
    for name, weight in weights(tmp_path / "whole", 6).items():
        assert torch.equal(weight, weights(tmp_path / "run", 6)[name])
    assert [r["step"] for r in read_metrics(tmp_path / "run" / "metrics.jsonl") if r["kind"] == "train"] == [5, 6]


@pytest.mark.parametrize(
    ("spoil", "message"),
    [
        (lambda run: shutil.rmtree(run) or run.write_text("x"), "is a file"),
        (
            lambda run: (run / "config.json").unlink() or (run / "config.json").mkdir(),
            r"config\.json is a folder where",
        ),
        (lambda run: (run / "config.json").write_text("{"), r"config\.json is damaged"),
        (lambda run: (run / "config.json").write_bytes(b"\xff\xfe"), r"config\.json is damaged"),
    ],
)
def test_what_is_damaged_in_the_folder_is_named(tmp_path: Path, spoil: Any, message: str) -> None:
    run = tmp_path / "run"
    train(recipe_of(), run)
    spoil(run)
    with pytest.raises(TrainingError, match=message):
        load_trained(run)


@pytest.mark.parametrize(
    ("spoil", "message"),
    [
        (
            lambda run: (run / "metrics.jsonl").unlink() or (run / "metrics.jsonl").mkdir(),
            r"metrics\.jsonl is a folder",
        ),
        (lambda run: (run / "result.json").unlink() or (run / "result.json").mkdir(), r"result\.json is a folder"),
        (lambda run: (run / "result.json").write_text("[1]"), r"result\.json is damaged: it holds no record"),
    ],
)
def test_what_cannot_be_gone_on_with_is_named(tmp_path: Path, spoil: Any, message: str) -> None:
    run = tmp_path / "run"
    train(recipe_of(), run)
    spoil(run)
    with pytest.raises((TrainingError, OSError), match=message):
        train(recipe_of(), run, resume=True)


def interrupted_in(run: Run, split: str, number: int) -> None:
    """Send a signal when the first evaluation of this split begins."""
    score = run.score

    def signalled(length: int, of: Any = "validation", display: Any = None) -> Any:
        if of == split and not run.asked_to_stop:
            os.kill(os.getpid(), number)
        return score(length, of, display)

    run.score = signalled  # pyright: ignore[reportAttributeAccessIssue]


@pytest.mark.parametrize(
    ("split", "message"), [("validation", "stopped at step 3 of 6"), ("test", "in the test after")]
)
@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_an_evaluation_obeys_a_signal_and_is_made_when_the_run_goes_on(
    tmp_path: Path, split: str, message: str, number: int, code: int
) -> None:
    train(recipe_of(), tmp_path / "whole")
    run = Run(recipe_of(), tmp_path / "run", console=Console(quiet=True))
    interrupted_in(run, split, number)
    with pytest.raises(Interrupted, match=message) as stopped:
        run.train()
    assert stopped.value.exit_code == code
    assert load_result(tmp_path / "run") is None
    train(recipe_of(), tmp_path / "run", resume=True)
    for name in ("metrics.jsonl", "result.json"):
        assert (tmp_path / "run" / name).read_bytes() == (tmp_path / "whole" / name).read_bytes()
    for name, weight in weights(tmp_path / "whole", 6).items():
        assert torch.equal(weight, weights(tmp_path / "run", 6)[name])


def test_the_test_shows_how_far_it_is(tmp_path: Path) -> None:
    run = Run(
        recipe_of(evaluation=Evaluation(every=3, samples=100, lengths=(64,))), tmp_path, console=Console(quiet=True)
    )
    seen: list[str] = []

    class Watching:
        def step(self, step: int, text: str) -> None:
            seen.append(text)

        def say(self, text: str) -> None:
            seen.append(text)

    run.train()
    (tmp_path / "result.json").unlink()
    run._finish(Watching())  # pyright: ignore[reportArgumentType]
    assert "testing the weights of step 6 (last)" in seen
    assert "test at length 64: 64 of 100 samples" in seen


def test_the_optimizer_is_restored_through_its_own_door(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It knows on which device each of its tensors has to be."""
    train(recipe_of(), tmp_path)
    loaded: list[dict[str, Any]] = []
    original = torch.optim.AdamW.load_state_dict

    def watched(self: Any, state: dict[str, Any]) -> None:
        loaded.append(copy.deepcopy(state))
        original(self, state)

    monkeypatch.setattr(torch.optim.AdamW, "load_state_dict", watched)
    run = Run(recipe_of(steps=7), tmp_path, console=Console(quiet=True))
    run.train(resume=True)
    (state,) = loaded
    assert len(state["state"]) == len(list(run.model.parameters()))
    assert {float(moments["step"]) for moments in state["state"].values()} == {6.0}
    assert {float(moments["step"]) for moments in run.optimizer.state.values()} == {7.0}
