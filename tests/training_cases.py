"""What one process does in a test of training over several; `rank_pool.run_apart` calls these in each."""

import os
import threading
from pathlib import Path
from typing import Any

import torch
from rich.console import Console

import scannable as sc
from scannable.models.layer_options import PSMOptions
from scannable.storage.configuration import ConfigurationError
from scannable.tasks import GroupTask
from scannable.training import checkpoint as checkpoints
from scannable.training import limits, shard_saver
from scannable.training import step as step_module
from scannable.training.loop import Run
from scannable.training.parallel import Parallel
from scannable.training.recipe import Curriculum, Evaluation, Optimizer, Recipe
from scannable.training.resume import restore, share_of
from scannable.training.shard_file import ShardWriter
from scannable.training.sharding import put_away, whole

PSM = sc.TransformerPSMConfig(6, 16, chunk_length=2, agg_layers=1, inf_layers=1, heads=2)
HYBRID = sc.LMConfig(6, ("mamba", PSMOptions(chunk_length=2), "attention"), width=16, heads=2)
QUIET = Console(quiet=True)


def recipe_of(model: Any = PSM, **changes: Any) -> Recipe[Any, Any]:
    """Lengths of which the shortest gives some processes nothing to do, and Agg to none."""
    values: dict[str, Any] = {
        "model": model,
        "task": GroupTask("S3"),
        "steps": 50,
        "batch_tokens": 56,
        "optimizer": Optimizer(warmup=3, weight_decay=0.1, clip=0.5),
        "curriculum": Curriculum((2, 9, 14), steps=17, revisit=0.3),
        "evaluation": Evaluation(every=10, samples=8, lengths=(20,)),
        "ema": 0.9,
        "checkpoint_every": 20,
        "log_every": 1,
    }
    return Recipe(**(values | changes))


def steps_case(folder: str, parallel: Parallel, recipe: Recipe[Any, Any], double: bool = True) -> dict[str, Any]:
    """A run's steps without its files: losses, weights, average, an evaluation, and tokens that the model generates."""
    kind = torch.float64 if double else torch.float32
    torch.set_default_dtype(kind)
    build = step_module.build_model
    # Some parameters are float32 whatever the default is.
    step_module.build_model = lambda config: build(config).to(kind)
    try:
        run = Run(recipe, Path(folder), console=QUIET, parallel=parallel)
        progress, losses = run.progress, list[tuple[float, float]]()
        for step in range(recipe.steps):
            loss, norm, _ = run.optimisation.step(progress, recipe.curriculum.lengths[step % 3])
            losses.append((loss, norm))
            progress.step += 1
        score = run.score(13)
        put_away(run.model)
        model: Any = run.model
        tokens = [int(token) for token in sc.generate(model, [1, 2, 3], max_new_tokens=5, temperature=0.0)]
        logits, _ = model.prefill(torch.tensor([[1, 2, 3]]), model.initial_state(1))
        loss = float(model.loss(torch.tensor([[1, 2, 3]]), torch.tensor([[2, 3, 1]])).detach())
        put_away(run.model)
        held = sum(parameter.numel() for parameter in map(_local, run.model.parameters()))
        return {
            "losses": losses,
            "weights": {name: whole(p.detach()).numpy() for name, p in run.model.named_parameters()},
            "average": {name: whole(p).numpy() for name, p in (run.average.weights.items() if run.average else ())},
            "score": (score.loss, score.error, score.error_by_position),
            "tokens": tokens,
            "logits": logits.float().numpy(),
            "loss": loss,
            "held": held,
        }
    finally:
        torch.set_default_dtype(torch.float32)
        step_module.build_model = build


def _local(tensor: Any) -> Any:
    return tensor.to_local() if hasattr(tensor, "to_local") else tensor


def refused_case(folder: str, parallel: Parallel, recipe: Recipe[Any, Any], other: Any = None) -> str:
    """The error of a process; the last one may have another recipe or layout."""
    if other is not None and int(os.environ["RANK"]) == int(os.environ["WORLD_SIZE"]) - 1:
        parallel, recipe = other
    try:
        Run(recipe, Path(folder), console=QUIET, parallel=parallel)
    except ValueError as error:
        return str(error)
    return "nothing was wrong"


