"""Trees of tensors whose first axis are rows: taken, overwritten, joined.

An object that is no tree brings methods of the same names; `nn.KVCache` does.
"""

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
from torch import Tensor

from scannable.scan.tree import flatten, tree_map


def take(value: Any, rows: Sequence[int]) -> Any:
    """These rows, in this order, in memory of their own."""
    if hasattr(value, "take") and not isinstance(value, Tensor):
        return value.take(rows)
    return tree_map(lambda leaf: leaf[torch.tensor(list(rows), dtype=torch.int64, device=leaf.device)], value)


def put(value: Any, rows: Sequence[int], other: Any) -> Any:
    """The same with these rows overwritten by all rows of `other`; in place, unless gradients may be recorded."""
    if hasattr(value, "put") and not isinstance(value, Tensor):
        value = value.branch() if torch.is_grad_enabled() else value
        value.put(rows, other)
        return value

    def written(leaf: Tensor, new: Tensor) -> Tensor:
        index = torch.tensor(list(rows), dtype=torch.int64, device=leaf.device)
        return leaf.index_copy(0, index, new) if torch.is_grad_enabled() else leaf.index_copy_(0, index, new)

    return tree_map(written, value, other)


def cat(values: Sequence[Any]) -> Any:
    """All rows of all, in memory of their own."""
    if hasattr(values[0], "cat"):
        return values[0].cat(values)
    return tree_map(lambda *leaves: torch.cat(leaves), *values)


def mapped(value: Any, function: Callable[[Tensor], Tensor]) -> Any:
    """The same with `function` of every tensor."""
    return value.map(function) if hasattr(value, "map") else tree_map(function, value)


def tensors(value: Any) -> Iterator[Tensor]:
    """All tensors in it."""
    yield from value.tensors() if hasattr(value, "tensors") else flatten(value)[0]
