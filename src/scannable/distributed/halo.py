"""The positions just before a part, from the ranks that have them: one all-to-all, and its inverse in backward."""

from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from scannable.distributed.messages import Group, all_to_all
from scannable.distributed.split import Split


def before(x: Tensor, reach: int, split: Split, group: Group) -> tuple[Tensor, Tensor | None]:
    """The last `reach` positions (b, m, ...) before this rank's part x (b, n, ...), or as many as there are; and a
    token to tie what is returned to. An empty part needs none.
    """
    plan = [[_sent(split, source, target, reach) for target in range(split.ranks)] for source in range(split.ranks)]
    if not any(count for row in plan for _, count in row):
        return x[:, :0], None
    anchor = torch.zeros((), device=x.device)
    if torch.is_grad_enabled() and (x.is_floating_point() or x.is_complex()):
        anchor.requires_grad_()
    token, rows = _Before.apply(x.transpose(0, 1), anchor, plan, split.rank, group)
    return rows.transpose(0, 1), (token if token.requires_grad else None)


def _sent(split: Split, source: int, target: int, reach: int) -> tuple[int, int]:
    """Where in the part of `source` what `target` needs begins, and how many positions that is."""
    if source >= target or split.bounds[target] == split.bounds[target + 1]:
        return 0, 0
    first = max(split.bounds[source], split.bounds[target] - reach)
    count = max(0, split.bounds[source + 1] - first)
    return first - split.bounds[source], count


class _Before(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, anchor: Tensor, plan: Any, rank: int, group: Group) -> tuple[Tensor, Tensor]:
        ctx.plan, ctx.rank, ctx.group, ctx.shape = plan, rank, group, x.shape
        parts = torch.cat([x[start : start + count] for start, count in plan[rank]])
        sent, received = _counts(plan, rank)
        return anchor.new_zeros(()), all_to_all(parts, sent, received, group)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Any, ...]:  # pyright: ignore[reportIncompatibleMethodOverride]
        sent, received = _counts(ctx.plan, ctx.rank)
        back = all_to_all(gradients[1], received, sent, ctx.group)
        total = back.new_zeros(ctx.shape)
        for (start, count), part in zip(ctx.plan[ctx.rank], back.split(sent), strict=True):
            total[start : start + count] += part
        return total, None, None, None, None


def _counts(plan: Any, rank: int) -> tuple[list[int], list[int]]:
    return [count for _, count in plan[rank]], [row[rank][1] for row in plan]
