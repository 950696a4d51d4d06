"""Blocks of the tree from every rank to every rank, with gradients: one all-gather, and in backward one reduce-scatter.

All leaves of an element travel in one message of bytes. Gradients are summed in the widest of their types, and in
float32 at least.

Backward must be called on every rank. A rank that used nothing of what it got, or sent nothing that depends on a
parameter, would otherwise leave the others waiting in the reduce-scatter; so what is gathered always requires a
gradient (`anchor`), and what a rank returns is always tied to it (`tied`).
"""

from dataclasses import dataclass
from math import prod
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from scannable.distributed.messages import Group, all_gather, reduce_scatter
from scannable.scan.element_type import ElementType, Leaves

ALIGNED = 16
"""Bytes at whose multiples each leaf begins, so that it can be read where it lies."""


@dataclass(frozen=True)
class Exchange:
    """How many blocks each rank sends, and what a block is."""

    counts: tuple[int, ...]
    element: ElementType
    group: Group

    @property
    def room(self) -> int:
        """Blocks that a message has place for."""
        return max(self.counts)

    @property
    def differentiable(self) -> bool:
        return any(kind.is_floating_point or kind.is_complex for kind in self.element.dtypes)


def gathered(exchange: Exchange, mine: Leaves) -> tuple[Leaves, Tensor | None]:
    """The blocks of all ranks, one rank after the other, time first; and a token to tie what is returned to."""
    anchor = torch.zeros((), device=mine[0].device)
    if torch.is_grad_enabled() and exchange.differentiable:
        anchor.requires_grad_()
    token, *leaves = _Gather.apply(exchange, anchor, *mine)
    return list(leaves), (token if token.requires_grad else None)


def tied(leaf: Tensor, token: Tensor | None) -> Tensor:
    """The same, but backward from it reaches the token."""
    if token is None or not (leaf.is_floating_point() or leaf.is_complex()):
        return leaf
    return _Tied.apply(leaf, token)


class _Tied(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, leaf: Tensor, token: Tensor) -> Tensor:
        ctx.like = token
        return leaf.view_as(leaf)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, Tensor]:  # pyright: ignore[reportIncompatibleMethodOverride]
        # Not 0 times the gradient: what is no number would stay so.
        return gradient, torch.zeros_like(ctx.like)


class _Gather(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, exchange: Exchange, anchor: Tensor, *mine: Tensor) -> tuple[Tensor, ...]:
        ctx.exchange = exchange
        ctx.count = len(mine[0])
        element, room = exchange.element, exchange.room
        sizes = [-(-room * prod(s) * kind.itemsize // ALIGNED) * ALIGNED for s, kind in _leaves(element)]
        message = torch.zeros(sum(sizes), dtype=torch.uint8, device=mine[0].device)
        for leaf, region in zip(mine, message.split(sizes), strict=True):
            region[: leaf.nbytes] = _bytes(leaf)
        sent = sum(leaf.nbytes for leaf in mine)
        everyone = all_gather(message, exchange.group, nbytes=sent)
        found: list[Tensor] = []
        for (shape, kind), region in zip(_leaves(element), everyone.split(sizes, 1), strict=True):
            used = region[:, : room * prod(shape) * kind.itemsize].contiguous()
            rows = used.view(kind).view(len(everyone), room, *shape)
            found.append(torch.cat([row[:count] for row, count in zip(rows, exchange.counts, strict=True)]))
        ctx.mark_non_differentiable(*(leaf for leaf in found if not _has_gradient(leaf.dtype)))
        return anchor.new_zeros(()), *found

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Any, ...]:  # pyright: ignore[reportIncompatibleMethodOverride]
        exchange: Exchange = ctx.exchange
        gradients = gradients[1:]  # that of the token says nothing
        room, element = exchange.room, exchange.element
        kinds = [kind for kind in element.dtypes if _has_gradient(kind)]
        widest = torch.float32
        for kind in kinds:
            widest = torch.promote_types(widest, kind.to_real())
        parts: list[Tensor] = []
        for gradient in gradients:
            if not _has_gradient(gradient.dtype):
                continue
            numbers = torch.view_as_real(gradient) if gradient.is_complex() else gradient
            flat = numbers.reshape(len(gradient), -1).to(widest)
            whole = flat.new_zeros(len(exchange.counts), room, flat.shape[1])
            for row, some in zip(whole, flat.split(exchange.counts), strict=True):
                row[: len(some)] = some
            parts.append(whole.flatten(1))
        message = torch.cat(parts, 1)
        useful = message.nbytes // (room * len(exchange.counts)) * sum(exchange.counts)
        summed = reduce_scatter(message, exchange.group, nbytes=useful)
        found: list[Tensor | None] = []
        regions = iter(summed.split([part.shape[1] for part in parts]))
        for shape, kind in _leaves(element):
            if not _has_gradient(kind):
                found.append(None)
                continue
            numbers = next(regions).view(room, -1)[: ctx.count].to(kind.to_real())
            if kind.is_complex:
                found.append(torch.view_as_complex(numbers.reshape(ctx.count, *shape, 2)))
            else:
                found.append(numbers.reshape(ctx.count, *shape))
        return None, None, *found


def _leaves(element: ElementType) -> list[tuple[torch.Size, torch.dtype]]:
    return list(zip(element.shapes, element.dtypes, strict=True))


def _has_gradient(kind: torch.dtype) -> bool:
    return kind.is_floating_point or kind.is_complex


def _bytes(leaf: Tensor) -> Tensor:
    # A conjugate or negative view is a flag on the memory of another tensor.
    leaf = leaf.detach().resolve_conj().resolve_neg()
    return leaf.contiguous().view(-1).view(torch.uint8) if leaf.numel() else leaf.new_empty(0).to(torch.uint8)
