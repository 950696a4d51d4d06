"""What a run computes, against the same written out by hand with torch alone."""

import math
import os
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest
import torch
from rich.console import Console
from torch import Tensor, nn
from torch.nn import functional

import scannable as sc
from scannable.tasks import IGNORED, Batch, MQARTask
from scannable.training import checkpoint as checkpoints
from scannable.training.average import WeightAverage
from scannable.training.callbacks import Callback
from scannable.training.evaluation import Score
from scannable.training.gradient import clip
from scannable.training.logging import Metrics, read_metrics
from scannable.training.loop import Run
from scannable.training.progress import Progress
from scannable.training.recipe import Curriculum, Evaluation, Optimizer, Recipe

QUIET = Console(quiet=True)


@dataclass(frozen=True)
class TinyConfig:
    vocab_size: int = 10
    width: int = 4


class Tiny(nn.Module):
    """Few enough weights to follow by hand; random in training."""

    def __init__(self, config: TinyConfig) -> None:
        super().__init__()
        self.config = config
        self.embedding = nn.Embedding(config.vocab_size, config.width)
        self.out = nn.Linear(config.width, config.vocab_size)

    def forward(self, tokens: Tensor) -> Tensor:
        return self.out(torch.tanh(self.embedding(tokens)))


sc.register_model(Tiny, TinyConfig)


def recipe_of(**changes: Any) -> Recipe[Any, Any]:
    values: dict[str, Any] = {
        "model": TinyConfig(),
        "task": MQARTask(vocab_size=10, pairs=2),
        "steps": 9,
        "batch_samples": 3,
        "optimizer": Optimizer(
            0.3, betas=(0.7, 0.8), weight_decay=0.2, clip=0.05, schedule="linear", warmup=2, final=0.3
        ),
        "curriculum": Curriculum((8, 12), steps=4, rates=(1.0, 0.5), revisit=0.0),
        "evaluation": Evaluation(every=3, samples=7),
        "ema": 0.6,
        "seed": 5,
        "log_every": 1,
        "checkpoint_every": 100,
    }
    return Recipe(**(values | changes))


def asked_loss(model: nn.Module, batch: Batch) -> Tensor:
    """The mean over the positions where something is asked, and only over those."""
    losses = [
        -functional.log_softmax(model(batch.tokens[row : row + 1])[0, place], -1)[batch.targets[row, place]]
        for row in range(len(batch.tokens))
        for place in range(batch.tokens.shape[1])
        if batch.targets[row, place] != IGNORED
    ]
    return torch.stack(losses).mean()


def by_hand(recipe: Recipe[Any, Any]) -> tuple[dict[str, Tensor], dict[str, Tensor], list[dict[str, float]]]:
    """AdamW as its authors print it, and everything around it, in plain loops."""
    torch.manual_seed(recipe.seed)
    model = Tiny(recipe.model)
    names = [name for name, _ in model.named_parameters()]
    first = {name: torch.zeros_like(p) for name, p in model.named_parameters()}
    second = {name: torch.zeros_like(p) for name, p in model.named_parameters()}
    average = {name: p.detach().clone() for name, p in model.named_parameters()}
    b1, b2 = recipe.optimizer.betas
    records, samples = [], 0
    for step in range(recipe.steps):
        stage = 0 if step < 4 else 1
        length = (8, 12)[stage]
        loss = asked_loss(model, recipe.task.batch("train", range(samples, samples + 3), length))
        samples += 3
        gradients = dict(zip(names, torch.autograd.grad(loss, list(model.parameters())), strict=True))
        norm = math.sqrt(sum(float(g.double().square().sum()) for g in gradients.values()))
        # The peak after two steps of warm-up, then a straight line to 0.3 times it at the last step.
        rate = 0.3 * (step + 1) / 2 if step < 2 else 0.3 * (1 - 0.7 * (step - 2) / (8 - 2))
        rate *= (1.0, 0.5)[stage]
        records.append({"loss": float(loss.detach()), "gradient_norm": norm, "learning_rate": rate, "length": length})
        with torch.no_grad():
            for name, parameter in model.named_parameters():
                gradient = gradients[name] * min(1.0, 0.05 / norm)
                first[name] = b1 * first[name] + (1 - b1) * gradient
                second[name] = b2 * second[name] + (1 - b2) * gradient.square()
                decay = 0.2 if parameter.ndim > 1 else 0.0
                parameter *= 1 - rate * decay
                unbiased = first[name] / (1 - b1 ** (step + 1))
                parameter -= rate * unbiased / ((second[name] / (1 - b2 ** (step + 1))).sqrt() + 1e-8)
                average[name] = 0.6 * average[name] + 0.4 * parameter
    return {name: p.detach() for name, p in model.named_parameters()}, average, records


