"""Layers whose state is a fixed number of tensors: every affine row, the LSTM, and the MLP with convolutions."""

from abc import abstractmethod
from collections.abc import Mapping
from typing import Any

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from scannable.layers.affine.recurrence import Mode
from scannable.layers.layer import SequenceLayer, check_sizes, not_a_state
from scannable.layers.state import State, TensorState, advanced

Parts = dict[str, Any]
"""What a layer remembers, by name; an affine layer has its affine state under "s"."""


class RecurrentLayer(SequenceLayer):
    """A layer says what its state holds and how it goes on; checks and positions are here."""

    def __init__(self, width: int, heads: int = 4) -> None:
        super().__init__(width, heads)
        self._expected: dict[int, dict[str, tuple[torch.Size, torch.dtype]]] = {}

    def initial_state(self, batch_size: int) -> TensorState:
        check_sizes(batch_size=batch_size)
        return TensorState((0,) * batch_size, self.empty(batch_size))

    def extend(
        self, x: Float[Tensor, "b n d"], state: Any, *, lengths: Any = None, mode: Mode = "chunkwise"
    ) -> tuple[Float[Tensor, "b n d"], State]:
        keep = self.check(x, lengths, mode)
        self.check_state(state, x.shape[0])
        if x.numel() == 0:
            return x, state
        state = state.usable()
        y, parts = self.go_on(x, dict(state.parts), keep, mode)
        return y, TensorState(advanced(state.positions, x.shape[1], lengths), parts)

    @abstractmethod
    def empty(self, batch_size: int) -> Parts:
        """What the state holds before the first position; the rows are the first axis of each tensor."""

    @abstractmethod
    def go_on(self, x: Tensor, parts: Parts, keep: Bool[Tensor, "b n"] | None, mode: Mode) -> tuple[Tensor, Parts]:
        """`extend`, of what a state holds; `keep` are the positions that count, or None for all."""

    def check_state(self, state: object, rows: int) -> None:
        """Refuse a state that this layer cannot have made for so many rows."""
        if torch.compiler.is_compiling():
            return
        if not isinstance(state, TensorState):
            raise not_a_state(self, state, rows)
        if rows not in self._expected:
            # Kept, because a step asks every time.
            self._expected = {rows: {name: (x.shape, x.dtype) for name, x in self.empty(rows).items()}}
        check_parts(self, state.parts, self._expected[rows], rows)

    def _apply(self, fn: Any, recurse: bool = True) -> Any:
        # A change of dtype changes what is expected of a state.
        self._expected = {}
        return super()._apply(fn, recurse)


def check_parts(
    layer: SequenceLayer,
    held: Mapping[str, Tensor],
    expected: Mapping[str, tuple[torch.Size, torch.dtype]],
    rows: int,
) -> None:
    """Refuse parts of a state of other names, shapes or dtypes than this layer makes for so many rows."""
    if held.keys() != expected.keys():
        raise ValueError(
            f"the state holds {', '.join(map(str, held)) or 'nothing'}, that of {type(layer).__name__} "
            f"{', '.join(expected)}; another layer made it: start from this layer's initial_state({rows})"
        )
    for name, (shape, dtype) in expected.items():
        part = held[name]
        if part.shape != shape or part.dtype != dtype:
            raise ValueError(
                f"the state's {name!r} has the shape {tuple(part.shape)} and dtype {part.dtype}, expected "
                f"{tuple(shape)} and {dtype}; another model or batch made it: start from this layer's "
                f"initial_state({rows})"
            )


def owned(parts: Mapping[str, Tensor]) -> Parts:
    """In memory of their own: a view would keep alive all positions that it was cut from."""
    return {name: part.clone(memory_format=torch.contiguous_format) for name, part in parts.items()}
