"""Cutting, joining and weaving sequences along their time axis, all leaves of an element alike."""

import torch

from scannable.scan.element_type import Leaves
from scannable.scan.tree import flatten


def length(leaves: Leaves, dim: int) -> int:
    return leaves[0].shape[dim]


def with_time(element: object, dim: int) -> Leaves:
    return [leaf.unsqueeze(dim) for leaf in flatten(element)[0]]


def part(leaves: Leaves, dim: int, start: int, count: int) -> Leaves:
    """`count` places from `start` on."""
    total = length(leaves, dim)
    if count == total:
        return leaves
    # The gradient of a split is one concatenation; that of a slice zeroes a whole level first.
    return [leaf.split((start, count, total - start - count), dim)[1] for leaf in leaves]


def joined(parts: list[Leaves], dim: int) -> Leaves:
    """The parts one after another; those without leaves or without length are left out."""
    parts = [some for some in parts if some and length(some, dim)]
    return parts[0] if len(parts) == 1 else [torch.cat(leaf, dim) for leaf in zip(*parts, strict=True)]


def halves(leaves: Leaves, dim: int) -> tuple[Leaves, Leaves]:
    """The nodes at even and at odd places, as views."""
    n = length(leaves, dim)
    if n % 2:
        before = (slice(None),) * dim
        return [leaf[(*before, slice(0, n, 2))] for leaf in leaves], [
            leaf[(*before, slice(1, n, 2))] for leaf in leaves
        ]
    # The gradient of unbind writes each number once; that of two slices would zero and add two whole levels.
    pairs = [leaf.unflatten(dim, (n // 2, 2)).unbind(dim + 1) for leaf in leaves]
    return [first for first, _ in pairs], [second for _, second in pairs]


def alternate(first: Leaves, second: Leaves, dim: int) -> Leaves:
    """The inverse of `halves`: nodes of `first` and `second` in turn; `first` may have one more."""
    n = length(second, dim)
    woven = [
        torch.stack(two, dim + 1).flatten(dim, dim + 1) for two in zip(part(first, dim, 0, n), second, strict=True)
    ]
    return joined([woven, part(first, dim, n, length(first, dim) - n)], dim)
