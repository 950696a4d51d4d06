"""Several steps of the delta rule for each position, run by its kernel: a position becomes as many small ones."""

from dataclasses import dataclass

import torch
from jaxtyping import Bool, Float
from torch import Tensor
from torch.nn import functional

from scannable.layers.affine.chunkwise import DeltaRule
from scannable.layers.affine.monoid import Affine, compose, on_tensors
from scannable.layers.affine.recurrence import Recurrence


@dataclass(frozen=True)
class DeltaProductRule(Recurrence):
    """S_t = H_(t,s) ... H_(t,1) α_t S_(t-1) + what the steps write, o_t = S_tᵀ q_t, with s steps j in a position t:

        S <- (I - β_(t,j) k_(t,j) k_(t,j)ᵀ) S + β_(t,j) k_(t,j) v_(t,j)ᵀ     for j = 1 to s

    The memory fades once, before the first step, and is read once, behind the last.
    """

    query: Float[Tensor, "b n h k"]
    key: Float[Tensor, "b n s h k"]
    value: Float[Tensor, "b n s h v"]
    strength: Float[Tensor, "b n s h"]
    log_decay: Float[Tensor, "b n h"] | None = None

    def single_steps(self) -> DeltaRule:
        """All n · s steps, one after another: only the first of a position fades, only the last of it asks."""
        others = self.key.shape[2] - 1
        query = functional.pad(self.query[:, :, None], (0, 0, 0, 0, others, 0)).flatten(1, 2)
        log_decay = self.log_decay
        if log_decay is not None:
            log_decay = functional.pad(log_decay[:, :, None], (0, 0, 0, others)).flatten(1, 2)
        return DeltaRule(
            query, self.key.flatten(1, 2), self.value.flatten(1, 2), self.strength.flatten(1, 2), log_decay
        )

    def updates(self) -> Affine:
        steps = on_tensors(self._by_position, self.single_steps().updates().closed())
        of_position = on_tensors(lambda x: x[:, :, 0], steps)
        for j in range(1, self.key.shape[2]):
            of_position = compose(of_position, on_tensors(lambda x, j=j: x[:, :, j], steps))
        return of_position

    def read(self, states: Tensor) -> Tensor:
        return (self.query[..., None, :] @ states)[..., 0, :]

    def chunkwise(self, start: Tensor) -> tuple[Tensor, Tensor]:
        outputs, end = self.single_steps().chunkwise(start)
        return self._by_position(outputs)[:, :, -1], end

    def padded(self, keep: Bool[Tensor, "b n"]) -> "DeltaProductRule":
        log_decay = None if self.log_decay is None else self.log_decay.where(keep[..., None], 0)
        strength = self.strength.where(keep[..., None, None], 0)
        return type(self)(self.query, self.key, self.value, strength, log_decay)

    def _by_steps(self, start: Tensor) -> tuple[Tensor, Tensor]:
        # A vector at a time: the products of `updates` are matrices.
        steps, state, held = self.single_steps().updates(), start, list[Tensor]()
        for t in range(steps.offset.shape[1]):
            state = steps.at(t)(state)
            held.append(state)
        return self.read(torch.stack(held[self.key.shape[2] - 1 :: self.key.shape[2]], 1)), state

    def _by_position(self, x: Tensor) -> Tensor:
        """(b, n · s, ...) as (b, n, s, ...)."""
        return x.unflatten(1, (-1, self.key.shape[2]))
