"""Values for what no file had: those that a new model starts with.

`transformers` builds models without memory, and asks afterwards, module by module, for the values of what it did not
find. How a layer starts is known to its `__init__` alone, and some weights depend on others, so the answer is a new
model, whose values are copied.
"""

from collections.abc import Callable

import torch
from torch import Tensor, nn

MARK = "_is_hf_initialized"
"""The attribute by which `transformers` knows tensors that have their values."""


def mark_initialized(module: nn.Module) -> None:
    """Say of all tensors that have memory that they have values too."""
    for tensor in (*module.parameters(), *module.buffers()):
        if not tensor.is_meta:
            setattr(tensor, MARK, True)


@torch.no_grad()
def fill(module: nn.Module, make: Callable[[], nn.Module]) -> None:
    """Give values to all tensors of a module that have none, from a new one of its kind."""
    empty = _empty(module)
    if not empty:
        return
    with torch.device("cpu"):
        new = make()
    values = {**dict(new.named_parameters(remove_duplicate=False)), **dict(new.named_buffers(remove_duplicate=False))}
    for name, tensor in empty.items():
        tensor.copy_(values[name])
        setattr(tensor, MARK, True)


def _empty(module: nn.Module) -> dict[str, Tensor]:
    tensors = {**dict(module.named_parameters()), **dict(module.named_buffers())}
    return {name: one for name, one in tensors.items() if not one.is_meta and not getattr(one, MARK, False)}
