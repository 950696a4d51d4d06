"""Signals, heard for a while."""

import contextlib
import signal
from collections.abc import Callable, Iterator


@contextlib.contextmanager
def signals(heard: Callable[[int], None], *numbers: int) -> Iterator[None]:
    """Call `heard` with the number of each of these signals that comes meanwhile, instead of what they did before."""
    try:
        before = {number: signal.signal(number, lambda number, frame: heard(number)) for number in numbers}
    except ValueError:  # not the main thread: signals are somebody else's
        before = {}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
