"""Where a run's checkpoints go: to the disk at once, or, of a sharded run, while training goes on."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import scannable.training.checkpoint as checkpoints
from scannable.training.checkpoint import Checkpoint
from scannable.training.processes import Processes
from scannable.training.progress import Best
from scannable.training.recipe import Recipe


class Saving:
    """Keeps what the recipe wants kept: the newest checkpoints, the best one, and those of every so many steps.

    Args:
        folder: of the checkpoints.
        recipe: says how many are kept.
        processes: all of them call, at the same step.
        timeout: with it every process has a share of the weights, and waits so many seconds for the others'.
    """

    def __init__(
        self, folder: Path, recipe: Recipe[Any, Any], processes: Processes, timeout: float | None = None
    ) -> None:
        self.folder, self.recipe, self.processes = folder, recipe, processes
        self._saver = None
        if timeout is not None:
            from scannable.training.shard_saver import shard_saver

            self._saver = shard_saver(folder, processes.first, timeout)

    def save(self, checkpoint: Checkpoint, best: Best | None) -> None:
        """Write it, then delete what need not be kept."""
        prune = self._pruning(checkpoint.step, best)
        if self._saver is not None:
            self._saver.save(checkpoint, prune)
            return
        if self.processes.first:
            checkpoints.write(self.folder, checkpoint)
            prune()
        self.processes.wait()

    def wait(self) -> None:
        """Until nothing is being written any more, by any process."""
        if self._saver is not None:
            self._saver.wait()
            self.processes.wait()

    def _pruning(self, step: int, best: Best | None) -> Callable[[], None]:
        every = self.recipe.keep_every
        also = {*([best.step] if best else []), *(range(0, step, every) if every else ())}
        return lambda: checkpoints.prune(self.folder, self.recipe.keep, also, newest=step)
