"""How far an Agg is from being associative."""

from collections.abc import Callable
from typing import Any

import torch

from scannable.scan.tree import flatten


@torch.no_grad()
def associativity_defect(agg: Callable[[Any, Any], Any], a: Any, b: Any, c: Any) -> float:
    """|(ab)c - a(bc)| / sqrt(|(ab)c| |a(bc)|), over all tensors of the elements: 0 for an associative Agg.

    For a trained Agg it says how much the fixed tree matters; independent results differ by about sqrt(2).

    >>> a, b, c = torch.randn(3, 8)
    >>> sc.associativity_defect(torch.maximum, a, b, c)
    0.0
    >>> sc.associativity_defect(lambda older, newer: 2 * older + 3 * newer, a, b, c) > 0.1
    True
    """
    left, _ = flatten(agg(agg(a, b), c))
    right, _ = flatten(agg(a, agg(b, c)))

    def squared(leaves: list[torch.Tensor]) -> float:
        return sum(float(leaf.double().abs().square().sum()) for leaf in leaves)

    difference = squared([x - y for x, y in zip(left, right, strict=True)])
    size = (squared(left) * squared(right)) ** 0.5
    return (difference / size) ** 0.5 if size else difference**0.5
