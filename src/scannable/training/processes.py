"""One process or several under torchrun: who this one is, and what all of them agree on."""

import os
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
        if self.count > 1:
            distributed.all_reduce(sums)
        return sums

    def wait(self) -> None:
        """Until all have come here."""
        if self.count > 1:
            distributed.barrier()


def join_processes() -> Processes:
    """Join the others that torchrun started, if it did."""
    if int(os.environ.get("WORLD_SIZE", "1")) == 1:
        return Processes()
    if not distributed.is_initialized():
        distributed.init_process_group("nccl" if torch.cuda.is_available() else "gloo")
    return Processes(distributed.get_rank(), distributed.get_world_size())


def leave_processes() -> None:
    if distributed.is_initialized():
        distributed.destroy_process_group()
