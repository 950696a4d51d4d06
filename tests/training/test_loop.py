"""A run is a function of its recipe: interrupted, cut or spread over processes, it is the same run."""

import io
import json
import os
import re
import signal
import subprocess
import sys
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

import pytest
import torch
from rich.console import Console

import scannable as sc
from scannable.tasks import GroupTask
from scannable.training import checkpoint as checkpoints
from scannable.training.callbacks import Callback
from scannable.training.evaluation import evaluate
from scannable.training.logging import read_metrics
from scannable.training.loop import DivergedError, Interrupted, Run
from scannable.training.recipe import Curriculum, Evaluation, Optimizer, Recipe
from scannable.training.run_folder import TrainingError, load_recipe, load_trained

QUIET = Console(quiet=True)


@sc.configurable
@dataclass(frozen=True)
class AggLikeInf(Callback):
    """At the second length Agg starts where Inf has arrived."""

    @torch.no_grad()
    def begin_stage(self, model: Any, index: int) -> list[str]:
        if index != 1:
            return []
        model.agg.transformer.load_state_dict(model.inf.transformer.state_dict())
        return [f"layer.agg.transformer.{name}" for name, _ in model.agg.transformer.named_parameters()]


def recipe_of(**changes: Any) -> Recipe[Any, Any]:
    config = sc.TransformerPSMConfig(
        6, 16, chunk_length=2, agg_layers=1, inf_layers=1, heads=2, dropout=0.1, state_noise=0.1
    )
    values: dict[str, Any] = {
        "model": config,
        "task": GroupTask("S3"),
        "steps": 12,
        "batch_tokens": 64,
        "optimizer": Optimizer(warmup=3, weight_decay=0.1),
        "curriculum": Curriculum((3, 5, 8), steps=4, revisit=0.3),
        "evaluation": Evaluation(every=4, samples=16, lengths=(12,)),
        "ema": 0.9,
        "checkpoint_every": 5,
        "log_every": 1,
        "callbacks": (AggLikeInf(),),
    }
    return Recipe(**(values | changes))


def end_of(folder: Path) -> tuple[Any, Any, str, str]:
    """All that a run leaves behind that its recipe decides."""
    last = checkpoints.read(checkpoints.path_of(folder / "checkpoints", checkpoints.steps(folder / "checkpoints")[-1]))
    tensors = {**last.model, **last.optimizer, **{f"average {k}": v for k, v in last.average.items()}}
    state = {key: value for key, value in last.state.items() if key != "versions"}
    return tensors, state, (folder / "metrics.jsonl").read_text(), (folder / "result.json").read_text()


def assert_same(one: Path, other: Path) -> None:
    (tensors, *rest), (other_tensors, *other_rest) = end_of(one), end_of(other)
    assert rest == other_rest
    assert tensors.keys() == other_tensors.keys()
    for name, tensor in tensors.items():
        assert torch.equal(tensor, other_tensors[name]), name


def train(recipe: Recipe[Any, Any], folder: Path, **options: Any) -> dict[str, Any]:
    return Run(recipe, folder, console=QUIET).train(**options)


def test_equal_recipes_make_equal_runs(tmp_path: Path) -> None:
    for name in ("one", "two"):
        torch.rand(3)  # whatever else used torch's generator
        train(recipe_of(), tmp_path / name)
    assert_same(tmp_path / "one", tmp_path / "two")


@pytest.mark.parametrize("algorithm", ["adamw", "muon"])
@pytest.mark.parametrize("stops", [[1], [4], [5], [3, 4, 7, 11]])
def test_a_run_that_was_stopped_and_resumed_is_the_run_that_was_not(
    tmp_path: Path, stops: list[int], algorithm: Literal["adamw", "muon"]
) -> None:
    recipe = recipe_of(optimizer=Optimizer(warmup=3, weight_decay=0.1, algorithm=algorithm))
    train(recipe, tmp_path / "whole")
    for stop in stops:
        run = Run(recipe, tmp_path / "parts", console=QUIET)
        one_step = run._one_step

        def stopping(length: int, run: Run = run, one_step: Any = one_step, stop: int = stop) -> Any:
            if run.progress.step + 1 == stop:
                os.kill(os.getpid(), signal.SIGTERM)
            return one_step(length)

        run._one_step = stopping  # pyright: ignore[reportAttributeAccessIssue]
        with pytest.raises(Interrupted, match=f"stopped at step {stop} of 12"):
            run.train(resume=True)
    train(recipe, tmp_path / "parts", resume=True)
    assert_same(tmp_path / "whole", tmp_path / "parts")


