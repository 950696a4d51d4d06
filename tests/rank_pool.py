"""Five processes that are started once, and run many cases: the ranks of every group of one to five."""

import atexit
import importlib
import multiprocessing
import tempfile
import traceback
from collections.abc import Sequence
from contextlib import suppress
from typing import Any

RANKS = 5
TIMEOUT = 60


def run(function: Any, ranks: int, *arguments: Any) -> list[Any]:
    """What `function(group, *arguments)` returns on each of the first `ranks` processes."""
    return _pool().run(f"{function.__module__}:{function.__qualname__}", ranks, arguments)


class WorkerError(AssertionError):
    """What a worker raised."""


class _Pool:
    def __init__(self) -> None:
        context = multiprocessing.get_context("forkserver")
        # Imported once, for all of them.
        context.set_forkserver_preload(["torch", "torch.distributed", "scannable", "scannable.distributed"])
        self.folder = tempfile.TemporaryDirectory()
        self.pipes: list[Any] = []
        self.processes: list[Any] = []
        for rank in range(RANKS):
            mine, theirs = context.Pipe()
            process = context.Process(target=_work, args=(rank, f"{self.folder.name}/store", theirs), daemon=True)
            process.start()
            self.pipes.append(mine)
            self.processes.append(process)
        atexit.register(self.close)

    def run(self, name: str, ranks: int, arguments: Sequence[Any]) -> list[Any]:
        for pipe in self.pipes[:ranks]:
            pipe.send((name, ranks, arguments))
        answers = []
        for rank, pipe in enumerate(self.pipes[:ranks]):
            if not pipe.poll(TIMEOUT):
                self.close()
                raise WorkerError(f"rank {rank} of {ranks} did not answer: it hangs")
            answers.append(pipe.recv())
        for rank, (_, failure) in enumerate(answers):
            if failure:
                raise WorkerError(f"rank {rank} of {ranks} failed:\n{failure}")
        return [answer for answer, _ in answers]

    def close(self) -> None:
        global _only
        _only = None
        for pipe in self.pipes:
            with suppress(OSError):
                pipe.send(None)
        for process in self.processes:
            process.join(5)
            if process.is_alive():
                process.kill()
        self.folder.cleanup()


_only: _Pool | None = None


def _pool() -> _Pool:
    global _only
    if _only is None:
        _only = _Pool()
    return _only


def _work(rank: int, store: str, pipe: Any) -> None:
    from datetime import timedelta

    import torch
    from torch import distributed as c10d

    torch.set_num_threads(1)
    c10d.init_process_group(
        "gloo", init_method=f"file://{store}", rank=rank, world_size=RANKS, timeout=timedelta(seconds=30)
    )
    groups = {ranks: c10d.new_group(list(range(ranks))) for ranks in range(1, RANKS + 1)}
    while (message := pipe.recv()) is not None:
        name, ranks, arguments = message
        module, _, function = name.partition(":")
        try:
            pipe.send((getattr(importlib.import_module(module), function)(groups[ranks], *arguments), None))
        except Exception:
            pipe.send((None, traceback.format_exc()))
    c10d.destroy_process_group()
