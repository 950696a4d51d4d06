"""The state of a stack of layers."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field

from torch import Tensor

from scannable.layers.affine.actions import Scalar
from scannable.layers.affine.monoid import Affine
from scannable.layers.attention_state import AttentionState
from scannable.layers.log_linear_state import LogLinearState, RowsAtOnePosition
from scannable.layers.psm_state import ChunkBuffers, PSMState
from scannable.layers.state import State, TensorState, checked_rows, join
from scannable.nn.cache import KVCache
from scannable.scan import Roots, ScanState
from scannable.scan.push import Push
from scannable.storage.registry import storable

for kind in (
    Affine,
    AttentionState,
    ChunkBuffers,
    KVCache,
    LogLinearState,
    PSMState,
    Push,
    Roots,
    RowsAtOnePosition,
    Scalar,
    ScanState,
    TensorState,
):
    # They know nothing of files.
    storable(kind)


@storable
@dataclass(frozen=True, eq=False)
class LMState(State):
    """The state of each layer."""

    positions: tuple[int, ...]
    layers: tuple[State, ...] = field(repr=False)

    def __post_init__(self) -> None:
        good = isinstance(self.positions, tuple) and isinstance(self.layers, tuple)
        if not good or any(len(layer.positions) != len(self.positions) for layer in self.layers):
            raise TypeError(f"no state of a stream: positions {self.positions!r}, layers {type(self.layers).__name__}")

    def tensors(self) -> Iterator[Tensor]:
        for layer in self.layers:
            yield from layer.tensors()

    def map(self, function: Callable[[Tensor], Tensor]) -> "LMState":
        return LMState(self.positions, tuple(layer.map(function) for layer in self.layers))

    def to(self, target: object) -> "LMState":
        return LMState(self.positions, tuple(layer.to(target) for layer in self.layers))  # pyright: ignore[reportArgumentType]

    def fork(self) -> "LMState":
        return LMState(self.positions, tuple(layer.fork() for layer in self.layers))

    def select(self, rows: Sequence[int]) -> "LMState":
        rows = checked_rows(rows, self.batch_size)
        return LMState(tuple(self.positions[row] for row in rows), tuple(layer.select(rows) for layer in self.layers))

    @classmethod
    def joined(cls, states: Sequence["LMState"]) -> "LMState":
        if len({len(state.layers) for state in states}) > 1:
            raise ValueError(f"states of {[len(state.layers) for state in states]} layers; states of one model join")
        layers = tuple(join(each) for each in zip(*(state.layers for state in states), strict=True))
        return LMState(tuple(p for state in states for p in state.positions), layers)
