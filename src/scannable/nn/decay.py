"""Which parameters weight decay leaves alone. Modules say it: the shape of a parameter does not tell what it means."""

from collections.abc import Iterator

from torch import Tensor, nn

MARK = "undecayed_parameters"
"""Where a module keeps the names; on the module, because copying or sharding makes new parameters."""


def undecayed(module: nn.Module, *names: str) -> None:
    """Say that weight decay leaves these parameters of a module alone: rates, gains, mixes, positions, identities.

    Biases and the parameters of norms need no mark.
    """
    for name in names:
        if name not in dict(module.named_parameters(recurse=False)):
            raise ValueError(f"{type(module).__name__} has no parameter {name!r} of its own to leave undecayed")
    setattr(module, MARK, getattr(module, MARK, frozenset()) | frozenset(names))


def left_alone(module: nn.Module, name: str, parameter: Tensor) -> bool:
    """Whether a module says that its parameter does not decay; `_no_weight_decay` is how Mamba's authors say it."""
    return (
        name in getattr(module, MARK, ())
        or "bias" in name
        or type(module).__name__.endswith("Norm")
        or getattr(parameter, "_no_weight_decay", False)
    )


def with_decay(model: nn.Module) -> Iterator[tuple[str, nn.Module, nn.Parameter, bool]]:
    """Name, module, parameter and whether it decays, for every parameter of a model, in the order of the model.

    Of a vector about which a module of others says nothing, it is taken that it does not.
    """
    seen: set[nn.Parameter] = set()
    for path, module in model.named_modules():
        for name, parameter in module.named_parameters(recurse=False):
            if parameter not in seen:
                seen.add(parameter)
                decays = parameter.ndim >= 2 and not left_alone(module, name, parameter)
                yield f"{path}.{name}" if path else name, module, parameter, decays