@pytest.mark.parametrize("accumulate", [1, 2])
def test_weights_average_and_metrics_are_those_of_the_loop_by_hand(tmp_path: Path, accumulate: int) -> None:
    recipe = recipe_of(accumulate=accumulate)
    weights, average, records = by_hand(recipe)
    run = Run(recipe, tmp_path, console=QUIET)
    run.train()
    found = [r for r in read_metrics(tmp_path / "metrics.jsonl") if r["kind"] == "train"]
    assert len(found) == 9
    for record, expected in zip(found, records, strict=True):
        assert {name: record[name] for name in expected} == pytest.approx(expected, rel=2e-5)
    for name, parameter in run.model.named_parameters():
        torch.testing.assert_close(parameter.detach(), weights[name], rtol=1e-4, atol=1e-5)
        assert run.average is not None
        torch.testing.assert_close(run.average.weights[name], average[name], rtol=1e-4, atol=1e-5)


def test_evaluation_scores_the_average_over_what_is_asked(tmp_path: Path) -> None:
    recipe = recipe_of()
    run = Run(recipe, tmp_path, console=QUIET)
    result = run.train()
    model = Tiny(recipe.model)
    assert run.average is not None
    model.load_state_dict(run.average.weights)
    batch = recipe.task.batch("test", range(7), 12)
    assert result["test"][0]["loss"] == pytest.approx(float(asked_loss(model, batch).detach()), rel=1e-5)
    valid = batch.targets != IGNORED
    wrong = (model(batch.tokens).argmax(-1) != batch.targets)[valid].double().mean()
    assert result["test"][0]["error"] == pytest.approx(float(wrong))


def test_the_best_evaluation_is_the_lowest_loss_of_the_longest_length(tmp_path: Path) -> None:
    result = Run(recipe_of(), tmp_path, console=QUIET).train()
    looks = [r for r in read_metrics(tmp_path / "metrics.jsonl") if r["kind"] == "evaluation"]
    longest = [r for r in looks if r["length"] == 12]
    assert {r["length"] for r in looks} == {8, 12} and len(longest) == 2
    lowest = min(longest, key=lambda r: r["loss"])
    assert (result["best"]["step"], result["best"]["loss"]) == (lowest["step"], lowest["loss"])
    progress = Progress()
    for stage, loss, best in ((0, 3.0, 3.0), (0, 2.0, 2.0), (0, 2.5, 2.0), (1, 4.0, 4.0), (1, 3.5, 3.5), (1, 3.6, 3.5)):
        progress.step += 1
        progress.stage = replace(progress.stage, index=stage)
        progress.looked(replace(SCORE, loss=loss))
        assert progress.best is not None and progress.best.loss == best


SCORE = Score(4, 1, 1.0, 0.5, ())


def test_a_gradient_is_clipped_to_its_norm_and_no_further() -> None:
    parameter = nn.Parameter(torch.zeros(2))
    for largest, expected in ((1.0, (0.6, 0.8)), (10.0, (3.0, 4.0)), (0.0, (3.0, 4.0))):
        parameter.grad = torch.tensor([3.0, 4.0])
        assert clip([parameter], largest) == 5.0
        torch.testing.assert_close(parameter.grad, torch.tensor(expected))


