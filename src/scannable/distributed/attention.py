"""Softmax attention over a split sequence: keys and values of all earlier ranks, or the inputs of one window."""

import torch
from torch import Tensor
from torch.nn import functional

from scannable.distributed.gather import Exchange, gathered, tied
from scannable.distributed.halo import before
from scannable.distributed.messages import Group
from scannable.distributed.split import Split
from scannable.layers.attention import Attention
from scannable.nn.block import convolved
from scannable.scan.element_type import ElementType
from scannable.scan.tree import flatten


def attention_over_ranks(layer: Attention, x: Tensor, split: Split, group: Group) -> Tensor:
    """The outputs of this rank's positions.

    Without a window every rank gets the keys and values of all: 2 n d numbers, which is what attention costs. With one,
    the inputs of the window before its part, whose keys it computes once more.
    """
    # Two convolutions, one behind the other, look back from the first key that is needed.
    reach = 0 if layer.convolution is None else 2 * (layer.convolution.length - 1)
    if layer.window is not None:
        reach += layer.window - 1
    earlier, token = before(x, reach, split, group)
    tokens = [token]
    places = earlier.shape[1]
    whole = torch.cat((earlier, x), 1)
    n = x.shape[1]
    if not n and layer.window is not None:
        return tied(x, token)
    rotation = layer.rotation((split.first - places,), whole.shape[1]) if whole.shape[1] else None
    whole = convolved(layer.convolution, whole, None, 0, 0) if whole.shape[1] else whole
    if layer.window is not None:
        y = layer.attention.over_window(whole, layer.window, rotation, None)[:, places:]
        return tied(y, token)
    keys, values = layer.attention.keys_and_values(whole, rotation) if n else _nothing(layer, x)
    own = [each[:, :, places:].movedim(2, 0) for each in (keys, values)]
    counts = tuple(split.bounds[q + 1] - split.bounds[q] if split.later(q) else 0 for q in range(split.ranks))
    if any(counts):
        kind = ElementType.of(*flatten([each.new_empty(each.shape[1:]) for each in own]))
        mine = own if counts[split.rank] else [each[:0] for each in own]
        everyone, token = gathered(Exchange(counts, kind, group), mine)
        tokens.append(token)
        own = [
            torch.cat((theirs[: split.first - split.bounds[0]], each))
            for theirs, each in zip(everyone, own, strict=True)
        ]
    if n:
        keys, values = (each.movedim(0, 2) for each in own)
        past = keys.shape[2] - n
        mask = None
        if past:
            mask = torch.ones(n, past + n, dtype=torch.bool, device=x.device).tril(past)
        y = functional.scaled_dot_product_attention(
            layer.attention.queries(whole, n, rotation, None, 0),
            keys,
            values,
            attn_mask=mask,
            is_causal=mask is None,
            dropout_p=layer.attention.dropout if layer.training else 0.0,
        )
        y = layer.out(y.transpose(1, 2).flatten(2))
    else:
        y = x
    for token in tokens:
        y = tied(y, token)
    return y


def _nothing(layer: Attention, x: Tensor) -> tuple[Tensor, Tensor]:
    """No keys and values, of the type that those of others have."""
    keys, values = layer.attention.keys_and_values(x.new_zeros(len(x), 1, x.shape[-1]), layer.rotation((0,), 1))
    return keys[:, :, :0], values[:, :, :0]
