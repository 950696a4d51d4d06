"""What a stretch of time does to any state: one affine map, the composition of all (E_t, f_t) in it.

    s_n = E_n ∘ ... ∘ E_1 ▶ s_0 + f        f is the state that the stretch leaves from 0

Where E has no closed form, it is found by linearity: the recurrence that writes nothing, started from I, ends in E.
"""

from dataclasses import replace
from functools import singledispatch
from typing import Any

import torch
from torch import Tensor

from scannable.layers.affine.actions import Action, Dense, Diagonal, DiagonalPlusRankOne, Identity
from scannable.layers.affine.chunkwise import DeltaRule, OuterProduct
from scannable.layers.affine.delta_product import DeltaProductRule
from scannable.layers.affine.elementwise import Elementwise
from scannable.layers.affine.invariant import DenseInvariant, DiagonalInvariant
from scannable.layers.affine.monoid import Affine
from scannable.layers.affine.recurrence import Recurrence
from scannable.layers.affine.selective import Selective


def whole(recurrence: Recurrence, like: Tensor) -> Affine:
    """The map of all positions of a recurrence together; `like` is any state, for its shape and type."""
    action, offset = _whole(recurrence, torch.zeros_like(like))
    return Affine(action, offset)


@singledispatch
def _whole(recurrence: Any, zero: Tensor) -> tuple[Action, Tensor]:
    raise TypeError(f"{type(recurrence).__name__} does not say what it does to a state as a whole")


@_whole.register
def _(recurrence: OuterProduct, zero: Tensor) -> tuple[Action, Tensor]:
    action = recurrence.action
    if isinstance(action, DiagonalPlusRankOne):
        return _by_linearity(recurrence, zero)
    held: Action = action if isinstance(action, Identity) else _summed(action, zero)
    return held, recurrence.run(zero)[1]


@_whole.register(DeltaRule)
@_whole.register(DeltaProductRule)
def _(recurrence: Any, zero: Tensor) -> tuple[Action, Tensor]:
    return _by_linearity(recurrence, zero)


@_whole.register
def _(recurrence: Elementwise, zero: Tensor) -> tuple[Action, Tensor]:
    return _summed(Diagonal(recurrence.log_decay), zero), recurrence.run(zero)[1]


@_whole.register
def _(recurrence: Selective, zero: Tensor) -> tuple[Action, Tensor]:
    # Before N decays are made of every step size.
    steps = recurrence.step_size.to(zero.dtype).sum(1)
    return Diagonal(steps[:, None] * recurrence.rate.to(zero.dtype)), recurrence.run(zero)[1]


@_whole.register
def _(recurrence: DiagonalInvariant, zero: Tensor) -> tuple[Action, Tensor]:
    return Diagonal((recurrence.x.shape[1] * recurrence.log_decay).expand(zero.shape)), recurrence.run(zero)[1]


@_whole.register
def _(recurrence: DenseInvariant, zero: Tensor) -> tuple[Action, Tensor]:
    power = torch.linalg.matrix_power(recurrence.matrix.to(zero.dtype), recurrence.offset.shape[1])
    return Dense(power.expand(len(zero), *power.shape)), recurrence.run(zero)[1]


def _summed(action: Diagonal, zero: Tensor) -> Diagonal:
    return type(action)(action.log_decay.to(zero.dtype).sum(1))


def _by_linearity(recurrence: Any, zero: Tensor) -> tuple[Dense, Tensor]:
    """Values and zeros side by side, started from 0 and from I: one run gives f and E."""
    k, v = zero.shape[-2:]
    value: Tensor = recurrence.value
    one = torch.eye(k, dtype=zero.dtype, device=zero.device).expand(*zero.shape[:-1], k)
    both = replace(recurrence, value=torch.cat((value, value.new_zeros(*value.shape[:-1], k)), -1))
    offset, matrix = both.run(torch.cat((zero, one), -1))[1].split((v, k), -1)
    return Dense(matrix.contiguous()), offset.contiguous()
