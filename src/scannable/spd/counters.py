"""Counts do not jitter: how often Agg is called, and on how many pairs."""

from collections.abc import Callable, Sequence
from math import prod
from typing import Any

from torch import Tensor

from scannable.scan.tree import flatten


class CountedAgg:
    """An Agg that counts its batched `calls` (parallel depth) and its `evaluations` (work, in pairs of elements).

    `element_shape` is the shape of one element's first tensor; whatever axes stand in front of it are batch. Objects
    without tensors count as one pair a call.
    """

    def __init__(self, agg: Callable[[Any, Any], Any], element_shape: Sequence[int] = ()) -> None:
        self.agg: Callable[[Any, Any], Any] = agg
        self.element_size: int = prod(element_shape)
        self.calls: int = 0
        self.evaluations: int = 0

    def __call__(self, older: Any, newer: Any) -> Any:
        self.calls += 1
        first = older if isinstance(older, Tensor) else _first_tensor(older)
        self.evaluations += 1 if first is None else first.numel() // self.element_size
        return self.agg(older, newer)


def _first_tensor(element: object) -> Tensor | None:
    try:
        leaves, _ = flatten(element)
    except TypeError:
        return None
    return leaves[0] if leaves else None
