"""An affine row over a split sequence: one map (E, f) a rank, since maps compose.

A rank finds what its positions do to any state as a whole, all ranks exchange these maps, and each runs its recurrence
from the state that the maps before it lead to. The recurrence runs twice, for its map and for its outputs.
"""

from typing import Any

import torch
from torch import Tensor

from scannable.distributed.gather import Exchange, gathered, tied
from scannable.distributed.halo import before
from scannable.distributed.messages import Group
from scannable.distributed.split import Split
from scannable.layers.affine.layer import AffineLayer
from scannable.layers.affine.monoid import Affine
from scannable.layers.affine.recurrence import Recurrence
from scannable.layers.affine.whole import whole
from scannable.layers.mlstm import MLSTM, running
from scannable.nn.device import widest, without_autocast
from scannable.scan.element_type import ElementType
from scannable.scan.tree import flatten, unflatten

Tokens = list[Tensor | None]


def affine_over_ranks(layer: AffineLayer, x: Tensor, split: Split, group: Group) -> Tensor:
    """The outputs of this rank's positions."""
    tokens: Tokens = []
    parts = layer.empty(len(x))
    unknown = parts.keys() - {"s", "past", "position", "stabiliser"}
    if unknown:
        raise ValueError(f"{type(layer).__name__} carries {sorted(unknown)}, which cannot go from rank to rank")
    if "past" in parts:
        # What a convolution looks back at is made of the input place by place, so the inputs are what is sent.
        earlier, token = before(x, parts["past"].shape[1], split, group)
        tokens.append(token)
        if earlier.shape[1]:
            parts["past"] = layer.prepare(earlier, parts, None).carried["past"]
    if "position" in parts:
        parts["position"] = parts["position"] + split.first
    if isinstance(layer, MLSTM):
        parts["stabiliser"] = _stabiliser(layer, x, parts["stabiliser"], split, group, tokens)
    prepared = layer.prepare(x, parts, None) if split.length else None
    start = _start(None if prepared is None else prepared.recurrence, parts["s"], split, group, tokens, layer, x)
    y = x if prepared is None else layer.read_out(prepared.recurrence.run(start)[0], prepared.gate)
    for token in tokens:
        y = tied(y, token)
    return y


def _start(
    recurrence: Recurrence | None,
    state: Tensor,
    split: Split,
    group: Group,
    tokens: Tokens,
    layer: AffineLayer,
    x: Tensor,
) -> Tensor:
    """The state before this rank's part."""
    counts = tuple(int(split.later(q) and split.bounds[q + 1] > split.bounds[q]) for q in range(split.ranks))
    if not any(counts):
        return state
    with without_autocast(state.device):
        if recurrence is None:
            # Of no positions there is no map, but its kind must be known to read those of the others.
            recurrence = layer.prepare(x.new_zeros(len(x), 1, x.shape[-1]), layer.empty(len(x)), None).recurrence
        map_of = whole(recurrence, state)
        leaves, structure = flatten(map_of)
        element = ElementType.of(leaves, structure)
        mine = [leaf[None] if counts[split.rank] else leaf[None][:0] for leaf in leaves]
        maps, token = gathered(Exchange(counts, element, group), mine)
        tokens.append(token)
        for place in range(sum(counts[: split.rank])):
            one: Affine = unflatten(structure, [leaf[place] for leaf in maps])
            state = one(state)
    return state


def _stabiliser(layer: MLSTM, x: Tensor, start: Tensor, split: Split, group: Group, tokens: Tokens) -> Tensor:
    """The stabiliser before this rank's part: over (max, +), one pair (F, max_j (ĩ_j - F_j) + F) a rank."""
    counts = tuple(int(split.later(q) and split.bounds[q + 1] > split.bounds[q]) for q in range(split.ranks))
    if not any(counts):
        return start
    if split.length:
        total, highest = (each[:, -1] for each in running(*layer.log_gates(x)))
    else:
        total = highest = torch.zeros_like(start, dtype=widest(start.device))
    pair: Any = [total, highest + total]
    element = ElementType.of(*flatten(pair))
    mine = [leaf[None] if counts[split.rank] else leaf[None][:0] for leaf in pair]
    pairs, token = gathered(Exchange(counts, element, group), mine)
    tokens.append(token)
    m = start.to(total.dtype)
    for place in range(sum(counts[: split.rank])):
        m = torch.maximum(m + pairs[0][place], pairs[1][place])
    return m.to(start.dtype)
