"""An MLP with convolutions over a split sequence: the few inputs that both look back at."""

import torch
from torch import Tensor

from scannable.distributed.gather import tied
from scannable.distributed.halo import before
from scannable.distributed.messages import Group
from scannable.distributed.split import Split
from scannable.layers.convolved_mlp import ConvolvedMLP


def convolved_mlp_over_ranks(layer: ConvolvedMLP, x: Tensor, split: Split, group: Group) -> Tensor:
    """The outputs of this rank's positions. What comes out of the first convolution goes into the second, so that both
    together look back twice as far; those positions are computed once more.
    """
    earlier, token = before(x, 2 * (layer.convolution.length - 1), split, group)
    y = layer(torch.cat((earlier, x), 1))[:, earlier.shape[1] :] if split.length else x
    return tied(y, token)
