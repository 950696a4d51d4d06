"""The weights of a model: taken out of it under plain names, and put into a new one that may not agree with them."""

import weakref
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.modules.module import register_module_parameter_registration_hook
from torch.overrides import TorchFunctionMode

COMPILED = "_orig_mod."
"""What torch.compile puts into the names of a module's weights."""


class NeedsValuesError(RuntimeError):
    """A model that cannot be built without memory: its `__init__` looks at the values of tensors, or fails anyway."""


def weights_of(model: nn.Module) -> dict[str, Tensor]:
    """The parameters and buffers of `state_dict()`, as they are, under the names that they have uncompiled."""
    weights: dict[str, Tensor] = {}
    for name, value in model.state_dict(keep_vars=True).items():
        if not isinstance(value, Tensor):
            raise TypeError(f"{type(model).__name__} cannot be saved: {name} is a {type(value).__name__}, no tensor")
        weights[name.replace(COMPILED, "")] = value
    return weights


def ties_of(weights: Mapping[str, Tensor]) -> dict[str, str]:
    """For each weight that is one tensor with an earlier one, the name of that one."""
    first: dict[int, str] = {}
    return {name: one for name, value in weights.items() if (one := first.setdefault(id(value), name)) != name}


def unsaved_buffers_of(model: nn.Module) -> dict[str, Tensor]:
    """The buffers that `state_dict()` leaves out."""
    saved = model.state_dict(keep_vars=True)
    buffers = model.named_buffers(remove_duplicate=False)
    return {name.replace(COMPILED, ""): buffer for name, buffer in buffers if name not in saved}


def built(make: Callable[[], nn.Module], weights: Mapping[str, Tensor]) -> nn.Module:
    """The model that `make` builds, with these weights; torch's generator is left as it is.

    First without memory: what `make` builds is not believed before the weights have its names and shapes. If all of it
    got values from them, it is the model. If not, since `__init__` may keep tensors that are no weights, it is built
    again with memory, so that they have the values that `__init__` computes.
    """
    try:
        model, complete = without_memory(make)
        model = _filled(model, weights)
        if complete:
            return model
    except NeedsValuesError:
        pass
    with torch.random.fork_rng(devices=[]), torch.device("cpu"), _few_parameters(weights):
        model = make()
    return _filled(model, weights)


def without_memory(make: Callable[[], nn.Module]) -> tuple[nn.Module, bool]:
    """The model that `make` builds on the meta device, and whether all its tensors are in `state_dict()`."""
    try:
        with torch.random.fork_rng(devices=[]), torch.device("meta"), _Births() as births:
            model = make()
    except Exception as error:
        raise NeedsValuesError(str(error)) from error
    saved = {id(value) for value in model.state_dict(keep_vars=True).values()}
    alive = (birth() for birth in births.seen)
    return model, all(tensor is None or id(tensor) in saved or not tensor.is_meta for tensor in alive)


class WithoutValues(TorchFunctionMode):
    """Leaves out `normal_`, for which torch would import half of its compiler on the meta device."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if getattr(func, "__name__", None) == "normal_":
            return args[0] if args else kwargs["tensor"]
        return func(*args, **kwargs)


class _Births(WithoutValues):
    """Remembers every tensor that is made, wherever it is kept, for as long as it is."""

    def __init__(self) -> None:
        super().__init__()
        self.seen: list[weakref.ref[Tensor]] = []

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = super().__torch_function__(func, types, args, kwargs)
        made = result if isinstance(result, tuple | list) else (result,)
        self.seen += [weakref.ref(one) for one in made if isinstance(one, Tensor)]
        return result


@contextmanager
def _few_parameters(weights: Mapping[str, Tensor]) -> Iterator[None]:
    """Refuse to build a model of many more numbers than a file has; some may be made first and tied then."""
    numbers, count = sum(weight.numel() for weight in weights.values()), 0
    # A weight that is tied is given to a module once more; kept here, so that no other gets its place in memory.
    made: dict[int, nn.Parameter] = {}

    def check(module: nn.Module, name: str, parameter: nn.Parameter) -> None:
        nonlocal count
        count += 0 if id(parameter) in made else parameter.numel()
        made[id(parameter)] = parameter
        if count > 2 * numbers:
            raise ValueError(f"its weights are more than twice the {numbers:,} numbers of the file")

    hook = register_module_parameter_registration_hook(check)
    try:
        yield
    finally:
        hook.remove()


def _filled(model: nn.Module, weights: Mapping[str, Tensor]) -> nn.Module:
    """`model` with these weights, tied as they are."""
    own = model.state_dict(keep_vars=True)
    parameters: dict[int, nn.Parameter] = {}

    def like_own(name: str, value: Tensor) -> Tensor:
        if not isinstance(own.get(name), nn.Parameter):
            return value
        return parameters.setdefault(id(value), nn.Parameter(value, requires_grad=False))

    fitting = {name: like_own(name, value) for name, value in weights.items()}
    # Where nothing but values differ they are copied: other tensors of the model may be views of its weights.
    same = ties_of(own) == ties_of(weights) and all(
        name in weights and value.dtype == weights[name].dtype and not value.is_meta for name, value in own.items()
    )
    model.load_state_dict(fitting, assign=not same)
    return model
