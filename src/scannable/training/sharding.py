"""Weights, gradient and optimizer in shards, one a process (FSDP2), around the root of a model only.

One unit: a process gathers all weights once a step, and scatters the gradient once. Units inside the model would be
gathered for every call, and processes that have different parts of a sequence call Agg differently often: they would
wait for each other for ever.

FSDP2 takes seconds to import, and is imported only when it is asked for.
"""

import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from types import MethodType
from typing import Any

import torch
from torch import Tensor, nn

from scannable import distributed
from scannable.distributed import Split

METHODS = ("hidden", "loss", "initial_state", "extend", "prefill", "step", "hidden_over_ranks")
"""What goes around `model(tokens)`, and needs whole weights too."""


def shard(model: nn.Module, device: torch.device, count: int, *, alike: bool) -> None:
    """Cut the weights of a model, which is the same in all `count` processes; each keeps its share.

    `alike`: all processes use the same parameters in a step.
    """
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import FSDPModule, fully_shard, register_fsdp_forward_method

    if not hasattr(FSDPModule, "set_reduce_scatter_unused_params"):
        raise ValueError(f"sharded weights need torch 2.13 or newer, this is {torch.__version__}; leave out shard")
    if any(isinstance(module, nn.RNNBase) for module in model.modules()):
        raise ValueError("an LSTM of torch keeps its own list of whole weights, which cannot be cut; leave out shard")
    kinds = {str(parameter.dtype) for parameter in model.parameters()}
    if len(kinds) > 1:
        raise ValueError(f"sharded weights are of one type, these of {', '.join(sorted(kinds))}; leave out shard")
    # It fears for what is written into outputs that are views; nothing here writes into any.
    warnings.filterwarnings("ignore", message="FSDP2-wrapped module", category=UserWarning)
    mesh = init_device_mesh(device.type, (count,), mesh_dim_names=("shard",))
    fully_shard(model, mesh=mesh, reshard_after_forward=False)
    assert isinstance(model, FSDPModule)
    # The gradient of a sum over processes: each has its share of the loss.
    model.set_gradient_divide_factor(1.0)
    model.set_force_sum_reduction_for_comms(True)
    # A process whose part of a sample never calls Agg has no gradient for it; the others wait for one.
    model.set_reduce_scatter_unused_params(not alike)
    model.set_reshard_after_backward(False)
    model.hidden_over_ranks = MethodType(_hidden_over_ranks, model)  # pyright: ignore[reportAttributeAccessIssue]
    for name in METHODS:
        if hasattr(model, name):
            register_fsdp_forward_method(model, name)


def _hidden_over_ranks(model: nn.Module, tokens: Tensor, split: Split, group: Any) -> Tensor:
    return distributed.hidden(model, tokens, group=group, split=split)


def is_sharded(model: nn.Module) -> bool:
    """Whether `shard` has cut it."""
    return hasattr(model, "hidden_over_ranks")


def put_away(model: Any) -> None:
    """Keep only this process's share of the weights again, after what needed them whole."""
    if is_sharded(model):
        model.reshard()


def last_of_step(model: Any, last: bool) -> None:
    """Scatter the gradient after the last part of a step only: processes may have different numbers of parts."""
    if is_sharded(model):
        model.set_requires_gradient_sync(last)


@contextmanager
def noticing_gradients(model: nn.Module) -> Iterator[set[str]]:
    """The names of the parameters that backward reaches meanwhile."""
    reached: set[str] = set()
    hooks = [
        parameter.register_hook(lambda _, name=name: reached.add(name))
        for name, parameter in model.named_parameters()
        if parameter.requires_grad
    ]
    try:
        yield reached
    finally:
        for hook in hooks:
            hook.remove()


def is_share(tensor: Tensor) -> bool:
    """Whether it is a `DTensor`, of which this process has a part."""
    return hasattr(tensor, "to_local")


def local(tensor: Any) -> Tensor:
    """The share that this process has."""
    return tensor.to_local() if is_share(tensor) else tensor


def whole(tensor: Any) -> Tensor:
    """All of it, gathered; every process calls."""
    return tensor.full_tensor() if is_share(tensor) else tensor


@torch.no_grad()
def like(tensor: Any, value: Tensor) -> Tensor:
    """A whole value cut as `tensor` is; every process has the value, so that nothing is sent."""
    if not is_share(tensor) or is_share(value):
        return value
    from torch.distributed.tensor import distribute_tensor

    # From what is here, not from the first process.
    return distribute_tensor(value.to(tensor.device), tensor.device_mesh, tensor.placements, src_data_rank=None)


def load_whole(model: nn.Module, weights: Mapping[str, Tensor]) -> None:
    """`model.load_state_dict` of whole weights."""
    if not is_sharded(model):
        model.load_state_dict(weights)
        return
    put_away(model)
    current = model.state_dict()
    model.load_state_dict(
        {name: like(current[name], value) if name in current else value for name, value in weights.items()}
    )
