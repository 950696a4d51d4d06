"""`scannable demo`."""

import sys
from pathlib import Path


def demo(out: Path = Path("demo"), device: str = "cpu") -> None:
    """Train a small model in about a minute and stream it.

    It draws the tree of a scan, checks that the trained model is one function (in parallel, by prefill, step by step),
    and streams it to 64 times its training length. At the end the shipped S5 model reads 100,000 tokens.

    Example:
        scannable demo --out /tmp/demo

    Args:
        out: folder for the report: figures, their numbers, and the run itself.
        device: such as cuda.
    """
    out.mkdir(parents=True, exist_ok=True)  # before a minute of work for it
    from rich.console import Console

    from scannable.cli.demo import run
    from scannable.cli.device import usable_device
    from scannable.training.loop import Interrupted

    try:
        run(out, Console(), usable_device(device))
    except Interrupted as stopped:
        sys.exit(stopped.exit_code)
