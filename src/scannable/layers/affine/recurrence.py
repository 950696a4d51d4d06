"""Def. "Affine recurrence" over n positions, and the three ways to run it, which are one function."""

from abc import ABC, abstractmethod
from typing import Literal, get_args

import torch
from jaxtyping import Bool
from torch import Tensor

from scannable.layers.affine.monoid import Affine, on_tensors, states
from scannable.nn.device import without_autocast

Mode = Literal["chunkwise", "scan", "step"]
MODES: tuple[Mode, ...] = get_args(Mode)


class Recurrence(ABC):
    """A row's (E_t, f_t) and its read-out, at every t of a batch of sequences; a dataclass of tensors (b, n, ...)."""

    reads_before: bool = False
    """Whether output t reads the state before the update t, not the one after it."""

    @abstractmethod
    def updates(self) -> Affine:
        """All (E_t, f_t), spelled out."""

    @abstractmethod
    def read(self, states: Tensor) -> Tensor:
        """Outputs (b, n, ...) from the states (b, n, ...) that they read."""

    @abstractmethod
    def chunkwise(self, start: Tensor) -> tuple[Tensor, Tensor]:
        """All outputs and the last state, in O(n) work, without ever holding a state for each t."""

    @abstractmethod
    def padded(self, keep: Bool[Tensor, "b n"]) -> "Recurrence":
        """The same with (I, 0) where `keep` is false: behind the first so many positions of each row."""

    def run(self, start: Tensor, mode: Mode = "chunkwise") -> tuple[Tensor, Tensor]:
        """All outputs, and the state after the last position; differentiable in everything, `start` included.

        Args:
            start: s before the first position. Its dtype is the one that everything is computed in.
            mode: "chunkwise" is the fast one; "scan" is the definition, by the prefix scan over (E, f); "step" goes
                from one position to the next.
        """
        # Under autocast the state would lose what it has to remember.
        with without_autocast(start.device):
            kind = _real(start.dtype)
            same = on_tensors(lambda leaf: leaf.to(kind) if leaf.is_floating_point() else leaf, self)
            if mode == "chunkwise":
                return same.chunkwise(start)
            if mode == "scan":
                return same._by_scan(start)
            if mode == "step":
                return same._by_steps(start)
        raise ValueError(f"mode={mode!r} is none of {', '.join(MODES)}")

    def _by_scan(self, start: Tensor) -> tuple[Tensor, Tensor]:
        after = states(self.updates(), start)
        if self.reads_before:
            return self.read(torch.cat((start[:, None], after[:, :-1]), 1)), after[:, -1]
        return self.read(after), after[:, -1]

    def _by_steps(self, start: Tensor) -> tuple[Tensor, Tensor]:
        updates, state, held = self.updates(), start, list[Tensor]()
        for t in range(updates.offset.shape[1]):
            after = updates.at(t)(state)
            held.append(state if self.reads_before else after)
            state = after
        return self.read(held[0][:, None] if len(held) == 1 else torch.stack(held, 1)), state


def _real(dtype: torch.dtype) -> torch.dtype:
    return torch.float64 if dtype in (torch.float64, torch.complex128) else torch.float32
