"""One process or several under torchrun: who this one is, and what all of them agree on."""

import os
import sys
import time
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any

import torch
from torch import Tensor, distributed
from torch.distributed.rendezvous import rendezvous

from scannable.distributed.agreement import agree
from scannable.training.parallel import Parallel
from scannable.training.roll_call import RollCall
from scannable.training.sequence import Sequence


@dataclass(frozen=True)
class Processes:
    """The processes of a run; alone, unless torchrun started more."""

    rank: int = 0
    count: int = 1
    sequence: Sequence | None = None
    """The processes that have the same samples as this one, each another part of them; None if it has whole ones."""
    roll_call: RollCall = field(default_factory=RollCall, compare=False, repr=False)
    """Who is there."""

    @property
    def share(self) -> slice:
        """Which of a step's samples this process has."""
        together = 1 if self.sequence is None else self.sequence.count
        return slice(self.rank // together, None, self.count // together)

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


def join_processes(
    device: torch.device, parallel: Parallel | None = None, words: str = ""
) -> tuple[Processes, torch.device]:
    """Join the others that torchrun started, if it did; each has a GPU of its own, if one is asked for by "cuda".

    `words` are what all of them must say alike: what they are about to do. If they do not, each has the error.
    """
    parallel = parallel or Parallel()
    count = int(os.environ.get("WORLD_SIZE", "1"))
    backend = "cpu:gloo,cuda:nccl" if device.type == "cuda" else "gloo"  # what is summed in `total` is on the CPU
    if count == 1:
        parallel.shape(count)
        if parallel.shard and not distributed.is_initialized():
            distributed.init_process_group(backend, store=distributed.HashStore(), rank=0, world_size=1)
        return Processes(), device
    if device.type == "cuda" and device.index is None:
        device = torch.device("cuda", int(os.environ.get("LOCAL_RANK", "0")))
        torch.cuda.set_device(device)
    timeout = timedelta(seconds=parallel.timeout)
    if distributed.is_initialized():
        rank, store = distributed.get_rank(), distributed.distributed_c10d._get_default_store()
    else:
        held, rank, _ = next(rendezvous("env://", timeout=timeout))
        # torchrun may keep its store when it starts a run anew, with the addresses of processes that are gone.
        store = distributed.PrefixStore(f"attempt-{os.environ.get('TORCHELASTIC_RESTART_COUNT', '0')}", held)
    roll_call = _call_roll(rank, count, store)
    with roll_call.explaining():
        if not distributed.is_initialized():
            distributed.init_process_group(backend, store=store, rank=rank, world_size=count, timeout=timeout)
        # Before one of them waits in a group that another does not know of.
        (_, together), _ = agree(lambda: (parallel.shape(count), 0, f"{parallel}{words}"), None, device)
        if together == 1:
            return Processes(rank, count, roll_call=roll_call), device
        from torch.distributed.device_mesh import init_device_mesh

        # Neighbours share samples: what they exchange in every layer stays on one machine, if it can.
        mesh = init_device_mesh(device.type, (count // together, together), mesh_dim_names=("data", "sequence"))
        sequence = Sequence(rank % together, together, mesh.get_group("sequence"))
        return Processes(rank, count, sequence, roll_call), device


_called: list[RollCall] = []


def _call_roll(rank: int, count: int, store: Any) -> RollCall:
    """One roll call a process, until it leaves the others."""
    while _called:
        _called.pop().__exit__(None, None, None)
    _called.append(RollCall(rank, count, store).__enter__())
    return _called[0]


def restarted() -> bool:
    """Whether torchrun has started this process once more, because one of the processes had failed (--max-restarts):
    the run goes on from its last checkpoint then.
    """
    return int(os.environ.get("TORCHELASTIC_RESTART_COUNT", "0")) > 0


def leave_processes() -> None:
    """Nobody waits for this process any more."""
    while _called:
        _called.pop().__exit__(None, None, None)
    if distributed.is_initialized():
        distributed.destroy_process_group()
