"""s_t = a_t s_(t-1) + f_t, element by element: one after another inside blocks, all blocks at once.

A tree of log n levels reads and writes every element at each level. Here each is read twice and written once: a first
pass finds how each block maps the state before it, the same recurrence over blocks carries the state from one to the
next, and a second pass fills in the states. Rounding is that of the plain recurrence.

Launches: on a CPU about 4 sqrt(n) in forward and as many in backward, and one a position where a single state fills a
lane. Elsewhere at most 32 log_8(n): 94 for 4,096 positions, 133 for 65,536.
"""

from dataclasses import dataclass
from typing import Any

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from scannable.layers.affine.actions import Diagonal
from scannable.layers.affine.blocks import blocks_for, carries_by_tree
from scannable.layers.affine.monoid import Affine
from scannable.layers.affine.recurrence import Recurrence

LOG2_E = 1.4426950408889634
"""exp(x) = exp2(x LOG2_E): on a CPU exp2 is twice as fast, and 25 times where the result is 0 or almost."""


@dataclass(frozen=True)
class Elementwise(Recurrence):
    """h_t = exp(log_decay_t) ⊙ h_(t-1) + f_t, and the output is h_t itself."""

    log_decay: Float[Tensor, "b n d"]
    offset: Float[Tensor, "b n d"]

    def updates(self) -> Affine:
        return Affine(Diagonal(self.log_decay), self.offset)

    def read(self, states: Tensor) -> Tensor:
        return states

    def chunkwise(self, start: Tensor) -> tuple[Tensor, Tensor]:
        states = elementwise_states((self.log_decay * LOG2_E).exp2(), self.offset, start)
        return states, states[:, -1]

    def padded(self, keep: Bool[Tensor, "b n"]) -> "Elementwise":
        kept = keep[..., None]
        return type(self)(self.log_decay.where(kept, 0), self.offset.where(kept, 0))


def elementwise_states(decay: Tensor, offset: Tensor, start: Tensor) -> Tensor:
    """s_t = decay_t s_(t-1) + offset_t for every t of axis 1, s before the first being `start`.

    `decay` (b, n, ...) may have fewer axes than `offset`; it is then the same along the last ones.
    """
    decay = decay.reshape(decay.shape + (1,) * (offset.ndim - decay.ndim))
    states: Any = _States.apply(decay, offset, start)
    return states


class _States(torch.autograd.Function):
    """The gradient λ of the states obeys the same recurrence backwards: λ_t = g_t + a_(t+1) λ_(t+1)."""

    @staticmethod
    def forward(ctx: Any, decay: Tensor, offset: Tensor, start: Tensor) -> Tensor:
        states = torch.empty_like(offset, memory_format=torch.contiguous_format)
        _fill(decay, offset, start, states, backwards=False)
        ctx.save_for_backward(decay, start, states)
        return states

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, *grads: Tensor) -> Any:  # pyright: ignore[reportIncompatibleMethodOverride]
        decay, start, states = ctx.saved_tensors
        grad = grads[0]
        if grad.shape[1] == 0:
            return torch.zeros_like(decay), grad, torch.zeros_like(start)
        decay, start, states = (x.conj().resolve_conj() for x in (decay, start, states))
        adjoint = torch.empty_like(grad, memory_format=torch.contiguous_format)
        adjoint[:, -1] = grad[:, -1]
        _fill(decay[:, 1:], grad[:, :-1], grad[:, -1], adjoint[:, :-1], backwards=True)
        grad_decay = None
        if ctx.needs_input_grad[0]:
            grad_decay = torch.empty(decay.shape, dtype=decay.dtype, device=decay.device)
            _product(adjoint[:, :1], start[:, None], grad_decay[:, :1])
            _product(adjoint[:, 1:], states[:, :-1], grad_decay[:, 1:])
        return grad_decay, adjoint, decay[:, 0] * adjoint[:, 0]


def _product(left: Tensor, right: Tensor, out: Tensor) -> None:
    """The product, summed over the axes along which `out` has one place."""
    if out.shape == left.shape:
        torch.mul(left, right, out=out)
        return
    shared = next((axis for axis in range(2, out.ndim) if out.shape[axis] != left.shape[axis]), out.ndim)
    dots = left.flatten(shared)[..., None, :] @ right.flatten(shared)[..., None]
    out.copy_(dots.reshape(out.shape))


def _fill(decay: Tensor, offset: Tensor, start: Tensor, states: Tensor, *, backwards: bool) -> None:
    """Write the states of the recurrence along axis 1, or against it, into `states`."""
    b, n = offset.shape[:2]
    if n == 0:
        return
    blocks = blocks_for(offset.device, n, max(offset[0, 0].numel() * b, 1))
    length = n // blocks
    whole = blocks * length
    # What does not fill a block comes last, as one block of its own; it is shorter than `blocks`.
    cut = n - whole if backwards else whole
    front, rest = (slice(cut, None), slice(0, cut)) if backwards else (slice(0, cut), slice(cut, None))

    def lanes(x: Tensor) -> Tensor:
        return x[:, front].unflatten(1, (blocks, length))

    a, f, s = lanes(decay), lanes(offset), lanes(states)
    order = range(length - 1, -1, -1) if backwards else range(length)
    starts = start[:, None]
    if blocks > 1:
        first, *others = order
        through, end = a[:, :, first].clone(), f[:, :, first].clone()
        for i in others:
            torch.addcmul(f[:, :, i], a[:, :, i], end, out=end)
            through.mul_(a[:, :, i])
        starts = torch.empty_like(end)
        # The block that comes first has `start` before it; the last one's own map is not needed.
        now, later, passed = (-1, slice(-1), slice(1, None)) if backwards else (0, slice(1, None), slice(-1))
        starts[:, now] = start
        carry = _fill if carries_by_tree(offset.device) else _chain
        carry(through[:, passed], end[:, passed], start, starts[:, later], backwards=backwards)
    state = starts
    for i in order:
        state = torch.addcmul(f[:, :, i], a[:, :, i], state, out=s[:, :, i])
    if whole < n:
        last = states[:, cut] if backwards else states[:, cut - 1]
        _chain(decay[:, rest], offset[:, rest], last, states[:, rest], backwards=backwards)


def _chain(decay: Tensor, offset: Tensor, state: Tensor, states: Tensor, *, backwards: bool) -> None:
    n = offset.shape[1]
    for i in range(n - 1, -1, -1) if backwards else range(n):
        state = torch.addcmul(offset[:, i], decay[:, i], state, out=states[:, i])
