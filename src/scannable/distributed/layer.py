"""Which layers go over a split sequence, and how each does."""

from math import lcm
from typing import Any

from torch import Tensor, nn

from scannable.distributed.affine import affine_over_ranks
from scannable.distributed.attention import attention_over_ranks
from scannable.distributed.convolved_mlp import convolved_mlp_over_ranks
from scannable.distributed.messages import Group
from scannable.distributed.psm import psm_over_ranks
from scannable.distributed.split import Split
from scannable.layers.affine.layer import AffineLayer
from scannable.layers.attention import Attention
from scannable.layers.convolved_mlp import ConvolvedMLP
from scannable.layers.layer import SequenceLayer
from scannable.layers.psm import PSMLayer

REASONS = {
    "LSTM": "its gates look at the output before, so a rank would wait for all ranks before it",
    "LogLinearAttention": "every position reads the roots of the counter themselves, and they are not exchanged yet",
}

KNOWN = PSMLayer | AffineLayer | Attention | ConvolvedMLP


def layer_over_ranks(layer: SequenceLayer, x: Any, split: Split, group: Group) -> Tensor:
    """The outputs of this rank's positions, as `layer(x)` of the whole sequence has them."""
    if isinstance(layer, PSMLayer):
        return psm_over_ranks(layer, x, split, group)
    if isinstance(layer, AffineLayer):
        return affine_over_ranks(layer, x, split, group)
    if isinstance(layer, Attention):
        return attention_over_ranks(layer, x, split, group)
    if isinstance(layer, ConvolvedMLP):
        return convolved_mlp_over_ranks(layer, x, split, group)
    raise refusal(layer)


def refusal(layer: nn.Module) -> ValueError:
    """The error for a layer that cannot."""
    name = type(layer).__name__
    reason = REASONS.get(name, "nobody has said how it does")
    return ValueError(f"{name} does not go over a split sequence: {reason}; split the batch instead (sequence=1)")


def check_layers(model: nn.Module) -> None:
    """Refuse a model with a layer that cannot go over a split sequence."""
    for module in model.modules():
        if isinstance(module, SequenceLayer) and not isinstance(module, KNOWN):
            raise refusal(module)


def unit_of(model: nn.Module) -> int:
    """At whose multiples a sequence may be cut for this model: the least that all its chunks divide."""
    return lcm(1, *(module.chunk_length for module in model.modules() if isinstance(module, PSMLayer)))
