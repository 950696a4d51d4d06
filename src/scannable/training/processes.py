"""One process or several under torchrun: who this one is, and what all of them agree on."""

import os
import sys
import time
from dataclasses import dataclass

import torch
from torch import Tensor, distributed


@dataclass(frozen=True)
class Processes:
    """The processes of a run; alone, unless torchrun started more."""

    rank: int = 0
    count: int = 1

    @property
    def first(self) -> bool:
        """Whether this is the one that writes files and talks."""
        return self.rank == 0

    def total(self, *values: float) -> Tensor:
        """The sum of each value over all processes."""
        sums = torch.tensor(values, dtype=torch.float64)
        self.add(sums)
        return sums

    def add(self, tensor: Tensor) -> None:
        """Put the sum of this tensor over all processes in its place."""
        self._reduce(tensor, distributed.ReduceOp.SUM)

    def greatest(self, value: float) -> float:
        """The greatest of all processes' values."""
        found = torch.tensor(value, dtype=torch.float64)
        self._reduce(found, distributed.ReduceOp.MAX)
        return float(found)

    def _reduce(self, tensor: Tensor, operation: "distributed.ReduceOp.RedOpType") -> None:
        if self.count == 1:
            return
        owners = sys.getrefcount(tensor)
        distributed.all_reduce(tensor, operation)
        # A thread of gloo holds the tensor a moment longer and needs the interpreter to let go of it: a process that
        # ends before then is aborted. Destroying the group would join that thread, but only if nobody else has the
        # group, and default arguments in torch do.
        for _ in range(10_000):
            if sys.getrefcount(tensor) <= owners:
                break
            time.sleep(1e-4)

    def wait(self) -> None:
        """Until all have come here."""
        self.total(0.0)


def join_processes(device: torch.device) -> tuple[Processes, torch.device]:
    """Join the others that torchrun started, if it did; each has a GPU of its own, if one is asked for by "cuda"."""
    if int(os.environ.get("WORLD_SIZE", "1")) == 1:
        return Processes(), device
    if device.type == "cuda" and device.index is None:
        device = torch.device("cuda", int(os.environ.get("LOCAL_RANK", "0")))
        torch.cuda.set_device(device)
    if not distributed.is_initialized():
        # What is summed in `total` is on the CPU, wherever the model is.
        distributed.init_process_group("cpu:gloo,cuda:nccl" if device.type == "cuda" else "gloo")
    return Processes(distributed.get_rank(), distributed.get_world_size()), device


def leave_processes() -> None:
    if distributed.is_initialized():
        distributed.destroy_process_group()
