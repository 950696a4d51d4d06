"""`scannable eval`."""

import math
from typing import TYPE_CHECKING, Any

from scannable.cli.run_argument import RunFolder, check_model, load, recipe_of
from scannable.tasks import Split
from scannable.training.recipe import Weights, positive

if TYPE_CHECKING:
    from scannable.training.run_folder import TrainedModel

LONG = 16_384
"""Tokens above which a sample is read in pieces, from state to state, instead of at once."""


def evaluate(
    run: RunFolder,
    lengths: tuple[int, ...] = (),
    samples: int | None = None,
    split: Split = "test",
    weights: Weights | None = None,
    device: str = "cpu",
) -> None:
    """Measure loss and error of a trained run or a shipped model.

    At the longest length that it was trained on, or at others. What is longer than 16,384 tokens, unless it is text, is
    read in pieces, as a stream: errors and the bytes that it holds are shown as they grow.

    Examples:
        scannable eval runs/s5 --lengths 32 64 128
        scannable eval s5 --lengths 1000000

    Args:
        run: folder of the run, or a name that `scannable models` lists.
        lengths: lengths to measure at.
        samples: samples for each length; by default 256, or all of a text, or one that is read in pieces.
        split: train, validation or test.
        weights: those of the last step or the best ones; by default what the recipe tests at its end.
        device: such as cuda.
    """
    for name, number in (*(("lengths", length) for length in lengths), ("samples", samples)):
        if number is not None:
            positive(name, number)
    check_model(run)
    from scannable.cli.device import usable_device
    from scannable.tasks.text import TextTask
    from scannable.training.limits import check_batch_memory

    place, recipe = usable_device(device), recipe_of(run)
    lengths = lengths or (recipe.curriculum.lengths[-1],)
    text = isinstance(recipe.task, TextTask)
    at_once = [length for length in lengths if text or length <= LONG]
    check_batch_memory(recipe, at_once, place)
    for length in lengths:
        if length not in at_once:
            _check_fits(length, samples or 1)
    found = load(run, weights=weights, device=place)
    print(f"{run}: {found}, on the {split} split")
    if at_once:
        _score(found, at_once, samples if samples or text else 256, split)
    for length in lengths:
        if length not in at_once:
            _read(found, length, samples or 1, split)


def _check_fits(length: int, samples: int) -> None:
    """Refuse more than the memory holds of tokens, of targets, and of the random bits that they are drawn from."""
    from scannable.storage.configuration import ConfigurationError
    from scannable.training.limits import memory_of

    needed, limit = 32 * samples * length, memory_of("cpu")
    if needed > limit:
        raise ConfigurationError(
            f"a batch of {samples:,} x {length:,} tokens takes {needed / 1e9:,.1f} GB or more, and there are "
            f"{limit / 1e9:,.1f} GB; choose a smaller length, or fewer samples"
        )


def _score(found: "TrainedModel", lengths: list[int], samples: int | None, split: Split) -> None:
    from scannable.training.evaluation import evaluate as measure

    recipe = found.recipe
    print(f"{'length':>8}{'samples':>9}{'loss':>10}{'perplexity':>12}{'error':>9}{'bits/byte':>11}")
    for length in lengths:
        score = measure(
            found.model,
            recipe.task,
            split,
            length,
            samples,
            batch_tokens=recipe.batch_tokens,
            precision=recipe.precision,
        )
        bits = "-" if score.bits_per_byte is None else f"{score.bits_per_byte:.4f}"
        print(
            f"{length:>8}{score.samples:>9}{score.loss:>10.4f}{math.exp(min(score.loss, 700)):>12.4f}"
            f"{score.error:>9.2%}{bits:>11}",
            flush=True,
        )


def _read(found: "TrainedModel", length: int, samples: int, split: Split) -> None:
    from rich.console import Console

    from scannable.cli.reading import read

    console: Any = Console()
    read(found, length, samples, console, split=split)
