"""Shapes are checked in the first calls of each test, which meet every function there is; in loops of thousands of steps
the checks would take longer than the steps.
"""

from collections.abc import Callable
from functools import wraps
from typing import Any

from beartype import beartype
from jaxtyping import config

FIRST = 2000
"""Checks, of what goes into a function or of all of it."""
_checks = 0


def from_here() -> None:
    """Check the calls that come now."""
    global _checks
    _checks = 0
    config.update("jaxtyping_disable", False)


def in_first_calls(function: Callable[..., Any]) -> Callable[..., Any]:
    """For jaxtyping: `beartype`, until there were enough."""
    check = beartype(function)

    @wraps(function)
    def counted(*args: Any, **kwargs: Any) -> Any:
        global _checks
        _checks += 1
        if _checks == FIRST:
            config.update("jaxtyping_disable", True)
        return check(*args, **kwargs)

    return counted
