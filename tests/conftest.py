"""Shapes in signatures are checked while testing, and torch keeps to one thread so that runs do not fight for cores."""

import signal
from collections import Counter
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from jaxtyping import config, install_import_hook

import checked_shapes

CHECKED = [
    "scannable.baselines",
    "scannable.layers",
    *(f"scannable.models.{name}" for name in ("base", "lm", "lm_state", "prefix_scannable", "transformer_psm")),
    "scannable.nn",
    "scannable.spd",
]
install_import_hook(CHECKED, "checked_shapes.in_first_calls")
torch.set_num_threads(1)
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    # A shell starts a job in the background deaf to Ctrl-C, which the tests send themselves.
    signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.fixture(autouse=True)
def _shapes_checked() -> None:
    checked_shapes.from_here()


@pytest.fixture
def shapes_unchecked() -> Iterator[None]:
    """As a user runs it: bad input meets the library's own errors."""
    config.update("jaxtyping_disable", True)
    yield
    config.update("jaxtyping_disable", False)


def pytest_terminal_summary(terminalreporter: Any) -> None:
    """What this machine could not test, a line for each reason."""
    reasons = Counter(str(report.longrepr[2]) for report in terminalreporter.stats.get("skipped", []))
    for reason, count in reasons.items():
        terminalreporter.write_line(f"{count} skipped: {reason.removeprefix('Skipped: ')}")
