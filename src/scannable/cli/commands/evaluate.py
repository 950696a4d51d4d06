"""`scannable eval`."""

import math

from scannable.cli.run_argument import RunFolder, check_run
from scannable.tasks import Split
from scannable.training.recipe import Weights, positive


def evaluate(
    run: RunFolder,
    lengths: tuple[int, ...] = (),
    samples: int | None = None,
    split: Split = "test",
    weights: Weights | None = None,
    device: str = "cpu",
) -> None:
    """Measure loss and error of a trained run.

    At the longest length that it was trained on, or at others.

    Example:
        scannable eval runs/s5 --lengths 32 64 128

    Args:
        run: folder of the run.
        lengths: lengths to measure at.
        samples: samples for each length; by default 256, or all of a text.
        split: train, validation or test.
        weights: those of the last step or the best ones; by default what the recipe tests at its end.
        device: such as cuda.
    """
    for name, number in (*(("lengths", length) for length in lengths), ("samples", samples)):
        if number is not None:
            positive(name, number)
    check_run(run)
    from scannable.cli.device import usable_device
    from scannable.tasks.text import TextTask
    from scannable.training.evaluation import evaluate as measure
    from scannable.training.limits import check_batch_memory
    from scannable.training.run_folder import load_recipe, load_trained

    place, recipe = usable_device(device), load_recipe(run)
    lengths = lengths or (recipe.curriculum.lengths[-1],)
    check_batch_memory(recipe, lengths, place)
    found = load_trained(run, weights=weights, device=place)
    recipe, model = found.recipe, found.model
    if samples is None and not isinstance(recipe.task, TextTask):
        samples = 256
    print(f"{run}: {found}, on the {split} split")
    print(f"{'length':>8}{'samples':>9}{'loss':>10}{'perplexity':>12}{'error':>9}{'bits/byte':>11}")
    for length in lengths:
        score = measure(
            model, recipe.task, split, length, samples, batch_tokens=recipe.batch_tokens, precision=recipe.precision
        )
        bits = "-" if score.bits_per_byte is None else f"{score.bits_per_byte:.4f}"
        print(
            f"{length:>8}{score.samples:>9}{score.loss:>10.4f}{math.exp(min(score.loss, 700)):>12.4f}"
            f"{score.error:>9.2%}{bits:>11}",
            flush=True,
        )
