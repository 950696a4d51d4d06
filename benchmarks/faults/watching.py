"""How a run is watched from inside its own process, so that it can be hit at an exact moment.

The library knows nothing of it: in the process of the run, and only there, its functions are wrapped.
"""

import mmap
import os
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from select import select
from typing import Any

import scannable.training.checkpoint as checkpoints
import scannable.training.loop as loop
from scannable.training.loop import Run

MOMENTS = (
    "starting",
    "writing config.json",
    "training",
    "evaluating",
    "saving",
    "between the renames",
    "deleting old checkpoints",
    "finishing",
    "testing",
)
"""What a run can be doing."""

PATIENCE = 120.0
"""Seconds after which a run is taken to hang."""


@dataclass(frozen=True)
class Aim:
    """When the parent hears from the run: at the `nth` time that it comes to `moment`, and `calls` system calls later.

    Beside `MOMENTS` there are "step", "validation batch" and "test batch", each when it begins. With `calls` the run
    waits there until it is let go, or ended; without, it goes on.
    """

    moment: str
    nth: int = 1
    calls: int | None = None


class Watcher:
    """Keeps track of the moment, tells the parent, and makes writing slow enough to be hit.

    Args:
        page: memory shared with the parent; its first byte is the moment.
        tell: the pipe to the parent.
        let_go: the pipe from the parent.
        aim: when to tell it.
        slow: seconds before each system call that changes the disk, except within a step.
    """

    def __init__(self, page: mmap.mmap, tell: int, let_go: int, aim: Aim, slow: float) -> None:
        self.page, self.tell, self.let_go, self.aim, self.slow = page, tell, let_go, aim, slow
        self.stack: list[str] = []
        self.seen: Counter[str] = Counter()
        self.calls_left: int | None = None
        self._enter("starting")
        for owner, name, moment in (
            (loop, "write_config", "writing config.json"),
            (Run, "_train", "training"),
            (Run, "_look", "evaluating"),
            (Run, "_finish", "finishing"),
            (checkpoints, "write", "saving"),
            (checkpoints, "prune", "deleting old checkpoints"),
        ):
            _wrap(owner, name, lambda original, moment=moment: self._during(moment, original))
        _wrap(Run, "_one_step", lambda original: self._before(lambda: self._reached("step"), original))
        _wrap(Run, "_heard", self._telling_of_signals)
        _wrap(loop, "evaluate", self._batch_by_batch)
        for name in ("fsync", "unlink", "rmdir", "mkdir", "replace"):
            _wrap(os, name, lambda original: self._before(self._before_call, original))
        _wrap(Path, "rename", self._seeing_replacements)

    # Where the run is.

    def _enter(self, moment: str) -> None:
        self.stack.append(moment)
        self.page[0] = MOMENTS.index(moment)
        self._reached(moment)

    def _leave(self, moment: str) -> None:
        """Leave it and whatever was entered within; an exception skips the ends of those."""
        while self.stack.pop() != moment:
            pass
        self.page[0] = MOMENTS.index(self.stack[-1])

    def _reached(self, moment: str) -> None:
        self.seen[moment] += 1
        if moment == self.aim.moment and self.seen[moment] == self.aim.nth:
            if self.aim.calls is None:
                self._tell_parent()
            else:
                self.calls_left = self.aim.calls
                self._before_call()

    def _before_call(self) -> None:
        """Before a system call that changes the disk."""
        if self.calls_left == 0:
            self.calls_left = None
            self._tell_parent()
            self._wait()
        elif self.calls_left:
            self.calls_left -= 1
        if self.slow and self.stack[-1] != "training":
            time.sleep(self.slow)

    def _wait(self) -> None:
        """Until the run is let go, in short pieces: Python does not see a signal that comes on its way into a wait.

        A second signal that comes as the handler of the first returns would otherwise be heard when the wait is over.
        """
        until = time.monotonic() + PATIENCE
        while not select([self.let_go], [], [], 0.05)[0]:
            if time.monotonic() > until:
                raise RuntimeError("this run was neither ended nor let go")

    def _tell_parent(self) -> None:
        os.write(self.tell, b"!")

    # Wrappers; each takes the original function.

    def _before(self, first: Callable[[], None], original: Any) -> Any:
        def wrapped(*arguments: Any, **named: Any) -> Any:
            first()
            return original(*arguments, **named)

        return wrapped

    def _during(self, moment: str, original: Any) -> Any:
        def wrapped(*arguments: Any, **named: Any) -> Any:
            self._enter(moment)
            try:
                return original(*arguments, **named)
            finally:
                self._leave(moment)

        return wrapped

    def _telling_of_signals(self, original: Any) -> Any:
        """The parent knows when a signal has been heard: two that come at once would be one."""

        def heard(run: Run, number: int) -> None:
            original(run, number)
            self._tell_parent()

        return heard

    def _batch_by_batch(self, original: Any) -> Any:
        def evaluate(model: Any, task: Any, split: str, *arguments: Any, each: Any, **named: Any) -> Any:
            def watched(done: int, count: int) -> None:
                self._reached(f"{split} batch")
                each(done, count)

            watched_evaluate = self._during("testing", original) if split == "test" else original
            return watched_evaluate(model, task, split, *arguments, each=watched, **named)

        return evaluate

    def _seeing_replacements(self, original: Any) -> Any:
        """Between two renames the checkpoint of a step is not at its place."""

        def rename(path: Path, target: Path) -> Path:
            self._before_call()
            moved = original(path, target)
            if str(target).endswith(".replaced"):
                self._enter("between the renames")
            elif str(path).endswith(".writing") and self.stack[-1] == "between the renames":
                self._leave("between the renames")
            return moved

        return rename


def _wrap(owner: Any, name: str, wrapper: Callable[[Any], Any]) -> None:
    setattr(owner, name, wrapper(getattr(owner, name)))
