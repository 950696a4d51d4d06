"""Checkpoints of a sharded run, written while training goes on.

    1. every process copies its shares; training goes on from here
    2. in the background, each writes its rows into the files of a folder that nobody reads yet
    3. when all of it is on the disk, the first process adds the sums and gives the folder its name

A checkpoint that can be found is therefore whole, and what it holds are the weights of its step, whatever has become of
them since. One is written at a time, and errors are raised on all processes, at the next checkpoint or the end.
"""

import json
import shutil
import threading
from collections.abc import Callable
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any

from torch import distributed as c10d

import scannable.training.checkpoint as checkpoints
from scannable.distributed.agreement import agree
from scannable.training.checkpoint import Checkpoint, CheckpointError
from scannable.training.shard_file import staged, write_shards


@dataclass
class ShardSaver:
    """Writes into `folder`, with the processes of a group of its own: training uses another at the same time."""

    folder: Path
    first: bool
    group: Any

    def __post_init__(self) -> None:
        self._thread: threading.Thread | None = None
        self._failed: BaseException | None = None

    def save(self, checkpoint: Checkpoint, then: Callable[[], None]) -> None:
        """Begin to write a checkpoint of shares; the first process calls `then` when it is there."""
        self.wait()
        parts = {
            name: staged(part)
            for name in ("model", "optimizer", "average")
            if (part := getattr(checkpoint, name)) or name != "average"
        }
        state = json.dumps(checkpoint.state, indent=1, sort_keys=True).encode()

        def work() -> None:
            try:
                self._write(checkpoint.step, parts, state, then)
            except BaseException as error:
                self._failed = error

        # A thread that waits for a process that is gone must not keep this one alive.
        self._thread = threading.Thread(target=work, name="checkpoint", daemon=True)
        self._thread.start()

    def wait(self) -> None:
        """Until nothing is being written; what went wrong is raised here."""
        if self._thread is not None:
            self._thread.join()
            self._thread = None
        failed, self._failed = self._failed, None
        if isinstance(failed, CheckpointError):
            raise failed
        if failed is not None:
            raise CheckpointError(f"a checkpoint could not be written to {self.folder}: {_reason(failed)}") from failed

    def _write(self, step: int, parts: dict[str, Any], state: bytes, then: Callable[[], None]) -> None:
        target = checkpoints.path_of(self.folder, step)
        temporary = self.folder / f".{target.name}.shards.writing"

        def begin() -> tuple[bool, int, str]:
            if self.first:
                checkpoints.begin(temporary, sum(tensor.nbytes for part in parts.values() for tensor in part.values()))
            return True, 0, target.name

        def finish() -> tuple[bool, int, str]:
            if self.first:
                checkpoints.finish(temporary, target, step, state)
                then()
            return True, 0, target.name

        try:
            agree(begin, self.group)
            for name, tensors in parts.items():
                write_shards(temporary / f"{name}.safetensors", tensors, self.group)
            agree(finish, self.group)
        finally:
            if self.first:
                shutil.rmtree(temporary, ignore_errors=True)


def shard_saver(folder: Path, first: bool, timeout: float) -> ShardSaver:
    """All processes call, at the same point."""
    return ShardSaver(folder, first, c10d.new_group(backend="gloo", timeout=timedelta(seconds=timeout)))


def _reason(error: BaseException) -> str:
    """The first line that says what it was, of an error that DCP may have wrapped."""
    failures = getattr(error, "failures", None) or {}
    for wrapped in failures.values():
        return f"{type(wrapped[0]).__name__}: {wrapped[0]}"
    return " ".join(str(error).split())[:300] or type(error).__name__