def test_a_run_that_lost_its_newest_checkpoint_goes_on_from_the_one_before(tmp_path: Path) -> None:
    train(recipe_of(), tmp_path / "whole")
    train(recipe_of(), tmp_path / "damaged")
    newest = checkpoints.path_of(tmp_path / "damaged" / "checkpoints", 12)
    content = (newest / "model.safetensors").read_bytes()
    (newest / "model.safetensors").write_bytes(content[:-1])
    console = Console(record=True, file=io.StringIO(), width=200)
    Run(recipe_of(), tmp_path / "damaged", console=console).train(resume=True)
    assert "model.safetensors is not what was written" in console.export_text()
    assert_same(tmp_path / "whole", tmp_path / "damaged")


def test_a_finished_run_that_is_resumed_only_says_its_result(tmp_path: Path) -> None:
    first = train(recipe_of(), tmp_path)
    before = (tmp_path / "metrics.jsonl").read_bytes()
    assert train(recipe_of(), tmp_path, resume=True) == first
    assert (tmp_path / "metrics.jsonl").read_bytes() == before


def test_a_folder_may_be_named_by_a_string(tmp_path: Path) -> None:
    result = Run(recipe_of(), str(tmp_path / "run"), console=QUIET).train()
    assert load_trained(str(tmp_path / "run")).step == result["steps"] == 12


def test_an_early_stop_is_remembered(tmp_path: Path) -> None:
    recipe = recipe_of(evaluation=Evaluation(every=2, samples=16, stop_below=1.1), curriculum=Curriculum((4,)))
    assert train(recipe, tmp_path)["steps"] == 2
    (tmp_path / "result.json").unlink()
    assert train(recipe, tmp_path, resume=True)["steps"] == 2


def test_patience_ends_a_run_that_does_not_get_better(tmp_path: Path) -> None:
    still = Optimizer(learning_rate=1e-12, warmup=0)
    evaluation = Evaluation(every=1, samples=16, patience=3)
    recipe = recipe_of(steps=50, optimizer=still, evaluation=evaluation, curriculum=Curriculum((4,)), ema=0.0)
    assert train(recipe, tmp_path)["steps"] < 30


def test_the_samples_of_a_step_may_be_cut_for_memory(tmp_path: Path) -> None:
    losses = []
    for parts in (1, 3):
        train(recipe_of(accumulate=parts), tmp_path / str(parts))
        losses.append(
            [r["loss"] for r in read_metrics(tmp_path / str(parts) / "metrics.jsonl") if r["kind"] == "train"]
        )
    torch.testing.assert_close(*losses, rtol=1e-4, atol=1e-5)


@pytest.mark.slow
def test_several_processes_take_the_same_samples_and_have_the_same_loss(tmp_path: Path) -> None:
    """Dropout and noise included: they belong to the sample, not to the process that has it."""
    recipe = recipe_of(steps=6, checkpoint_every=3, batch_tokens=60)
    assert recipe.model.dropout and recipe.model.state_noise
    train(recipe, tmp_path / "1")
    # The same recipe in processes that torchrun starts.
    script = tmp_path / "processes.py"
    script.write_text(
        "import sys, torch; from pathlib import Path; sys.path.insert(0, sys.argv[1]); torch.set_num_threads(1)\n"
        "import test_loop as t\n"
        "t.train(t.recipe_of(steps=6, checkpoint_every=3, batch_tokens=60), Path(sys.argv[2]))\n"
        "from scannable.training.processes import leave_processes; leave_processes()\n"
    )
    truth = [r for r in read_metrics(tmp_path / "1" / "metrics.jsonl") if r["kind"] == "train"]
    for count in (2, 4):
        command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(count)]
        where = [str(script), str(Path(__file__).parent), str(tmp_path / str(count))]
        done = subprocess.run(
            [*command, *where], capture_output=True, text=True, env=os.environ | {"OMP_NUM_THREADS": "1"}, check=False
        )
        assert done.returncode == 0, done.stderr[-2000:]
        assert "Warning" not in done.stderr, done.stderr
        found = [r for r in read_metrics(tmp_path / str(count) / "metrics.jsonl") if r["kind"] == "train"]
        assert [r["length"] for r in found] == [r["length"] for r in truth]
        for name in ("loss", "gradient_norm"):
            torch.testing.assert_close([r[name] for r in found], [r[name] for r in truth], rtol=1e-5, atol=1e-6)


