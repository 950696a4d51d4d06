"""A prefix-scannable layer over a split sequence: every rank has whole chunks, and the scan goes over all of them."""

from typing import Any

import torch
from torch import Tensor

from scannable.distributed.gather import tied
from scannable.distributed.halo import before
from scannable.distributed.messages import Group
from scannable.distributed.scan_over_ranks import scan
from scannable.distributed.split import Split
from scannable.layers.psm import PSMLayer, into_chunks
from scannable.scan.tree import flatten, tree_map, unflatten


def psm_over_ranks(layer: PSMLayer, x: Any, split: Split, group: Group) -> Tensor:
    """The outputs of this rank's positions (Def. PSM): y_i = Inf(s_i, x_i), or with k recent chunks
    Inf(s_(i-k), [x_(i-k) | ... | x_i]).
    """
    c, k = layer.chunk_length, layer.recent
    chunks = Split(tuple(-(-bound // c) for bound in split.bounds), split.rank)
    own = tree_map(lambda leaf: _chunks(leaf, c), x)
    n, tokens = flatten(x)[0][0].shape[1], list[Tensor | None]()
    held = own
    if k:
        # Chunks that another rank has, in front of this rank's own.
        leaves, structure = flatten(own)
        found = [before(leaf, k, chunks, group) for leaf in leaves]
        tokens = [token for _, token in found]
        held = unflatten(
            structure, [torch.cat(pair, 1) for pair in zip((rows for rows, _ in found), leaves, strict=True)]
        )
    # The last k chunks are in no prefix; prefix i - k belongs to chunk i, so every part moves by k.
    moved = Split(tuple(max(0, bound - k) for bound in chunks.bounds), chunks.rank)
    prefixes = scan(
        layer.agg,
        tree_map(lambda leaf: leaf[:, : moved.length], held),
        identity=layer.identity,
        dim=1,
        group=group,
        literal=layer.literal_identity,
        checkpoint=layer.checkpoint and layer.training,
        split=moved,
    )
    if k:
        r = chunks.length
        e = tree_map(lambda leaf, of: of.expand(leaf.shape[0], 1, *of.shape).to(leaf.dtype), held, layer.identity)
        prefixes = tree_map(lambda e, p: torch.cat((*[e] * (r - p.shape[1]), p), 1), e, prefixes)
        padded = tree_map(lambda e, leaf: torch.cat((*[e] * (k + r - leaf.shape[1]), leaf), 1), e, held)
        own = tree_map(lambda leaf: torch.cat([leaf[:, j : j + r] for j in range(k + 1)], 2), padded)
    y = layer.inf(prefixes, own).flatten(1, 2)[:, :n]
    for token in tokens:
        y = tied(y, token)
    return y


def _chunks(leaf: Tensor, c: int) -> Tensor:
    # Of no positions too a view: backward must go on to the layers before on every rank.
    return into_chunks(leaf, c) if leaf.shape[1] else leaf.reshape(len(leaf), 0, c, *leaf.shape[2:])
