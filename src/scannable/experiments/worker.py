"""One run of an experiment in a process of its own: python -m scannable.experiments.worker FOLDER DEVICE"""

import sys
from pathlib import Path

from rich.console import Console

import scannable.recipes  # noqa: F401  (a configuration may name its models and tasks)
from scannable.training.loop import Interrupted, Run, load_recipe


def main() -> None:
    folder, device = Path(sys.argv[1]), sys.argv[2]
    console = Console(width=160)
    try:
        Run(load_recipe(folder), folder, console=console, device=device).train(resume=True)
    except Interrupted as stopped:
        console.print(stopped, highlight=False)


if __name__ == "__main__":
    main()
