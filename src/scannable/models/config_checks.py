"""What configurations refuse, said once. Nothing here needs torch: a configuration is read before a model is built."""

from collections.abc import Callable
from math import isfinite
from typing import Any


def check_sizes(config: Any, *names: str) -> None:
    """Refuse sizes that are not whole numbers of at least 1; a field whose default is None may be None."""
    for name in names:
        value = getattr(config, name)
        optional = getattr(type(config), name, 0) is None
        if not (optional and value is None) and (type(value) is not int or value < 1):
            raise ValueError(f"{name}={value!r} must be a whole number of at least 1")


def check_switches(config: Any, *names: str) -> None:
    """Refuse switches that are neither on nor off; a field whose default is None may be None."""
    for name in names:
        value = getattr(config, name)
        optional = getattr(type(config), name, 0) is None
        if not (optional and value is None) and type(value) is not bool:
            raise ValueError(f"{name}={value!r} must be True or False{', or None' if optional else ''}")


def check_number(config: Any, name: str, fits: Callable[[float], bool], expected: str) -> None:
    """Refuse what is no finite number, or does not fit; `expected` goes on after "must"."""
    value = getattr(config, name)
    if type(value) not in (int, float) or not isfinite(value) or not fits(value):
        raise ValueError(f"{name}={value!r} must {expected}")


def check_choice(config: Any, name: str, *choices: str) -> None:
    """Refuse what is none of the choices."""
    value = getattr(config, name)
    if value not in choices:
        raise ValueError(f"{name}={value!r} is neither {' nor '.join(map(repr, choices))}")


def check_heads(width: int, heads: int, name: str = "heads") -> None:
    """Refuse heads that do not divide the width."""
    if width % heads:
        raise ValueError(f"width={width} is not a multiple of {name}={heads}; choose heads that divide it")


def check_dropout(config: Any) -> None:
    """Refuse what is no probability, and 1, which would leave nothing."""
    check_number(config, "dropout", lambda p: 0 <= p < 1, "lie in [0, 1)")


def check_outputs(config: Any) -> None:
    """Refuse outputs of no size, and a tied output layer where the outputs are not the vocabulary."""
    check_sizes(config, "vocab_size", "out_size")
    check_switches(config, "tie_weights")
    if config.tie_weights and config.out_size not in (None, config.vocab_size):
        raise ValueError(
            f"tie_weights needs one output for each token, but out_size={config.out_size} and "
            f"vocab_size={config.vocab_size}; drop one of the two"
        )