def test_what_is_not_finite_stops_before_the_weights_move_and_names_a_checkpoint_that_is_good(tmp_path: Path) -> None:
    """The weights break in step 7, are saved as step 10, and are noticed in step 12."""
    run = Run(recipe_of(evaluation=Evaluation(every=100, samples=4)), tmp_path, console=QUIET)
    one_step = run._one_step

    def poisoned(length: int) -> Any:
        found = one_step(length)
        if run.progress.step == 6:
            # Positions that the lengths so far do not reach, but the ones to come do.
            with torch.no_grad():
                run.model.get_parameter("head.bias")[3] = float("inf")
        return found

    run._one_step = poisoned  # pyright: ignore[reportAttributeAccessIssue]
    with pytest.raises(
        DivergedError, match=r"step 8: the loss is nan.*the weights have not moved.*step 5 gives finite"
    ):
        run.train()
    assert checkpoints.steps(tmp_path / "checkpoints") == [5]
    gentle = recipe_of(evaluation=Evaluation(every=100, samples=4), optimizer=Optimizer(1e-4, warmup=3))
    assert train(gentle, tmp_path, resume=True, force=True)["steps"] == 12


def test_a_checkpoint_that_comes_to_no_finite_loss_is_not_called_good(tmp_path: Path) -> None:
    """A rate so high that the weights of the first step are too large already."""
    wild = Optimizer(1e30, warmup=0, clip=0.0)
    run = Run(recipe_of(optimizer=wild, checkpoint_every=1), tmp_path, console=QUIET)
    with pytest.raises(DivergedError, match="no checkpoint gives a finite loss: start anew with a lower learning rate"):
        run.train()
    assert checkpoints.steps(tmp_path / "checkpoints")


def test_the_one_gradient_that_is_not_finite_is_named(tmp_path: Path) -> None:
    run = Run(recipe_of(), tmp_path, console=QUIET)
    (name, parameter), *_ = [(n, p) for n, p in run.model.named_parameters() if n.endswith("bias")]
    parameter.register_hook(lambda gradient: gradient * float("nan"))
    with pytest.raises(TrainingError, match=rf"gradient's norm nan \(not finite in {re.escape(name)}\)"):
        run.train()


def test_a_length_is_looked_at_once_more_before_its_time_is_up(tmp_path: Path) -> None:
    train(recipe_of(), tmp_path)
    looks = [(r["step"], r["length"]) for r in read_metrics(tmp_path / "metrics.jsonl") if r["kind"] == "evaluation"]
    assert looks == [(4, 3), (8, 5), (12, 8)]


@pytest.mark.parametrize("ends", [{"steps": 4}, {"below": (1.1,)}])
def test_nothing_starts_anew_at_the_end(tmp_path: Path, ends: dict[str, Any]) -> None:
    run = Run(recipe_of(steps=4, curriculum=Curriculum((3, 5), **ends)), tmp_path, console=QUIET)
    run.train()
    assert "stage" not in {r["kind"] for r in read_metrics(tmp_path / "metrics.jsonl")}
    agg, inf = (
        dict(part.named_parameters()) for part in (run.model.get_submodule("agg"), run.model.get_submodule("inf"))
    )
    shared = [name for name in agg.keys() & inf.keys() if name.endswith("weight")]
    assert shared and any(not torch.equal(agg[name], inf[name]) for name in shared)


def test_the_end_is_looked_at_wherever_it_is(tmp_path: Path) -> None:
    assert train(recipe_of(evaluation=Evaluation(every=9, samples=16)), tmp_path)["best"]["step"] in (9, 12)
    looks = [r["step"] for r in read_metrics(tmp_path / "metrics.jsonl") if r["kind"] == "evaluation"]
    assert looks == [9, 12]


