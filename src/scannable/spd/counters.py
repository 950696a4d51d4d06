"""Counts do not jitter: how often Agg is called and on how many pairs, and how much is computed."""

from collections.abc import Callable, Sequence
from math import prod
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.flop_counter import flop_registry

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


class CountedWork(TorchDispatchMode):
    """Counts the floating-point `operations` of everything inside `with CountedWork() as work:`.

    Matrix products and convolutions by torch's own formulas (two for each multiply-add), pointwise operations one for
    each number of the result, reductions and cumulative sums one for each number they read. Copies and views are free;
    what is none of these (sorting, transforms, decompositions) is not counted.
    """

    def __init__(self) -> None:
        super().__init__()
        self.operations: int = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        packet = func._overloadpacket
        if packet in flop_registry:
            self.operations += flop_registry[packet](*args, **(kwargs or {}), out_val=result)
        elif packet.__name__ == "linalg_solve_triangular":
            matrix, right = args[:2]
            self.operations += right.numel() * matrix.shape[-1]
        elif packet.__name__ == "mkldnn_rnn_layer":
            inputs, weights, recurrent_weights = args[:3]
            self.operations += 2 * inputs.shape[0] * inputs.shape[1] * (weights.numel() + recurrent_weights.numel())
        elif torch.Tag.pointwise in func.tags and packet.__name__ not in COPIES:
            self.operations += sum(leaf.numel() for leaf in _tensors(result))
        elif packet.__name__ in READERS:
            self.operations += sum(leaf.numel() for leaf in _tensors(args))
        return result


READERS = {
    "sum", "mean", "var", "amax", "max", "cumsum", "cumprod", "cummax", "logsumexp", "_softmax", "_fused_rms_norm",
    "native_layer_norm", "native_group_norm", "linalg_vector_norm", "index_add",
}  # fmt: skip


COPIES = {"clone", "copy_", "_to_copy", "fill_", "zero_", "zeros_like", "ones_like"}


def _tensors(values: Any) -> list[Tensor]:
    if isinstance(values, Tensor):
        return [values] if values.is_floating_point() or values.is_complex() else []
    return [leaf for value in values for leaf in _tensors(value)] if isinstance(values, list | tuple) else []
