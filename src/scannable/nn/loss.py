"""Cross-entropy over a large vocabulary without all its logits in memory."""

from typing import Literal

import torch
from jaxtyping import Float, Integer
from torch import Tensor, nn
from torch.nn import functional
from torch.utils.checkpoint import checkpoint


def sliced_cross_entropy(
    hidden: Float[Tensor, "b n d"],
    targets: Integer[Tensor, "b n"],
    head: nn.Module,
    *,
    slice_length: int = 1024,
    ignore_index: int = -100,
    reduction: Literal["mean", "sum"] = "mean",
) -> Float[Tensor, ""]:
    """The mean or sum of -log softmax(head(hidden))[target] over all targets that are not `ignore_index`.

    Logits exist for `slice_length` positions at a time, in forward and in backward, which computes them once more. With
    no target at all both are zero. A loop that splits a batch sums its parts and divides once: a mean of means would
    weigh targets by the part they fell into.

    >>> head = nn.Linear(8, 100)
    >>> hidden, targets = torch.randn(2, 50, 8), torch.randint(100, (2, 50))
    >>> sc.sliced_cross_entropy(hidden, targets, head, slice_length=16).shape
    torch.Size([])
    """
    if reduction not in ("mean", "sum"):
        raise ValueError(f"reduction={reduction!r} is neither 'mean' nor 'sum'")
    if type(slice_length) is not int or slice_length < 1:
        raise ValueError(f"slice_length={slice_length!r} must be a whole number of at least 1")
    if targets.is_floating_point() or targets.is_complex() or targets.dtype == torch.bool:
        raise ValueError(f"targets have the dtype {targets.dtype}; expected integers, {ignore_index} for none")
    if hidden.shape[:2] != targets.shape:
        raise ValueError(
            f"outputs for {tuple(hidden.shape[:2])} positions but targets for {tuple(targets.shape)}; they must agree"
        )

    def total(part: Tensor, wanted: Tensor) -> Tensor:
        logits = head(part)
        # Half precision cannot add up a vocabulary.
        logits = logits if logits.dtype in (torch.float32, torch.float64) else logits.float()
        return functional.cross_entropy(logits, wanted, ignore_index=ignore_index, reduction="sum")

    flat, wanted = hidden.flatten(0, 1), targets.flatten().long()
    slices = zip(flat.split(slice_length), wanted.split(slice_length), strict=True)
    sums = [checkpoint(total, part, some, use_reentrant=False) for part, some in slices]
    # Of no positions at all, a zero that still has a gradient.
    whole = torch.stack(sums).sum() if sums else hidden.sum()
    return whole if reduction == "sum" else whole / (wanted != ignore_index).sum().clamp(min=1)
