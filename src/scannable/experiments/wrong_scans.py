"""The two parallel scans of the paper's released code, which return wrong prefixes, beside Alg. 1, over one tree.

The first is right for addition, with which it was tested, and wrong as soon as order matters; the second loses elements
whatever is aggregated. The released experiments therefore compute their prefixes one after the other. Written anew from
what that code does, for a power of two of elements on axis 1.
"""

from collections.abc import Callable

import torch
from torch import Tensor

Agg = Callable[[Tensor, Tensor], Tensor]


def blelloch(agg: Agg, xs: Tensor, identity: Tensor) -> Tensor:
    """Alg. 1 as printed: the right child's prefix is Agg(the parent's prefix, the left child)."""
    return _scan(agg, xs, identity, agg)


def swapped(agg: Agg, xs: Tensor, identity: Tensor) -> Tensor:
    """The downsweep has its operands the wrong way round: Agg(the left child, the parent's prefix)."""
    return _scan(agg, xs, identity, lambda prefix, left: agg(left, prefix))


def forgetful(agg: Agg, xs: Tensor, identity: Tensor) -> Tensor:
    """Along the right edge of the tree every parent's prefix is taken for the identity, and lost.

    A mask says which prefixes are the identity. Each level changes a copy of it, so that below the root it is never up
    to date: the last prefix of every level counts as the identity, and the first, which is it, does not.
    """

    def right(prefix: Tensor, left: Tensor) -> Tensor:
        if prefix.shape[0] == 1:
            return left
        return torch.cat((agg(prefix[:-1], left[:-1]), left[-1:]))

    return _scan(agg, xs, identity, right)


SCANS: dict[str, Callable[[Agg, Tensor, Tensor], Tensor]] = {"swapped": swapped, "forgetful": forgetful}


def _scan(agg: Agg, xs: Tensor, identity: Tensor, right: Agg) -> Tensor:
    """Both sweeps; `right` gives the prefixes of right children from those of their parents and the left children."""
    r = xs.shape[1]
    if r == 0 or r & (r - 1):
        raise ValueError(f"this scan takes a power of two of elements, not {r}; scannable.scan takes any number")
    levels = [xs.movedim(1, 0)]
    while len(levels[-1]) > 1:
        nodes = levels[-1]
        levels.append(agg(nodes[0::2], nodes[1::2]))
    prefixes = identity.expand(levels[-1].shape)
    for nodes in reversed(levels[:-1]):
        prefixes = torch.stack((prefixes, right(prefixes, nodes[0::2])), 1).flatten(0, 1)
    return prefixes.movedim(0, 1)
