"""What depends on where tensors live."""

from contextlib import AbstractContextManager, nullcontext

import torch
from torch import Tensor


def may_look(x: Tensor) -> bool:
    """Whether the values of a tensor can be read at no cost: elsewhere than on a CPU that waits for all work in
    progress, and a graph that is being compiled has none.
    """
    return x.device.type == "cpu" and not torch.compiler.is_compiling()


def without_autocast(device: torch.device) -> AbstractContextManager[object]:
    """Every operation in the precision of its inputs."""
    if torch.amp.is_autocast_available(device.type):
        return torch.autocast(device.type, enabled=False)
    return nullcontext()


def widest(device: torch.device) -> torch.dtype:
    """The floating-point numbers with the most digits that a device has."""
    return torch.float32 if device.type == "mps" else torch.float64
