"""Shards of many processes as one plain safetensors file: each process writes its rows where they belong.

torch's distributed checkpoint (DCP) plans who writes what, checks that nothing is missing or written twice, and passes
errors on to all processes. What it writes with is this `StorageWriter`. Weights are cut along their first axis, so a
share is one stretch of the file. The file does not know how many processes there were, and any other number reads it.
"""

import os
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
import torch.distributed.checkpoint as dcp
from torch import Tensor
from torch.distributed.checkpoint.metadata import Metadata
from torch.distributed.checkpoint.planner import SavePlan, SavePlanner, WriteItem
from torch.distributed.checkpoint.storage import StorageWriter, WriteResult
from torch.distributed.tensor import DTensor
from torch.futures import Future

from scannable.storage import tensor_file


def staged(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Copies on the CPU of the shares of this process: what training does next changes none of them."""
    return {name: _copy(tensor.detach()) for name, tensor in tensors.items()}


def _copy(tensor: Tensor) -> Tensor:
    if not isinstance(tensor, DTensor):
        return tensor.to("cpu", copy=True)
    mine = tensor.to_local().to("cpu", copy=True)
    return DTensor.from_local(
        mine, tensor.device_mesh, tensor.placements, run_check=False, shape=tensor.shape, stride=tensor.stride()
    )


def write_shards(path: Path, tensors: Mapping[str, Tensor], group: Any) -> None:
    """Put whole tensors, of which each process has its shares, at `path`; all of them call."""
    dcp.save(dict(tensors), storage_writer=ShardWriter(path), process_group=group)


class ShardWriter(StorageWriter):
    """One safetensors file; the first process makes its header, and every process writes its own rows."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def reset(self, checkpoint_id: Any = None) -> None:
        pass

    def set_up_storage_writer(self, is_coordinator: bool, *args: Any, **kwargs: Any) -> None:
        pass

    @classmethod
    def validate_checkpoint_id(cls, checkpoint_id: Any) -> bool:
        return False

    def prepare_local_plan(self, plan: SavePlan) -> SavePlan:
        return plan

    def prepare_global_plan(self, plans: list[SavePlan]) -> list[SavePlan]:
        """Where every share goes, from the shapes that all processes have."""
        items = [item for plan in plans for item in plan.items]
        kinds = {item.index.fqn: (_data(item).properties.dtype, tuple(_data(item).size)) for item in items}
        header, begins = tensor_file.header_of(kinds)
        size = len(header) + sum(kind.itemsize * torch.Size(shape).numel() for kind, shape in kinds.values())
        with self.path.open("wb") as file:
            file.write(header)
            file.truncate(size)
        return [replace(plan, storage_data=[_place(item, begins) for item in plan.items]) for plan in plans]

    def write_data(self, plan: SavePlan, planner: SavePlanner) -> Future[list[WriteResult]]:
        results: list[WriteResult] = []
        with self.path.open("r+b") as file:
            for item, place in zip(plan.items, plan.storage_data, strict=True):
                data = planner.resolve_data(item)
                assert isinstance(data, Tensor)
                content = tensor_file.bytes_of(data)
                file.seek(place)
                file.write(content)
                results.append(WriteResult(item.index, len(content), place))
            # Here, and not by the first process alone: on a shared disk each machine has its own cache.
            file.flush()
            os.fsync(file.fileno())
        done: Future[list[WriteResult]] = Future()
        done.set_result(results)
        return done

    def finish(self, metadata: Metadata, results: list[list[WriteResult]]) -> None:
        """The file says everything itself."""


def _data(item: WriteItem) -> Any:
    if item.tensor_data is None:
        raise TypeError(f"{item.index.fqn!r} is no tensor; a safetensors file holds nothing else")
    return item.tensor_data


def _place(item: WriteItem, begins: Mapping[str, int]) -> int:
    data = _data(item)
    offsets, sizes, whole = tuple(data.chunk.offsets), tuple(data.chunk.sizes), tuple(data.size)
    if sizes[1:] != whole[1:] or any(offsets[1:]):
        raise ValueError(f"{item.index.fqn!r} is cut along another axis than its first; its shares have no one place")
    row = torch.Size(whole[1:]).numel() * data.properties.dtype.itemsize
    return begins[item.index.fqn] + (offsets[0] * row if offsets else 0)
