"""Lemma "affine aggregator": pairs (E, f), each the map s -> E ▶ s + f, under composition."""

from collections.abc import Callable
from dataclasses import dataclass, is_dataclass
from typing import Any, TypeVar

import torch
from torch import Tensor

from scannable.layers.affine.actions import Action
from scannable.scan import scan

D = TypeVar("D")


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
        return on_tensors(lambda leaf: leaf[:, t], self)


def on_tensors(function: Callable[[Tensor], Tensor], record: D) -> D:
    """A dataclass with `function` applied to its tensors, and to those of dataclasses in it.

    What `tree_map` does for any tree, done quickly for these: a step has little else to do.
    """
    changed = {
        name: function(value)
        if isinstance(value, Tensor)
        else (on_tensors(function, value) if is_dataclass(value) else value)
        for name, value in vars(record).items()
    }
    return type(record)(**changed)


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
