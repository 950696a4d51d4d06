"""`scannable verify`."""

import sys
from typing import Any

from scannable.cli.run_argument import RunFolder, check_model, load, recipe_of
from scannable.storage.configuration import ConfigurationError
from scannable.training.recipe import Recipe, positive


def verify(run: RunFolder, length: int = 300, batch: int = 2, device: str = "cpu") -> None:
    """Check that parallel, prefill and step by step are one function.

    In float64, with prefill in random splits; a difference beyond rounding exits with 1.

    Example:
        scannable verify runs/s5 --length 1000

    Args:
        run: folder of the run, or a name that `scannable models` lists.
        length: tokens to check on.
        batch: rows to check on.
        device: such as cuda.
    """
    positive("length", length)
    positive("batch", batch)
    check_model(run)
    import torch

    from scannable.cli.device import usable_device
    from scannable.spd import verify_duality

    place = usable_device(device)
    check_fits(recipe_of(run), batch, length, place)
    found = load(run, device=place)
    recipe, model = found.recipe, found.model
    tokens = recipe.task.batch("test", range(batch), length).tokens.to(place)
    report = verify_duality(model, tokens, dtype=torch.float64)
    print(report)
    if not report.passed:
        sys.exit(1)


def check_fits(recipe: Recipe[Any, Any], batch: int, length: int, device: Any) -> None:
    """Refuse what cannot fit: the tokens, and two sets of outputs that are compared."""
    from scannable.training.limits import memory_of

    needed = batch * length * (8 + 2 * 8 * recipe.task.out_size)
    if needed > memory_of(device):
        raise ConfigurationError(
            f"outputs for {batch:,} x {length:,} tokens take {needed / 1e9:,.1f} GB or more, and there are "
            f"{memory_of(device) / 1e9:,.1f} GB; choose a smaller length or batch"
        )
