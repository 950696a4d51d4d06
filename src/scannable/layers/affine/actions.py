"""The monoids (R, ∘, I) of Def. "Affine recurrence": what a row may do to its state before it adds to it.

A state has the axes (..., k, v) for a memory of outer products, or any others for an element-wise row. Every tensor of
an action may carry batch and time in front. Decays are kept as logarithms: their products are sums, a decay of exactly
0 is -inf, and no product of many small ones underflows on the way.
"""

from dataclasses import dataclass
from typing import Any, Protocol, runtime_checkable

import torch
from torch import Tensor


@runtime_checkable
class Action(Protocol):
    """An E: it acts on states, and two of them compose."""

    def act(self, state: Tensor) -> Tensor:
        """E ▶ s."""
        ...

    def after(self, older: Any) -> "Action":
        """The action that applies `older` first and this one then: E ∘ E_older. Both must be closed."""
        ...

    def closed(self) -> "Action":
        """The same action in a type that composes to itself."""
        ...

    def unit(self) -> "Action":
        """I, for the states that this action is for, without its axes of batch and time."""
        ...


@dataclass(frozen=True, eq=False)
class Identity:
    """I: nothing is forgotten."""

    def act(self, state: Tensor) -> Tensor:
        return state

    def after(self, older: "Identity") -> "Identity":
        return self

    def closed(self) -> "Identity":
        return self

    def unit(self) -> "Identity":
        return self


@dataclass(frozen=True, eq=False)
class Diagonal:
    """diag(exp log_decay): its axes are the first ones of the state, and it is the same along those that follow."""

    log_decay: Tensor

    def act(self, state: Tensor) -> Tensor:
        decay = self.log_decay.exp()
        return decay.reshape(decay.shape + (1,) * (state.ndim - decay.ndim)) * state

    def after(self, older: "Diagonal") -> "Diagonal":
        return type(self)(self.log_decay + older.log_decay)

    def closed(self) -> "Diagonal":
        return self

    def unit(self) -> "Diagonal":
        return type(self)(torch.zeros_like(self.log_decay[0, 0]))


class Scalar(Diagonal):
    """exp(log_decay) · I: one number for each head."""


@dataclass(frozen=True, eq=False)
class Dense:
    """Any matrix over the key axis of the state."""

    matrix: Tensor

    def act(self, state: Tensor) -> Tensor:
        return self.matrix @ state

    def after(self, older: "Dense") -> "Dense":
        return Dense(self.matrix @ older.matrix)

    def closed(self) -> "Dense":
        return self

    def unit(self) -> "Dense":
        one = torch.eye(self.matrix.shape[-1], dtype=self.matrix.dtype, device=self.matrix.device)
        return Dense(one.expand(self.matrix.shape[2:]))


class _ComposesAsMatrix:
    def after(self, older: Any) -> Action:
        raise TypeError(f"two {type(self).__name__} actions do not compose to a third; compose their closed() forms")

    def closed(self) -> Dense:
        raise NotImplementedError

    def unit(self) -> Dense:
        return self.closed().unit()


@dataclass(frozen=True, eq=False)
class DiagonalPlusRankOne(_ComposesAsMatrix):
    """diag(exp log_decay) + left rightᵀ, with all three of the axes (..., k)."""

    log_decay: Tensor
    left: Tensor
    right: Tensor

    def act(self, state: Tensor) -> Tensor:
        return self.log_decay.exp()[..., None] * state + self.left[..., None] * (self.right[..., None, :] @ state)

    def closed(self) -> Dense:
        return Dense(torch.diag_embed(self.log_decay.exp()) + self.left[..., None] * self.right[..., None, :])


@dataclass(frozen=True, eq=False)
class RankOne(_ComposesAsMatrix):
    """exp(log_scale) · (I - strength key keyᵀ), as in the delta rule: forget along one direction."""

    key: Tensor
    strength: Tensor
    log_scale: Tensor | None = None

    def act(self, state: Tensor) -> Tensor:
        held = state if self.log_scale is None else self.log_scale.exp()[..., None, None] * state
        return held - (self.strength[..., None] * self.key)[..., None] * (self.key[..., None, :] @ held)

    def closed(self) -> Dense:
        one = torch.eye(self.key.shape[-1], dtype=self.key.dtype, device=self.key.device)
        matrix = one - (self.strength[..., None] * self.key)[..., None] * self.key[..., None, :]
        return Dense(matrix if self.log_scale is None else self.log_scale.exp()[..., None, None] * matrix)
