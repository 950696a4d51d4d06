"""A run between two processes: what a checkpoint takes of it, and how it goes on from there."""

from typing import Any

import torch
from torch import Tensor, nn

from scannable.storage.configuration import to_plain
from scannable.training.average import WeightAverage
from scannable.training.checkpoint import Checkpoint, Keep
from scannable.training.progress import Progress
from scannable.training.recipe import Recipe
from scannable.training.run_folder import TrainingError, differences, recipe_of
from scannable.training.sharding import is_sharded, like, load_whole, put_away


def checkpoint_of(
    recipe: Recipe[Any, Any],
    progress: Progress,
    model: nn.Module,
    optimizer: torch.optim.Optimizer,
    average: WeightAverage | None,
    metrics_bytes: int,
) -> Checkpoint:
    """Everything that the next step depends on; `metrics_bytes` is how much of the metrics belongs to it."""
    names: dict[Any, str] = {parameter: name for name, parameter in model.named_parameters()}
    moments: dict[str, Tensor] = {
        f"{names[parameter]}/{key}": value
        for parameter, state in optimizer.state.items()
        for key, value in state.items()
    }
    state = {
        "progress": progress.to_plain(),
        "metrics_bytes": metrics_bytes,
        "recipe": to_plain(recipe),
        "versions": {"torch": torch.__version__},
    }
    return Checkpoint(progress.step, model.state_dict(), moments, state, average.weights if average else {})


def share_of(model: nn.Module) -> Keep:
    """What a process keeps of each tensor of a checkpoint: all of it, or its share of a sharded model's."""
    if not is_sharded(model):
        return lambda part, name, tensor: tensor
    put_away(model)
    parameters = dict(model.named_parameters())

    def keep(part: str, name: str, tensor: Tensor) -> Tensor:
        parameter = parameters.get(name.rsplit("/", 1)[0] if part == "optimizer" else name)
        if parameter is None or tensor.shape != parameter.shape or not tensor.ndim:
            return tensor
        return like(parameter, tensor)

    return keep


def restore(
    checkpoint: Checkpoint, model: nn.Module, optimizer: torch.optim.Optimizer, average: WeightAverage | None
) -> Progress:
    """Put what a checkpoint holds into the model, the optimizer and the average; where the run was."""
    try:
        load_whole(model, checkpoint.model)
        if average is not None:
            average.restore(dict(checkpoint.average))
        _restore_optimizer(checkpoint, model, optimizer)
        return Progress.from_plain(checkpoint.state["progress"])
    except (KeyError, TypeError, RuntimeError) as error:
        raise TrainingError(
            f"the checkpoint of step {checkpoint.step} does not fit this recipe: {' '.join(str(error).split())[:300]}; "
            "resume with the configuration it was made with"
        ) from error


def _restore_optimizer(checkpoint: Checkpoint, model: nn.Module, optimizer: torch.optim.Optimizer) -> None:
    """Through the optimizer's own `load_state_dict`, which knows what has to be on which device."""
    names: dict[Any, str] = {parameter: name for name, parameter in model.named_parameters()}
    found: dict[str, dict[str, Tensor]] = {}
    for name, value in checkpoint.optimizer.items():
        parameter, key = name.rsplit("/", 1)
        found.setdefault(parameter, {})[key] = value
    for name, parameter in model.named_parameters():
        if name in found:
            # Moments are cut as their parameter is; a count of steps is one number.
            found[name] = {
                key: like(parameter, value) if value.shape == parameter.shape and value.ndim else value
                for key, value in found[name].items()
            }
    unknown = found.keys() - set(names.values())
    if unknown:
        raise KeyError(f"the optimizer has moments of {sorted(unknown)[0]!r}, which the model has not")
    ordered = [names[parameter] for group in optimizer.param_groups for parameter in group["params"]]
    state = optimizer.state_dict()
    state["state"] = {place: found[name] for place, name in enumerate(ordered) if name in found}
    optimizer.load_state_dict(state)


def agree(checkpoint: Checkpoint, recipe: Recipe[Any, Any], *, force: bool) -> list[str]:
    """How the recipe has changed since the checkpoint; refused, unless it is forced or only adds steps to a run that
    has made all of its own.
    """
    saved, mine = recipe_of(checkpoint), to_plain(recipe)
    changed = differences(saved, mine)
    progress = Progress.from_plain(checkpoint.state["progress"])
    if recipe.steps < progress.step:
        raise TrainingError(f"steps={recipe.steps} are fewer than the {progress.step} that this run has made")
    more_steps = progress.ended == "steps" and not differences({**saved, "steps": recipe.steps}, mine)
    if changed and not force and not more_steps:
        raise TrainingError(
            f"this run was trained with another configuration ({'; '.join(changed[:5])}); use the same, or --force to "
            "go on with this one"
        )
    return changed


def going_on(progress: Progress, recipe: Recipe[Any, Any], changed: list[str]) -> Progress:
    """A run that had ended goes on, if its recipe has more steps now, or another rule for stopping early."""
    more = progress.ended == "steps" and recipe.steps > progress.step
    other_rule = progress.ended == "enough" and any(line.startswith("evaluation.") for line in changed)
    if more or (other_rule and recipe.steps > progress.step):
        progress.ended = None
    return progress
