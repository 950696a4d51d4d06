"""What every sequence layer can do: x (b, n, width) to y (b, n, width), in parallel or from any state on."""

from abc import ABC, abstractmethod
from typing import Any, ClassVar

import torch
from jaxtyping import Bool, Float
from torch import Tensor, nn

from scannable.layers.affine.recurrence import MODES, Mode
from scannable.layers.packing import over_documents
from scannable.layers.state import State
from scannable.nn.device import may_look
from scannable.scan.documents import documents_of


class SequenceLayer(nn.Module, ABC):
    """What every layer of the zoo can do.

    Args:
        width: of input and output.
        heads: into how many parts the state is cut. Rows in which each channel is its own head take it too, so that
            one row can stand for another, and it changes nothing.

    >>> isinstance(sc.zoo.GLA(width=16), sc.zoo.SequenceLayer)
    True
    >>> sc.zoo.GLA.title, sc.zoo.GLA.spd_class, sc.zoo.GLA(width=16).state_nbytes(position=1000)
    ('GLA', '(n, 1)', 128)
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

    def forward(
        self, x: Float[Tensor, "b n d"], *, lengths: Any = None, starts: Any = None, mode: Mode = "chunkwise"
    ) -> Float[Tensor, "b n d"]:
        """All outputs, from the empty state.

        Args:
            lengths: how many positions of each row count; what stands behind them never matters.
            starts: where documents that are packed in a row begin, each as if it were alone: places, the same in all
                rows (or cumulative lengths); a sequence of them for each row; or a mask (b, n).
            mode: which of the equal ways to run a recurrence.
        """
        if x.numel() == 0:
            self.check(x, lengths, mode)
            return x
        if starts is None:
            return self.extend(x, self.initial_state(x.shape[0]), lengths=lengths, mode=mode)[0]
        self.check(x, None, mode)
        documents = documents_of(x.shape[0], x.shape[1], lengths=lengths, starts=starts)
        return over_documents(x, documents, lambda rows, counts: self.forward(rows, lengths=counts, mode=mode))

    @abstractmethod
    def initial_state(self, batch_size: int) -> State:
        """The state before the first position of `batch_size` streams."""

    @abstractmethod
    def extend(
        self, x: Float[Tensor, "b n d"], state: Any, *, lengths: Any = None, mode: Mode = "chunkwise"
    ) -> tuple[Float[Tensor, "b n d"], State]:
        """Outputs for n more positions and the state behind them; differentiable in `x`, in the weights and in `state`.

        Args:
            lengths: how many positions of each row count; what stands behind them changes no state and no output that
                counts. None: all. On another device than a CPU, a list or a CPU tensor saves a wait.
            mode: which of the equal ways to run a recurrence.
        """

    @abstractmethod
    def check_state(self, state: object, rows: int) -> None:
        """Refuse a state that this layer cannot have made for so many rows."""

    def step(self, x: Float[Tensor, "b d"], state: State) -> tuple[Float[Tensor, "b d"], State]:
        """One position."""
        y, state = self.extend(x[:, None], state, mode="step")
        return y[:, 0], state

    def state_nbytes(self, position: int, batch_size: int = 1) -> int:
        """Bytes of a state after `position` positions; for an affine row the same after any number."""
        return self.initial_state(batch_size).nbytes

    def check(self, x: Tensor, lengths: Any, mode: str) -> Bool[Tensor, "b n"] | None:
        """Refuse what no row can take; the positions that count, or None for all."""
        if x.ndim != 3 or x.shape[-1] != self.width:
            raise ValueError(f"x has the shape {tuple(x.shape)}; expected (batch, length, {self.width})")
        check_mode(mode)
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


def check_mode(mode: str) -> None:
    """Refuse what is no way to run a recurrence; a layer without one has the same way for all."""
    if mode not in MODES:
        raise ValueError(f"mode={mode!r} is none of {', '.join(MODES)}")


def not_a_state(layer: SequenceLayer, state: object, rows: int) -> Exception:
    """The error for what this layer cannot go on from."""
    if isinstance(state, State):
        return ValueError(
            f"a {type(state).__name__} is no state of {type(layer).__name__}; another layer made it: start from this "
            f"layer's initial_state({rows})"
        )
    return TypeError(
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
