"""Five processes that are started once, and run many cases: the ranks of every group of one to five."""

import atexit
import importlib
import multiprocessing
import os
import tempfile
import traceback
from collections.abc import Sequence
from contextlib import suppress
from typing import Any

RANKS = 5
TIMEOUT = 60


def run(function: Any, ranks: int, *arguments: Any, timeout: float = TIMEOUT) -> list[Any]:
    """What `function(group, *arguments)` returns on each of the first `ranks` processes."""
    return _pool("joined").run(f"{function.__module__}:{function.__qualname__}", ranks, arguments, timeout)


def run_apart(function: Any, ranks: int, *arguments: Any, timeout: float = TIMEOUT) -> list[Any]:
    """What `function(*arguments)` returns on each of `ranks` processes that torchrun might have started: they know their
    ranks, and have joined a group that is all of them.
    """
    return _pool("apart").run(f"{function.__module__}:{function.__qualname__}", ranks, arguments, timeout)


class WorkerError(AssertionError):
    """What a worker raised."""


class _Pool:
    def __init__(self, kind: str) -> None:
        self.kind, self.runs = kind, 0
        context = multiprocessing.get_context("forkserver")
        # Imported once, for all of them.
        context.set_forkserver_preload(["torch", "torch.distributed", "scannable", "scannable.distributed"])
        self.folder = tempfile.TemporaryDirectory()
        self.pipes: list[Any] = []
        self.processes: list[Any] = []
        for rank in range(RANKS):
            mine, theirs = context.Pipe()
            work = _work_joined if kind == "joined" else _work_apart
            process = context.Process(target=work, args=(rank, f"{self.folder.name}/store", theirs), daemon=True)
            process.start()
            self.pipes.append(mine)
            self.processes.append(process)
        atexit.register(self.close)

    def run(self, name: str, ranks: int, arguments: Sequence[Any], timeout: float) -> list[Any]:
        self.runs += 1
        for pipe in self.pipes[:ranks]:
            pipe.send((name, ranks, arguments, self.runs))
        answers = []
        for rank, pipe in enumerate(self.pipes[:ranks]):
            if not pipe.poll(timeout):
                self.close()
                raise WorkerError(f"rank {rank} of {ranks} did not answer: it hangs")
            answers.append(pipe.recv())
        for rank, (_, failure) in enumerate(answers):
            if failure:
                raise WorkerError(f"rank {rank} of {ranks} failed:\n{failure}")
        return [answer for answer, _ in answers]

    def close(self) -> None:
        _pools.pop(self.kind, None)
        for pipe in self.pipes:
            with suppress(OSError):
                pipe.send(None)
        for process in self.processes:
            process.join(5)
            if process.is_alive():
                process.kill()
        self.folder.cleanup()


_pools: dict[str, _Pool] = {}


def _pool(kind: str) -> _Pool:
    if kind not in _pools:
        _pools[kind] = _Pool(kind)
    return _pools[kind]


def _work_joined(rank: int, store: str, pipe: Any) -> None:
    from datetime import timedelta

    import torch
    from torch import distributed as c10d

    torch.set_num_threads(1)
    c10d.init_process_group(
        "gloo", init_method=f"file://{store}", rank=rank, world_size=RANKS, timeout=timedelta(seconds=30)
    )
    groups = {ranks: c10d.new_group(list(range(ranks))) for ranks in range(1, RANKS + 1)}
    while (message := pipe.recv()) is not None:
        name, ranks, arguments, _ = message
        _answer(pipe, lambda name=name, ranks=ranks, arguments=arguments: _named(name)(groups[ranks], *arguments))
    c10d.destroy_process_group()


def _work_apart(rank: int, store: str, pipe: Any) -> None:
    import torch
    from torch import distributed as c10d

    from scannable.training.processes import leave_processes

    torch.set_num_threads(1)
    while (message := pipe.recv()) is not None:
        name, ranks, arguments, number = message
        os.environ.update(RANK=str(rank), LOCAL_RANK=str(rank), WORLD_SIZE=str(ranks))
        if ranks > 1:
            c10d.init_process_group("gloo", init_method=f"file://{store}-{number}", rank=rank, world_size=ranks)
        _answer(pipe, lambda name=name, arguments=arguments: _named(name)(*arguments))
        leave_processes()


def _answer(pipe: Any, work: Any) -> None:
    try:
        pipe.send((work(), None))
    except Exception:
        pipe.send((None, traceback.format_exc()))


def _named(name: str) -> Any:
    module, _, function = name.partition(":")
    return getattr(importlib.import_module(module), function)
