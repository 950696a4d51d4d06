"""Lemma "affine aggregator": pairs (E, f), each the map s -> E ▶ s + f, under composition."""

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from scannable.affine.actions import Action
from scannable.scan import scan
from scannable.scan.tree import tree_map


@dataclass(frozen=True, eq=False)
class Affine:
    """The map s -> E ▶ s + f, or one such map for every place of the leading axes."""

    action: Any
    offset: Tensor

    def __call__(self, state: Tensor) -> Tensor:
        """E ▶ s + f."""
        return self.action.act(state) + self.offset

    def closed(self) -> "Affine":
        """The same map with an action that composes to its own type."""
        action: Action = self.action.closed()
        return Affine(action, self.offset)

    def at(self, t: int) -> "Affine":
        """The map of one time step, of maps over (batch, time)."""
        return tree_map(lambda leaf: leaf[:, t], self)


def compose(older: Affine, newer: Affine) -> Affine:
    """Apply `older`, then `newer`.

        (E', f') after (E, f)  =  (E' ∘ E,  E' ▶ f + f')

    The paper writes the newer pair first; here time runs left to right.
    """
    return Affine(newer.action.after(older.action), newer(older.offset))


def states(updates: Affine, start: Tensor, *, inclusive: bool = True) -> Tensor:
    """s_t = E_t ▶ s_(t-1) + f_t at every t, by the scan of all (E_t, f_t) along axis 1; from the state `start`.

    With `inclusive=False`, the state before each t instead of the one after it.
    """
    updates = updates.closed()
    unit = Affine(updates.action.unit(), torch.zeros_like(updates.offset[0, 0]))
    return scan(compose, updates, identity=unit, dim=1, inclusive=inclusive)(start[:, None])