@pytest.mark.parametrize("seed", [20260101120000, 2**63 - 1])
def test_every_seed_that_a_recipe_admits_can_be_trained_with(tmp_path: Path, seed: int) -> None:
    assert train(recipe_of(seed=seed), tmp_path)["steps"] == 12


def test_a_model_is_loaded_from_the_newest_checkpoint_that_is_whole(tmp_path: Path) -> None:
    train(recipe_of(keep=3), tmp_path)
    place = tmp_path / "checkpoints"
    newest, *others = reversed(checkpoints.steps(place))
    (checkpoints.path_of(place, newest) / "model.safetensors").write_bytes(b"")
    with pytest.warns(UserWarning, match=rf"skipped: .*step-0*{newest}"):
        model = load_trained(tmp_path).model
    kept = checkpoints.read(checkpoints.path_of(place, others[0]))
    assert torch.equal(model.enc.weight, kept.average["enc.weight"])


def test_bfloat16_trains_with_float32_weights(tmp_path: Path) -> None:
    run = Run(recipe_of(precision="bfloat16"), tmp_path, console=QUIET)
    run.train()
    assert {p.dtype for p in run.model.parameters()} == {torch.float32}


def test_train_and_load_agree_on_the_weights_that_are_tested(tmp_path: Path) -> None:
    """With such a rate the last evaluation is not the best."""
    wild = {"optimizer": Optimizer(0.05, warmup=0, schedule="constant"), "curriculum": Curriculum((4,)), "ema": 0.0}
    for weights in ("last", "best"):
        evaluation = Evaluation(every=4, samples=16, lengths=(12,), weights=weights)  # pyright: ignore[reportArgumentType]
        recipe = recipe_of(keep=1, evaluation=evaluation, **wild)
        folder = tmp_path / weights
        result = train(recipe, folder)
        losses = {r["step"]: r["loss"] for r in read_metrics(folder / "metrics.jsonl") if r["kind"] == "evaluation"}
        best = min(losses, key=lambda step: losses[step])
        assert result["best"]["step"] == best != 12
        assert set(checkpoints.steps(folder / "checkpoints")) == {best, 12}
        found = load_trained(folder)
        expected = {"last": 12, "best": best}[weights]
        assert result["tested"] == {"weights": weights, "step": expected} and found.step == expected
        assert str(found) == f"weights of step {expected} ({weights})"
        score = evaluate(found.model, recipe.task, "test", 12, 16, batch_tokens=64)
        assert score.loss == result["test"][1]["loss"]
        assert found.recipe == recipe == load_recipe(folder)
        assert load_trained(folder, weights="best").step == best and load_trained(folder, weights="last").step == 12
    assert not found.model.training


def test_a_folder_with_a_run_is_not_overwritten_and_another_recipe_is_not_resumed(tmp_path: Path) -> None:
    train(recipe_of(), tmp_path)
    with pytest.raises(TrainingError, match="holds a run already; go on with --resume"):
        train(recipe_of(), tmp_path)
    with pytest.raises(TrainingError, match=r"another configuration \(seed was 0, is 3\)"):
        train(recipe_of(seed=3), tmp_path, resume=True)
    with pytest.raises(TrainingError, match="holds no run"):
        load_recipe(tmp_path / "nowhere")
    (tmp_path / "config.json").write_text("{")
    with pytest.raises(TrainingError, match=r"config\.json is damaged"):
        load_recipe(tmp_path)


def test_a_run_from_before_an_option_existed_goes_on_with_its_default(tmp_path: Path) -> None:
    train(recipe_of(), tmp_path)
    old = checkpoints.read(checkpoints.path_of(tmp_path / "checkpoints", 12))
    recipe = dict(old.state["recipe"])
    del recipe["keep"]
    checkpoints.write(tmp_path / "checkpoints", replace(old, state={**old.state, "recipe": recipe}))
    assert train(recipe_of(), tmp_path, resume=True)["steps"] == 12
    with pytest.raises(TrainingError, match=r"another configuration \(keep was \d+, is 7\)"):
        train(recipe_of(keep=7), tmp_path, resume=True)


