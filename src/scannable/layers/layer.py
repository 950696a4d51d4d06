"""What every sequence layer can do: x (b, n, width) to y (b, n, width), in parallel or from any state on."""

from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import Any, ClassVar

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn

from scannable.layers.affine.recurrence import MODES, Mode
from scannable.nn.device import may_look

LayerState = dict[str, Any]
"""What a layer remembers, by name; an affine layer has its affine state under "s"."""


class SequenceLayer(nn.Module, ABC):
    """What every layer of the zoo can do.

    Args:
        width: of input and output.
        heads: into how many parts the state is cut. Rows in which each channel is its own head take it too, so that
            one row can stand for another, and it changes nothing.
    """

    title: ClassVar[str]
    action: ClassVar[str]
    """What E_t is, in the words of Table 1."""
    spd_class: ClassVar[str] = "(n, 1)"
    """Parallel work and held memory, as in the paper's SPD classes."""
    usual_mlp: ClassVar[bool] = True
    """Whether the row's authors follow it with an MLP in each block."""

    def __init__(self, width: int, heads: int = 4) -> None:
        super().__init__()
        check_sizes(width=width, heads=heads)
        self.width: int = width
        self.heads: int = heads
        self._expected: dict[int, dict[str, tuple[torch.Size, torch.dtype]]] = {}

    def forward(self, x: Float[Tensor, "b n d"], *, mode: Mode = "chunkwise") -> Float[Tensor, "b n d"]:
        """All outputs, from the empty state."""
        return self.extend(x, self.initial_state(x.shape[0]), mode=mode)[0]

    @abstractmethod
    def initial_state(self, batch_size: int) -> LayerState:
        """The state before the first position."""

    @abstractmethod
    def extend(
        self,
        x: Float[Tensor, "b n d"],
        state: LayerState,
        *,
        lengths: Int[Tensor, " b"] | None = None,
        mode: Mode = "chunkwise",
    ) -> tuple[Float[Tensor, "b n d"], LayerState]:
        """Outputs for n more positions and the state behind them; differentiable in `x` and in `state`.

        Args:
            lengths: how many positions of each row count; what stands behind them changes no state and no output that
                counts. None: all. That they lie between 0 and n is checked on a CPU, where a look costs nothing.
            mode: which of the three equal ways to run the recurrence.
        """

    def step(self, x: Float[Tensor, "b d"], state: LayerState) -> tuple[Float[Tensor, "b d"], LayerState]:
        """One position."""
        y, state = self.extend(x[:, None], state, mode="step")
        return y[:, 0], state

    def state_nbytes(self, position: int, batch_size: int = 1) -> int:
        """Bytes of a state after `position` positions; for an affine row the same after any number."""
        return held_bytes(self.initial_state(batch_size))

    def check_state(self, state: LayerState, rows: int) -> None:
        """Refuse a state that this layer cannot have made for so many rows."""
        if torch.compiler.is_compiling():
            return
        check_is_state(self, state)
        if rows not in self._expected:
            # Kept, because a step asks every time.
            self._expected = {rows: {name: (x.shape, x.dtype) for name, x in self.initial_state(rows).items()}}
        expected = self._expected[rows]
        if state.keys() != expected.keys():
            raise ValueError(
                f"the state holds {', '.join(map(str, state)) or 'nothing'}, that of {type(self).__name__} "
                f"{', '.join(expected)}; another row made it: start from this layer's initial_state({rows})"
            )
        for name, (shape, dtype) in expected.items():
            held = state[name]
            if held.shape != shape or held.dtype != dtype:
                raise ValueError(
                    f"the state's {name!r} has the shape {tuple(held.shape)} and dtype {held.dtype}, expected "
                    f"{tuple(shape)} and {dtype}; another model or batch made it: start from this layer's "
                    f"initial_state({rows})"
                )

    def _apply(self, fn: Any, recurse: bool = True) -> Any:
        # A change of dtype changes what is expected of a state.
        self._expected = {}
        return super()._apply(fn, recurse)

    def check_position(self, state: LayerState, position: int) -> None:
        """Refuse a state that is not after so many positions, in a layer that can tell."""

    def check(self, x: Tensor, lengths: Tensor | None, mode: str) -> Bool[Tensor, "b n"] | None:
        """Refuse what no row can take; the positions that count, or None for all."""
        if x.ndim != 3 or x.shape[-1] != self.width:
            raise ValueError(f"x has the shape {tuple(x.shape)}; expected (batch, length, {self.width})")
        if mode not in MODES:
            raise ValueError(f"mode={mode!r} is none of {', '.join(MODES)}")
        if lengths is None:
            return None
        lengths = torch.as_tensor(lengths, device=x.device)
        if lengths.shape != x.shape[:1] or lengths.is_floating_point():
            raise ValueError(
                f"lengths have the shape {tuple(lengths.shape)} and dtype {lengths.dtype}; expected one whole number "
                f"for each of the {x.shape[0]} rows"
            )
        look = may_look(lengths) and lengths.numel()
        if look and not 0 <= int(lengths.min()) <= int(lengths.max()) <= x.shape[1]:
            raise ValueError(f"lengths {lengths.tolist()} must lie between 0 and {x.shape[1]}, the length of x")
        return torch.arange(x.shape[1], device=x.device) < lengths[:, None]

    def zeros(self, *shape: int, dtype: torch.dtype | None = None) -> Tensor:
        """Zeros beside the layer's weights; in their dtype unless told."""
        weight = next(self.parameters())
        return torch.zeros(shape, dtype=dtype or weight.dtype, device=weight.device)

    @property
    def memory_dtype(self) -> torch.dtype:
        """Half precision forgets what it adds up, so a state is float32 at least."""
        return torch.promote_types(next(self.parameters()).dtype, torch.float32)


def check_is_state(layer: SequenceLayer, state: object) -> None:
    """Refuse what is no state of any layer."""
    if not isinstance(state, dict):
        raise TypeError(
            f"{type(layer).__name__} goes on from a state of its initial_state, extend or step, not from "
            f"{type(state).__name__}"
        )


def check_sizes(**sizes: object) -> None:
    """Refuse sizes that are not whole numbers of at least 1."""
    for name, value in sizes.items():
        if type(value) is not int or value < 1:
            raise ValueError(f"{name}={value!r} must be a whole number of at least 1")


def head_size(width: int, heads: int) -> int:
    """Width over heads, which must divide it."""
    check_sizes(width=width, heads=heads)
    if width % heads:
        raise ValueError(f"width={width} is not a multiple of heads={heads}; choose heads that divide it")
    return width // heads


def owned(state: Mapping[str, Tensor]) -> LayerState:
    """The state in memory of its own: a view would keep alive all positions that it was cut from."""
    return {name: part.clone(memory_format=torch.contiguous_format) for name, part in state.items()}


def held_bytes(state: LayerState) -> int:
    """Bytes of everything in a layer's state."""
    return sum(part.nbytes for part in state.values())
