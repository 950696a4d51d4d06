"""A run on a GPU trains, resumes, is evaluated and loaded as on a CPU, and all that it holds is on the GPU."""

import os
import signal
from pathlib import Path
from typing import Any

import pytest
import torch
from rich.console import Console
from torch import Tensor

import scannable as sc
from scannable.tasks import GroupTask
from scannable.training.evaluation import evaluate
from scannable.training.loop import Interrupted, Run
from scannable.training.recipe import Curriculum, Evaluation, Optimizer, Recipe
from scannable.training.run_folder import load_trained

QUIET = Console(quiet=True)


def recipe_of(**changes: Any) -> Recipe[Any, Any]:
    values: dict[str, Any] = {
        "model": sc.TransformerPSMConfig(6, 16, chunk_length=2, agg_layers=1, inf_layers=1, heads=2),
        "task": GroupTask("S3"),
        "steps": 12,
        "batch_tokens": 64,
        "optimizer": Optimizer(warmup=3, weight_decay=0.1),
        "curriculum": Curriculum((3, 5, 8), steps=4),
        "evaluation": Evaluation(every=4, samples=16, lengths=(12,)),
        "ema": 0.9,
        "checkpoint_every": 4,
        "log_every": 1,
    }
    return Recipe(**(values | changes))


def train(recipe: Recipe[Any, Any], folder: Path, device: torch.device, **options: Any) -> Run:
    run = Run(recipe, folder, console=QUIET, device=device)
    run.train(**options)
    return run


def weights(folder: Path) -> dict[str, Tensor]:
    return load_trained(folder).model.state_dict()


def test_all_that_a_run_holds_is_on_the_device(tmp_path: Path, device: torch.device) -> None:
    run = train(recipe_of(), tmp_path, device)
    assert run.average is not None
    held = [*run.model.parameters(), *run.average.weights.values()]
    assert held and all(x.device.type == device.type for x in held)
    moments = [x for state in run.optimizer.state.values() for x in state.values() if x.ndim]
    assert moments and all(x.device.type == device.type for x in moments)


def test_a_run_is_that_of_a_cpu(tmp_path: Path, device: torch.device) -> None:
    train(recipe_of(), tmp_path / "there", device)
    train(recipe_of(), tmp_path / "here", torch.device("cpu"))
    here = weights(tmp_path / "here")
    for name, found in weights(tmp_path / "there").items():
        torch.testing.assert_close(found.cpu(), here[name].cpu(), rtol=1e-2, atol=1e-3)


def test_a_run_that_was_stopped_and_resumed_is_the_run_that_was_not(
    tmp_path: Path, device: torch.device, monkeypatch: pytest.MonkeyPatch
) -> None:
    train(recipe_of(), tmp_path / "whole", device)
    batch, calls = GroupTask.batch, [0]

    def stopping(self: GroupTask, split: Any, *arguments: Any) -> Any:
        calls[0] += split == "train"
        if calls[0] == 6 and split == "train":
            os.kill(os.getpid(), signal.SIGTERM)
        return batch(self, split, *arguments)

    with monkeypatch.context() as patched:
        patched.setattr(GroupTask, "batch", stopping)
        with pytest.raises(Interrupted):
            train(recipe_of(), tmp_path / "parts", device)
    run = train(recipe_of(), tmp_path / "parts", device, resume=True)
    assert run.progress.step == 12
    assert all(x.device.type == device.type for s in run.optimizer.state.values() for x in s.values() if x.ndim)
    whole = weights(tmp_path / "whole")
    for name, found in weights(tmp_path / "parts").items():
        # Sums on a GPU may be added up in another order each time.
        torch.testing.assert_close(found, whole[name], rtol=1e-3, atol=1e-4)


def test_a_trained_model_is_loaded_and_evaluated_on_the_device(tmp_path: Path, device: torch.device) -> None:
    train(recipe_of(), tmp_path, device)
    found = load_trained(tmp_path)
    recipe, model = found.recipe, found.model
    scores = [
        evaluate(model.to(where), recipe.task, "test", 12, 64, batch_tokens=256, precision="float32")
        for where in ("cpu", device)
    ]
    assert scores[0].samples == scores[1].samples == 64
    assert abs(scores[0].loss - scores[1].loss) < 1e-4
    tokens = list(sc.generate(model, torch.zeros(1, 3, dtype=torch.int64, device=device), max_new_tokens=5))
    assert len(tokens) == 5 and all(token.device.type == device.type for token in tokens)


def test_a_run_in_bfloat16_learns_and_keeps_float32_weights(tmp_path: Path, device: torch.device) -> None:
    run = train(recipe_of(precision="bfloat16"), tmp_path, device)
    assert all(p.dtype == torch.float32 and bool(p.isfinite().all()) for p in run.model.parameters())


@pytest.mark.filterwarnings("ignore")  # torch's compiler warns about itself
@pytest.mark.usefixtures("shapes_unchecked")
def test_a_compiled_run_is_the_run(tmp_path: Path, device: torch.device) -> None:
    short: dict[str, Any] = {"steps": 4, "curriculum": Curriculum((5, 8), steps=2)}
    train(recipe_of(**short), tmp_path / "plain", device)
    train(recipe_of(**short, compile=True), tmp_path / "compiled", device)
    plain = weights(tmp_path / "plain")
    for name, found in weights(tmp_path / "compiled").items():
        torch.testing.assert_close(found, plain[name], rtol=1e-3, atol=1e-3)


@pytest.mark.parametrize("row", ["mamba", "gla"])
def test_a_row_of_the_zoo_trains(row: str, tmp_path: Path, device: torch.device) -> None:
    model = sc.ZooConfig(6, row, layers=1, width=16, heads=2)
    run = train(recipe_of(model=model, steps=4, curriculum=Curriculum((8,))), tmp_path, device)
    assert all(bool(p.isfinite().all()) for p in run.model.parameters())
