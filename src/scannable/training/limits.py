"""What cannot be trained is refused before it begins: a model or batch too large, samples that the task has not."""

import os
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.nn.modules.module import register_module_parameter_registration_hook

from scannable.storage.configuration import ConfigurationError
from scannable.storage.model_file import build_model
from scannable.storage.weights import WithoutValues
from scannable.training.recipe import Recipe

MOST_TENSORS = 20_000
"""Of a model; each is an object, and takes time and memory even when it is small."""


def check_memory(recipe: Recipe[Any, Any], device: str | torch.device = "cpu", *, shares: int = 1) -> None:
    """Refuse a run that cannot fit, before anything of it is allocated: the bounds are what it needs at the least.

    With `shares`, weights and all that belongs to them are cut into so many, and gathered whole for a step.
    """
    # Weights, their gradient, the two moments of AdamW, and the average.
    copies = 5 if recipe.ema else 4
    check_model_memory(recipe.model, copies if shares == 1 else 1 + copies // shares, device)
    check_batch_memory(recipe, (*recipe.curriculum.lengths, *recipe.evaluation.lengths), device)


def check_model_memory(config: Any, copies: int = 1, device: str | torch.device = "cpu") -> None:
    """Refuse a model of whose weights this many copies do not fit; it is built without memory to count them."""
    too_large = f"the model of this {type(config).__name__} is too large"
    limit, held, tensors = memory_of(device), 0, 0

    def compare(nbytes: int, times: int) -> None:
        if times * nbytes > limit:
            every = f", {times} times with gradient and optimizer" if times > 1 else ""
            raise ConfigurationError(
                f"{too_large}: its weights take {nbytes / 1e9:,.1f} GB or more{every}; there are {limit / 1e9:,.1f} GB"
            )

    def count(module: nn.Module, name: str, parameter: nn.Parameter) -> None:
        nonlocal held, tensors
        held, tensors = held + parameter.nbytes, tensors + 1
        compare(held, 1)
        if tensors > MOST_TENSORS:
            raise ConfigurationError(f"{too_large}: its weights are more than {MOST_TENSORS:,} tensors")

    # At every parameter and not at the end, which a model of a billion layers would never reach.
    hook = register_module_parameter_registration_hook(count)
    try:
        with torch.device("meta"), WithoutValues():
            model: nn.Module = build_model(config)
        # Tied weights count once.
        compare(sum(parameter.nbytes for parameter in model.parameters()), copies)
    except ConfigurationError:
        raise
    except Exception as error:
        # Whatever else is wrong will be said by the one who builds the model in earnest.
        if "overflow" in str(error).lower():
            raise ConfigurationError(f"{too_large}: {str(error).splitlines()[0]}") from error
    finally:
        hook.remove()


def check_batch_memory(recipe: Recipe[Any, Any], lengths: Iterable[int], device: str | torch.device = "cpu") -> None:
    """Refuse a length of which not even tokens and targets of a step, or the outputs of an evaluation, fit."""
    outputs = getattr(recipe.model, "out_size", None) or getattr(recipe.model, "vocab_size", 0)
    limit = memory_of(device)
    for length in lengths:
        rows = recipe.samples(length)
        needed = length * max(16 * rows, (16 + 4 * outputs) * min(rows, recipe.evaluation.samples))
        if needed > limit:
            raise ConfigurationError(
                f"a batch of {rows:,} x {length:,} tokens takes {needed / 1e9:,.1f} GB or more, and there are "
                f"{limit / 1e9:,.1f} GB; choose a smaller length or batch_tokens"
            )


def check_samples(recipe: Recipe[Any, Any]) -> None:
    """Let the task say now what it cannot give, instead of at the end of a long run."""
    task, trained = recipe.task, recipe.curriculum.lengths
    for split, lengths in (
        ("train", trained),
        ("validation", trained),
        ("test", (*recipe.evaluation.lengths, trained[-1])),
    ):
        for length in lengths:
            # A text is evaluated in windows, the last of which may be longer than what is left.
            if split == "train" or not hasattr(task, "windows"):
                task.batch(split, range(1), length)


def memory_of(device: str | torch.device) -> int:
    """Bytes that the device has, used or not; no more than this process may have."""
    if torch.device(device).type == "cuda":
        return torch.cuda.get_device_properties(device).total_memory
    whole = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    allowed = Path("/sys/fs/cgroup/memory.max")
    text = allowed.read_text().strip() if allowed.is_file() else ""
    return min(whole, int(text)) if text.isdigit() else whole