def test_metrics_hold_what_the_recipe_decides_and_times_are_elsewhere(tmp_path: Path) -> None:
    train(recipe_of(), tmp_path)
    records = read_metrics(tmp_path / "metrics.jsonl")
    assert {r["kind"] for r in records} == {"train", "evaluation", "stage"}
    assert not any("second" in name for record in records for name in record)
    assert {"seconds", "tokens_per_second", "step"} == set(read_metrics(tmp_path / "timing.jsonl")[0])
    result = json.loads((tmp_path / "result.json").read_text())
    assert [score["length"] for score in result["test"]] == [8, 12]
    assert len(result["test"][1]["error_by_position"]) == 12


def test_a_model_too_small_for_its_task_is_refused_before_it_is_built(tmp_path: Path) -> None:
    small = recipe_of(task=GroupTask("S5"))
    with pytest.raises(TrainingError, match=r"the task has 120 tokens, the model only 6; set --model.vocab-size 120"):
        Run(small, tmp_path, console=QUIET)
    narrow = recipe_of(model=replace(recipe_of().model, out_size=3))
    with pytest.raises(TrainingError, match=r"the task has 6 answers, the model only 3; set --model.out-size 6"):
        Run(narrow, tmp_path, console=QUIET)


def test_two_processes_do_not_train_in_one_folder(tmp_path: Path) -> None:
    run = Run(recipe_of(), tmp_path, console=QUIET)
    one_step = run._one_step

    def meanwhile(length: int) -> Any:
        with pytest.raises(TrainingError, match="another process is training in"):
            train(recipe_of(), tmp_path, resume=True)
        return one_step(length)

    run._one_step = meanwhile  # pyright: ignore[reportAttributeAccessIssue]
    assert run.train()["steps"] == 12
    assert train(recipe_of(), tmp_path, resume=True)["steps"] == 12  # the lock is gone


def test_a_new_length_starts_anew_what_the_model_says(tmp_path: Path) -> None:
    seen: list[tuple[bool, bool, bool]] = []
    run = Run(recipe_of(), tmp_path, console=QUIET)
    enter, average = run._enter, run.average
    assert average is not None

    def looking(stage: Any) -> None:
        before = run.progress.stage.index
        enter(stage)
        if stage.index == 1 != before:
            agg, inf = (dict(part.transformer.named_parameters()) for part in (run.model.agg, run.model.inf))  # type: ignore[union-attr]
            seen.append(
                (
                    all(torch.equal(agg[name], inf[name]) for name in agg),
                    all(torch.equal(agg[name], average.weights[f"layer.agg.transformer.{name}"]) for name in agg),
                    all(p not in run.optimizer.state for p in agg.values())
                    and all(p in run.optimizer.state for p in inf.values()),
                )
            )

    run._enter = looking  # pyright: ignore[reportAttributeAccessIssue]
    run.train()
    assert seen == [(True, True, True)]


def test_a_fresh_optimizer_forgets_everything_at_a_new_length(tmp_path: Path) -> None:
    def count(fresh: bool) -> float:
        curriculum = Curriculum((3, 5, 8), steps=4, fresh_optimizer=fresh)
        train(recipe_of(curriculum=curriculum), tmp_path / str(fresh))
        tensors = end_of(tmp_path / str(fresh))[0]
        return float(tensors["layer.inf.transformer.norm.weight/step"])

    assert (count(False), count(True)) == (12, 4)


def test_checkpoints_on_the_way_are_kept_if_asked_for(tmp_path: Path) -> None:
    recipe = recipe_of(checkpoint_every=2, keep=1, keep_every=4, evaluation=Evaluation(every=100, samples=4))
    train(recipe, tmp_path)
    assert checkpoints.steps(tmp_path / "checkpoints") == [4, 8, 12]


def test_a_batch_may_be_counted_in_samples(tmp_path: Path) -> None:
    result = train(recipe_of(batch_samples=3, curriculum=Curriculum((3, 5), steps=4)), tmp_path)
    assert (result["samples"], result["tokens"]) == (36, 3 * (4 * 3 + 8 * 5))
