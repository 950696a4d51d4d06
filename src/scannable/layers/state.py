"""What a stream remembers between positions: rows that each have their own position, and can be taken apart and joined.

Every layer and every model has a state of this kind; a batch of streams is one state, whose rows may be anywhere.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, TypeVar

import torch
from torch import Tensor

S = TypeVar("S", bound="State")


class State(ABC):
    """The rows of a batch after `positions` positions each; what is in it depends on the layer.

        branch = state.fork()                  # an independent stream that goes on from here
        state = sc.join([a, b])                # the rows of both, wherever they are
        one = state.row(1)                     # one of them, alone
        some = state.select([3, 0, 0])         # keep, drop, repeat and reorder rows
        state.position, state.nbytes           # of the row that is furthest; bytes held by all

    Under `no_grad`, `extend`, `prefill` and `step` may write into the buffers of the state that they are given and hand
    them on, so fork first to branch; with gradients nothing is written.

    >>> layer = sc.zoo.GLA(width=16, heads=2)
    >>> _, a = layer.extend(torch.randn(1, 7, 16), layer.initial_state(1))
    >>> both = sc.join([a, layer.initial_state(1)])
    >>> both.positions, both.select([1, 0, 0]).positions, both.row(0).position
    ((7, 0), (0, 7, 7), 7)
    >>> isinstance(both, sc.State), both.nbytes
    (True, 512)
    """

    positions: tuple[int, ...]
    """Positions consumed, by each row."""

    @property
    def position(self) -> int:
        """Positions consumed by the row that is furthest."""
        return max(self.positions, default=0)

    @property
    def batch_size(self) -> int:
        """How many rows there are."""
        return len(self.positions)

    @property
    def nbytes(self) -> int:
        """Bytes held; what rows share is counted once."""
        return sum(tensor.nbytes for tensor in {id(tensor): tensor for tensor in self.tensors()}.values())

    @abstractmethod
    def tensors(self) -> Iterator[Tensor]:
        """All that it holds."""

    @abstractmethod
    def map(self: S, function: Callable[[Tensor], Tensor]) -> S:
        """The same with `function` of every tensor; one that is held twice is mapped once."""

    @abstractmethod
    def fork(self: S) -> S:
        """An independent stream that goes on from here: what nobody writes into is shared."""

    @abstractmethod
    def select(self: S, rows: Sequence[int]) -> S:
        """The streams of these rows, in this order, in memory of their own."""

    @classmethod
    @abstractmethod
    def joined(cls: type[S], states: Sequence[Any]) -> S:
        """The rows of all states, in order, in memory of their own. See `join`."""

    def row(self: S, row: int) -> S:
        """One stream, as a batch of one."""
        return self.select([row])

    def detach(self: S) -> S:
        """The state cut from its history, for truncated back-propagation."""
        return self.map(Tensor.detach)

    def to(self: S, target: torch.device | torch.dtype | str) -> S:
        """The state on another device or in another floating-point type."""
        return self.map(lambda tensor: tensor.to(_target_of(tensor, target)))

    def usable(self: S) -> S:
        """The state where gradients may be recorded: tensors that were made under `inference_mode` are copied."""
        if torch.is_inference_mode_enabled() or not any(tensor.is_inference() for tensor in self.tensors()):
            return self
        return self.map(Tensor.clone)


def _target_of(tensor: Tensor, target: torch.device | torch.dtype | str) -> torch.device | torch.dtype | str:
    """What a tensor is converted to: of numbers that are not real a precision has its own kind, or none."""
    if not isinstance(target, torch.dtype) or tensor.is_floating_point():
        return target
    return target.to_complex() if tensor.is_complex() else tensor.dtype


def join(states: Sequence[S]) -> S:
    """One batch of all the rows of `states`, in order, wherever they are. The states stay as they were.

    >>> layer = sc.zoo.Mamba(width=16)
    >>> _, a = layer.extend(torch.randn(2, 7, 16), layer.initial_state(2))
    >>> sc.join([a, layer.initial_state(1)]).positions
    (7, 7, 0)
    """
    states = list(states)
    if not states:
        raise ValueError("join needs at least one state; start with initial_state(1)")
    kind = type(states[0])
    for i, state in enumerate(states):
        if not isinstance(state, State):
            raise TypeError(f"states[{i}] is a {type(state).__name__}; join takes states of streams")
        if type(state) is not kind:
            raise TypeError(
                f"states[{i}] is a {type(state).__name__}, states[0] a {kind.__name__}; states of one model join"
            )
    return kind.joined(states)


def checked_rows(rows: Sequence[int], count: int) -> list[int]:
    """Row numbers, or an error."""
    for row in rows:
        if not 0 <= row < count:
            raise IndexError(f"row {row} of a batch of {count} streams; rows count from 0")
    return list(rows)


@dataclass(frozen=True, eq=False)
class TensorState(State):
    """Named tensors whose first axis are the rows. Nothing is ever written into them, so a fork shares them."""

    positions: tuple[int, ...]
    parts: Mapping[str, Tensor] = field(repr=False)

    def __getitem__(self, name: str) -> Tensor:
        return self.parts[name]

    def tensors(self) -> Iterator[Tensor]:
        return iter(self.parts.values())

    def map(self, function: Callable[[Tensor], Tensor]) -> "TensorState":
        return replace(self, parts={name: function(part) for name, part in self.parts.items()})

    def fork(self) -> "TensorState":
        return self

    def select(self, rows: Sequence[int]) -> "TensorState":
        chosen = checked_rows(rows, self.batch_size)
        parts = {
            name: part[torch.tensor(chosen, dtype=torch.int64, device=part.device)] for name, part in self.parts.items()
        }
        return TensorState(tuple(self.positions[row] for row in chosen), parts)

    @classmethod
    def joined(cls, states: Sequence["TensorState"]) -> "TensorState":
        first = states[0].parts
        for i, state in enumerate(states):
            for name in first.keys() | state.parts.keys():
                here, there = (_kind(held.get(name)) for held in (state.parts, first))
                if here != there:
                    raise ValueError(
                        f"the {name!r} of states[{i}] is {here}, of states[0] {there}; other layers made them"
                    )
        parts = {name: torch.cat([state.parts[name] for state in states]) for name in first}
        return TensorState(tuple(p for state in states for p in state.positions), parts)


def _kind(tensor: Tensor | None) -> str:
    return "missing" if tensor is None else f"{tuple(tensor.shape[1:])} of {tensor.dtype}"


def advanced(positions: tuple[int, ...], n: int, lengths: Any) -> tuple[int, ...]:
    """The positions of rows that took n more, or their own number of them."""
    if lengths is None:
        return tuple(position + n for position in positions)
    if isinstance(lengths, Tensor) and lengths.is_meta:
        raise ValueError(
            "lengths on meta cannot be looked at: a state says where each row stands; pass them as a list, or a tensor "
            "on the CPU"
        )
    counts = lengths.tolist() if isinstance(lengths, Tensor) else lengths
    return tuple(position + int(count) for position, count in zip(positions, counts, strict=True))
