"""Counts do not jitter: calls of Agg and the pairs in them, how much is computed, and in how long a chain."""

from collections.abc import Callable, Sequence
from math import prod
from typing import Any

import torch
from torch import Tensor
from torch.multiprocessing.reductions import StorageWeakRef
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves
from torch.utils.flop_counter import flop_registry, sdpa_flop_count

from scannable.scan.tree import flatten


class CountedAgg:
    """An Agg that counts its batched `calls` (parallel depth) and its `evaluations` (work, in pairs of elements).

    `element_shape` is the shape of one element's first tensor; whatever axes stand in front of it are batch. Objects
    without tensors count as one pair a call.

    >>> from scannable.spd import CountedAgg
    >>> agg = CountedAgg(torch.add)
    >>> _ = sc.scan(agg, torch.arange(100), identity=torch.tensor(0))
    >>> agg.evaluations, agg.calls
    (187, 12)
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

    Matrix products, convolutions and attention by torch's own formulas (two for each multiply-add), pointwise
    operations one for each number of the result, reductions and cumulative sums one for each number they read. Copies
    and views are free; what is none of these (sorting, transforms, decompositions) is not counted.
    """

    def __init__(self) -> None:
        super().__init__()
        self.operations: int = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        packet = func._overloadpacket
        if packet in flop_registry:
            self.operations += flop_registry[packet](*args, **(kwargs or {}), out_val=result)
        elif packet.__name__ == "_scaled_dot_product_flash_attention_for_cpu":
            # torch has a formula for those of a GPU only; like them, a causal mask saves nothing.
            self.operations += sdpa_flop_count(*(part.shape for part in args[:3]))
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


class CountedDepth(TorchDispatchMode):
    """Counts the parallel `depth` of everything inside `with CountedDepth() as chain:`.

        depth(result) = 1 + the largest depth among the arguments

    for every call of torch, copies included: the length of the longest chain of batched calls, each of which needs the
    one before. Calls that do not need each other lie side by side, in whatever order they were made. Views are free. A
    fused recurrence counts once for each of its steps: it cannot do them side by side either.

    What is known is the depth of a whole memory block. Reading one part of a block that was written part by part
    counts as reading all of it, so the depth is never too small, and it is too large only for such buffers.
    """

    def __init__(self) -> None:
        super().__init__()
        self.depth: int = 0
        self._depths: dict[int, int] = {}
        # A block that is weakly held keeps its number, so that no later block is taken for it.
        self._seen: list[StorageWeakRef] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        result = func(*args, **kwargs)
        read, written = _read_and_written(func, args, kwargs)
        sources = [_block(tensor) for tensor in read]
        depth = max((self._depths.get(block, 0) for block in sources), default=0) + _steps(func, args)
        for tensor in written or _all_tensors(result):
            block = _block(tensor)
            if written or block not in sources:
                self._raise(tensor, block, depth if sources else 0)
        return result

    def _raise(self, tensor: Tensor, block: int, depth: int) -> None:
        if block not in self._depths:
            self._seen.append(StorageWeakRef(tensor.untyped_storage()))
        self._depths[block] = max(self._depths.get(block, 0), depth)
        self.depth = max(self.depth, depth)


OVERWRITING = {"copy_", "fill_", "zero_", "index_put_"}
"""Calls in place that do not read the place."""


def _read_and_written(func: Any, args: Any, kwargs: Any) -> tuple[list[Tensor], list[Tensor]]:
    """The tensors that a call reads, and those among its arguments that it changes."""
    given = {argument.name: value for argument, value in zip(func._schema.arguments, args, strict=False)} | kwargs
    read, written = list[Tensor](), list[Tensor]()
    for argument in func._schema.arguments:
        tensors = _all_tensors(given.get(argument.name))
        changed = argument.alias_info is not None and argument.alias_info.is_write
        if changed:
            written += tensors
        if not changed or not (argument.kwarg_only or func._overloadpacket.__name__ in OVERWRITING):
            read += tensors
    return read, written


def _steps(func: Any, args: Any) -> int:
    return args[0].shape[0] if func._overloadpacket.__name__ == "mkldnn_rnn_layer" else 1


def _all_tensors(values: Any) -> list[Tensor]:
    return [leaf for leaf in tree_leaves(values) if isinstance(leaf, Tensor)]


def _block(tensor: Tensor) -> int:
    return tensor.untyped_storage()._cdata