def train_case(folder: str, parallel: Parallel, recipe: Recipe[Any, Any], resume: bool = False) -> dict[str, Any]:
    """A whole run, with its files."""
    return Run(recipe, Path(folder), console=QUIET, parallel=parallel).train(resume=resume)


def memory_case(folder: str, parallel: Parallel) -> str:
    """Whether a run fits where there is room for four copies of the weights, and five are needed."""
    nbytes = sum(parameter.nbytes for parameter in sc.TransformerPSM(PSM).parameters())
    memory_of = limits.memory_of
    limits.memory_of = lambda device: 4 * nbytes
    try:
        Run(recipe_of(curriculum=Curriculum((2,)), evaluation=Evaluation()), Path(folder), parallel=parallel)
    except ConfigurationError as error:
        return str(error)
    finally:
        limits.memory_of = memory_of
    return "it fits"


def failing_evaluation_case(folder: str) -> list[str]:
    """What goes on beyond an error that comes while the average is in the model, and whether the weights are back."""
    run = Run(recipe_of(), Path(folder), console=QUIET, parallel=Parallel(shard=True))
    run.optimisation.step(run.progress, 9)
    average: Any = run.average
    weights = {name: whole(p.detach()).clone() for name, p in run.model.named_parameters()}
    seen: list[str] = []
    try:
        with average.in_place_of(run.model):
            changed = any(not torch.equal(weights[n], whole(p.detach())) for n, p in run.model.named_parameters())
            seen.append("the average" if changed else "the weights")
            raise KeyError("evaluation")
    except KeyError:
        seen.append("the error")
    same = all(torch.equal(weights[name], whole(p.detach())) for name, p in run.model.named_parameters())
    return [*seen, "the weights" if same else "something else"]


def resaved_case(source: str, folder: str, parallel: Parallel, recipe: Recipe[Any, Any]) -> list[float]:
    """What a checkpoint holds, taken over by processes of another layout and saved by them; the next step's loss."""
    run = Run(recipe, Path(folder), console=QUIET, parallel=parallel)
    checkpoint = checkpoints.read(Path(source), share_of(run.model))
    run.progress = restore(checkpoint, run.model, run.optimizer, run.average)
    run._save()
    run.saving.wait()
    return list(run.optimisation.step(run.progress, 9)[:2])


def changed_while_writing_case(folder: str, recipe: Recipe[Any, Any]) -> list[int]:
    """Weights move while a checkpoint of them is being written slowly; what is there to be found meanwhile."""
    run = Run(recipe, Path(folder), console=QUIET, parallel=Parallel(shard=True))
    go_on = threading.Event()
    write = shard_saver.write_shards

    def slow(*arguments: Any) -> None:
        go_on.wait(60)
        write(*arguments)

    shard_saver.write_shards = slow
    try:
        run.optimisation.step(run.progress, 9)
        run.progress.step = 1
        before = {name: whole(p.detach()).clone() for name, p in run.model.named_parameters()}
        run._save()
        for _ in range(3):
            run.optimisation.step(run.progress, 9)
        assert not torch.equal(before["head.weight"], whole(dict(run.model.named_parameters())["head.weight"].detach()))
        found = checkpoints.steps(run.checkpoints)
        go_on.set()
        run.saving.wait()
        saved = checkpoints.read(checkpoints.path_of(run.checkpoints, 1)).model
        assert all(torch.equal(saved[name], value) for name, value in before.items())
        return found
    finally:
        shard_saver.write_shards = write


def failing_save_case(folder: str, recipe: Recipe[Any, Any], failing: int) -> str:
    """One process cannot write its share."""
    run = Run(recipe, Path(folder), console=QUIET, parallel=Parallel(shard=True))
    run.optimisation.step(run.progress, 9)
    run.progress.step = 1
    run._save()
    run.saving.wait()
    run.progress.step = 2
    writer: Any = ShardWriter
    write = writer.write_data
    if run.processes.rank == failing:

        def refuse(*_: Any) -> Any:
            raise OSError(28, "No space left on device")

        writer.write_data = refuse
    try:
        run._save()
        run.saving.wait()
    except checkpoints.CheckpointError as error:
        return str(error)
    finally:
        writer.write_data = write
    return "nothing was wrong"
