"""A long sample read in pieces in front of somebody: errors and bytes held, as they grow."""

from typing import Any

from rich.console import Console

from scannable.experiments.long_reading import PIECE, Read, Reading, read_in_pieces
from scannable.tasks import Split
from scannable.training.run_folder import TrainedModel

FIRST = 1023
"""Tokens after which a line is worth printing."""


def read(found: TrainedModel, length: int, samples: int, console: Console, *, split: Split = "test") -> Reading:
    """Read, and print a line just before each power of two, where most is held, and at the end."""
    task: Any = found.recipe.task
    rows = f"{samples} samples of " if samples > 1 else ""
    beside = f"the product in {task.group}, computed beside it" if hasattr(task, "group") else "the task's own"
    console.print(
        f"{rows}{length:,} tokens, read from state to state in pieces of {PIECE:,}; every answer is compared with "
        f"{beside}",
        highlight=False,
    )
    console.print(f"{'tokens':>12}{'wrong answers':>16}{'bytes held by a stream':>25}", highlight=False)
    shown: set[int] = set()

    def line(at: Read) -> None:
        if (at.n & (at.n + 1) == 0 and at.n >= min(FIRST, length)) or at.n == length:
            console.print(f"{at.n:>12,}{at.errors:>16,}{at.nbytes:>25,}", highlight=False)
            shown.add(at.n)

    with console.status("making the tokens") as status:

        def each(at: Read) -> None:
            status.update(f"{at.n:,} of {length:,} tokens")
            line(at)

        reading = read_in_pieces(found.model, task, length, samples, split=split, each=each)
    wrong = "no error" if not reading.errors else f"{reading.errors:,} errors, the first at {reading.first_error:,},"
    console.print(
        f"{wrong} in {reading.asked:,} answers; at most {reading.nbytes:,} bytes held; {reading.seconds:.0f} s",
        highlight=False,
    )
    return reading