def test_the_average_keeps_its_decay_of_the_past() -> None:
    model = nn.Linear(1, 1, bias=False)
    nn.init.zeros_(model.weight)
    average = WeightAverage(model, 0.9)
    for value, expected in ((1.0, 0.1), (1.0, 0.19), (0.0, 0.171)):
        nn.init.constant_(model.weight, value)
        average.update(model)
        assert float(average.weights["weight"]) == pytest.approx(expected)
    with average.in_place_of(model):
        assert model.weight.item() == pytest.approx(0.171)
    assert model.weight.item() == 0.0
    average.restart(model, {"weight"})
    assert float(average.weights["weight"]) == 0.0


@dataclass(frozen=True)
class NoisyConfig(TinyConfig):
    dropout: float = 0.5


class Noisy(Tiny):
    def __init__(self, config: NoisyConfig) -> None:
        super().__init__(config)
        self.dropout = nn.Dropout(config.dropout)

    def forward(self, tokens: Tensor) -> Tensor:
        return self.out(self.dropout(torch.tanh(self.embedding(tokens))))


sc.register_model(Noisy, NoisyConfig)


def test_what_is_random_differs_from_step_to_step_and_from_seed_to_seed(tmp_path: Path) -> None:
    """The same weights and samples: whatever changes the loss is the seed of the step."""
    losses = {}
    for seed in (0, 1):
        run = Run(recipe_of(model=NoisyConfig(), seed=seed, ema=0.0), tmp_path / str(seed), console=QUIET)
        torch.manual_seed(0)
        run.model.load_state_dict(Noisy(NoisyConfig()).state_dict())
        weights = {name: p.detach().clone() for name, p in run.model.named_parameters()}
        for step in (0, 1, 1):
            run.progress.step, run.progress.samples = step, 0
            run.model.load_state_dict(weights)
            loss = run._one_step(8)[0]
            assert losses.setdefault((seed, step), loss) == loss
    assert len(set(losses.values())) == 4


SEEN: list[float] = []


@sc.configurable
@dataclass(frozen=True)
class Watching(Callback):
    def before_step(self, model: nn.Module, progress: float) -> None:
        assert isinstance(model, Tiny)
        SEEN.append(progress)


def test_progress_goes_from_0_to_1_and_callbacks_see_it(tmp_path: Path) -> None:
    SEEN.clear()
    Run(recipe_of(callbacks=(Watching(),), steps=4), tmp_path, console=QUIET).train()
    assert SEEN == [0.0, 0.25, 0.5, 0.75]


def test_metrics_are_on_the_disk_before_the_checkpoint_that_counts_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    events: list[tuple[str, int]] = []
    fsync, write = os.fsync, checkpoints.write

    def watched_fsync(handle: int) -> None:
        if os.readlink(f"/proc/self/fd/{handle}").endswith("metrics.jsonl"):
            events.append(("metrics", os.fstat(handle).st_size))
        fsync(handle)

    def watched_write(folder: Path, checkpoint: Any) -> Path:
        events.append(("checkpoint", checkpoint.state["metrics_bytes"]))
        return write(folder, checkpoint)

    monkeypatch.setattr(os, "fsync", watched_fsync)
    monkeypatch.setattr(checkpoints, "write", watched_write)
    Run(recipe_of(checkpoint_every=4), tmp_path, console=QUIET).train()
    saves = [i for i, (what, _) in enumerate(events) if what == "checkpoint"]
    assert len(saves) >= 3
    for i in saves:
        assert events[i - 1] == ("metrics", events[i][1]) and events[i][1] > 0


def test_metrics_are_cut_back_and_say_what_is_lost(tmp_path: Path) -> None:
    metrics = Metrics(tmp_path / "metrics.jsonl")
    metrics.append({"step": 1})
    size = metrics.size
    metrics.append({"step": 2})
    assert metrics.cut(size) == 0 and read_metrics(metrics.path) == [{"step": 1}]
    assert metrics.cut(size + 7) == 7 and read_metrics(metrics.path) == [{"step": 1}]
