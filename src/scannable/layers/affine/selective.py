"""The selective state space of S6 and Mamba: N decays for every channel, each a function of the input.

    S_t = exp(Δ_t ⊙ A) ⊙ S_(t-1) + B_t (Δ_t ⊙ x_t)ᵀ        y_t = S_tᵀ C_t

States are N times the size of the input. They are never held for all t: forward keeps some, and backward computes the
others again, a stretch at a time.

On a CPU a stretch is a few blocks of `BLOCK` positions that go side by side, as in `elementwise.py`; inside a block
positions come one after another, and where a single state fills a lane each has 31 launches in forward and backward.
Where launches count, a stretch is as many positions as memory is set aside for, and all its states are computed at once
with O(log) launches: 328 in forward and backward for 4,096 positions, 0.08 a position.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch
from jaxtyping import Bool, Float
from torch import Tensor
from torch.utils.checkpoint import checkpoint

from scannable.layers.affine.actions import Diagonal
from scannable.layers.affine.blocks import lanes_for, positions_at_once
from scannable.layers.affine.elementwise import LOG2_E, elementwise_states
from scannable.layers.affine.monoid import Affine
from scannable.layers.affine.recurrence import Recurrence

BLOCK = 32


@dataclass(frozen=True)
class Selective(Recurrence):
    """The state is (b, N, d), like a memory with B as key, C as query and Δ x as value."""

    x: Float[Tensor, "b n d"]
    step_size: Float[Tensor, "b n d"]
    """Δ, not negative."""
    rate: Float[Tensor, "N d"]
    """A, negative; the same at every t."""
    key: Float[Tensor, "b n N"]
    """B."""
    query: Float[Tensor, "b n N"]
    """C."""

    def updates(self) -> Affine:
        value = self.step_size * self.x
        decay = self.step_size[:, :, None] * self.rate
        return Affine(Diagonal(decay), self.key[..., None] * value[:, :, None])

    def read(self, states: Tensor) -> Tensor:
        return (self.query[..., None, :] @ states)[..., 0, :]

    def chunkwise(self, start: Tensor) -> tuple[Tensor, Tensor]:
        value = self.step_size * self.x
        stretch = positions_at_once(start.device, start.numel())
        if stretch is not None:
            return _by_long_stretches(self.step_size, value, self.rate, self.key, self.query, start, stretch)
        outputs: Any = _SelectiveScan.apply(self.step_size, value, self.rate, self.key, self.query, start)
        return outputs

    def padded(self, keep: Bool[Tensor, "b n"]) -> "Selective":
        step_size = self.step_size.where(keep[..., None], 0)
        return type(self)(self.x, step_size, self.rate, self.key, self.query)


def _by_long_stretches(
    delta: Tensor, value: Tensor, rate: Tensor, key: Tensor, query: Tensor, start: Tensor, length: int
) -> tuple[Tensor, Tensor]:
    """All states of `length` positions at once; none is kept for backward but the one before them."""
    rate2, state, outputs = rate * LOG2_E, start, list[Tensor]()

    def read(d: Tensor, u: Tensor, k: Tensor, q: Tensor, rate2: Tensor, state: Tensor) -> tuple[Tensor, Tensor]:
        states = elementwise_states((d[:, :, None] * rate2).exp2(), k[..., None] * u[:, :, None], state)
        # In memory of its own: a view would keep all states alive.
        return (q[..., None, :] @ states)[..., 0, :], states[:, -1].clone()

    for piece in zip(*(x.split(length, 1) for x in (delta, value, key, query)), strict=True):
        # Nothing in it is random, and asking a device for the state of its generator would wait for it.
        y, state = checkpoint(read, *piece, rate2, state, use_reentrant=False, preserve_rng_state=False)
        outputs.append(y)
    return torch.cat(outputs, 1), state


@dataclass
class _Stretch:
    """Some blocks of equal length that lie side by side: positions `first` to `first + blocks * length`."""

    first: int
    blocks: int
    length: int

    def lanes(self, x: Tensor) -> Tensor:
        """(b, n, ...) as (b, blocks, length, ...), a view."""
        return x[:, self.first : self.first + self.blocks * self.length].unflatten(1, (self.blocks, self.length))


def _stretches(n: int, width: int) -> Iterator[_Stretch]:
    """Cut n positions into stretches whose states side by side fill a lane for each place in a block."""
    blocks, first = lanes_for(width), 0
    while first < n:
        here = min(blocks, max(1, (n - first) // BLOCK))
        length = min(BLOCK, n - first)
        yield _Stretch(first, here, length)
        first += here * length


class _SelectiveScan(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, delta: Tensor, value: Tensor, rate: Tensor, key: Tensor, query: Tensor, start: Tensor
    ) -> tuple[Tensor, Tensor]:
        delta, value, key, query = (x.contiguous() for x in (delta, value, key, query))
        rate2 = rate * LOG2_E
        outputs, state, kept = torch.empty_like(value), start, list[Tensor]()
        for stretch in _stretches(value.shape[1], start.numel()):
            d, u, k, q, y = (stretch.lanes(x) for x in (delta, value, key, query, outputs))
            starts, state = _carried(d, u, k, rate2, state)
            kept.append(starts)
            memory, decay = starts.clone(), torch.empty_like(starts)
            for i in range(stretch.length):
                _update(memory, d[:, :, i], u[:, :, i], k[:, :, i], rate2, decay, memory)
                y[:, :, i] = (q[:, :, i, None] @ memory)[:, :, 0]
        ctx.save_for_backward(delta, value, rate, key, query, *kept)
        return outputs, state

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, *grads: Tensor) -> Any:  # pyright: ignore[reportIncompatibleMethodOverride]
        delta, value, rate, key, query, *kept = ctx.saved_tensors
        grad, later = grads  # of the outputs, and of the state behind the positions that are still to come
        grad_delta, grad_value = torch.empty_like(delta), torch.empty_like(value)
        grad_key, grad_query = torch.empty_like(key), torch.empty_like(query)
        grad_rate, rate2 = torch.zeros_like(rate), rate * LOG2_E
        stretches = list(_stretches(value.shape[1], kept[0][:, 0].numel()))
        room = _Room()
        for stretch, starts in zip(reversed(stretches), reversed(kept), strict=True):
            d, u, k, q, g = (stretch.lanes(x) for x in (delta, value, key, query, grad))
            to_d, to_u, to_k, to_q = (stretch.lanes(x) for x in (grad_delta, grad_value, grad_key, grad_query))
            memories, decays = room.like(starts, stretch.length)
            memories[0] = starts
            for i in range(stretch.length):
                _update(memories[i], d[:, :, i], u[:, :, i], k[:, :, i], rate2, decays[i], memories[i + 1])
            later, adjoint = _carried_back(decays, d, q, g, rate2, later)
            for i in reversed(range(stretch.length)):
                # What the loss wants of the state behind position i; before, `adjoint` is what later positions want.
                wanted = adjoint.addcmul_(q[:, :, i, :, None], g[:, :, i, None])
                to_q[:, :, i] = (g[:, :, i, None] @ memories[i + 1].mT)[:, :, 0]
                to_k[:, :, i] = (u[:, :, i, None] @ wanted.mT)[:, :, 0]
                to_u[:, :, i] = (k[:, :, i, None] @ wanted)[:, :, 0]
                adjoint = wanted.mul_(decays[i])
                of_log_decay = torch.mul(memories[i], adjoint, out=memories[i + 1])
                to_d[:, :, i] = torch.mul(of_log_decay, rate, out=decays[i]).sum(2)
                grad_rate += of_log_decay.mul_(d[:, :, i, None]).sum((0, 1))
        return grad_delta, grad_value, grad_rate, grad_key, grad_query, later


class _Room:
    """Memory for the states and decays of one stretch, used again for the next: fresh pages cost more than the sums."""

    def __init__(self) -> None:
        self.held: tuple[Tensor, Tensor] | None = None

    def like(self, starts: Tensor, length: int) -> tuple[Tensor, Tensor]:
        if self.held is None or self.held[1].shape != (length, *starts.shape):
            self.held = starts.new_empty((length + 1, *starts.shape)), starts.new_empty((length, *starts.shape))
        return self.held


def _update(memory: Tensor, d: Tensor, u: Tensor, k: Tensor, rate2: Tensor, decay: Tensor, out: Tensor) -> None:
    """One position in every lane: the decay into `decay`, the new memory into `out`."""
    torch.mul(d[:, :, None], rate2, out=decay).exp2_()
    torch.mul(memory, decay, out=out).addcmul_(k[..., None], u[:, :, None])


def _carried(d: Tensor, u: Tensor, k: Tensor, rate2: Tensor, start: Tensor) -> tuple[Tensor, Tensor]:
    """The state before each block of a stretch, and the one behind the last."""
    own = start.new_zeros((*d.shape[:2], *rate2.shape))
    decay = torch.empty_like(own)
    for i in range(d.shape[2]):
        _update(own, d[:, :, i], u[:, :, i], k[:, :, i], rate2, decay, own)
    through = torch.mul(d.sum(2)[:, :, None], rate2, out=decay).exp2_()
    starts = [start]
    for j in range(d.shape[1]):
        starts.append(torch.addcmul(own[:, j], through[:, j], starts[-1]))
    return torch.stack(starts[:-1], 1), starts[-1]


def _carried_back(
    decays: Tensor, d: Tensor, q: Tensor, g: Tensor, rate2: Tensor, later: Tensor
) -> tuple[Tensor, Tensor]:
    """What is wanted of the state before the stretch, and of the state behind each of its blocks."""
    own = torch.zeros_like(decays[0])
    for i in reversed(range(len(decays))):
        own.addcmul_(q[:, :, i, :, None], g[:, :, i, None]).mul_(decays[i])
    through = (d.sum(2)[:, :, None] * rate2).exp2_()
    wanted = [later]
    for j in reversed(range(d.shape[1])):
        wanted.append(torch.addcmul(own[:, j], through[:, j], wanted[-1]))
    return wanted[-1], torch.stack(wanted[-2::-1], 1)
