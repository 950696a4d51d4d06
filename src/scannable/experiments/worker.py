"""One run of an experiment in a process of its own: python -m scannable.experiments.worker FOLDER DEVICE"""

import sys
import traceback
from pathlib import Path

from rich.console import Console

from scannable.training.loop import DivergedError, Interrupted, Run
from scannable.training.run_folder import load_recipe

DIVERGED = 3
"""The exit code of a run whose loss is not finite."""


def main() -> None:
    folder, device = Path(sys.argv[1]), sys.argv[2]
    console = Console(width=160)
    try:
        Run(load_recipe(folder), folder, console=console, device=device).train(resume=True)
    except Interrupted as stopped:
        console.print(stopped, highlight=False)
    except Exception as error:
        traceback.print_exc()
        # The last line of the log is the one that is shown.
        print(" ".join(str(error).split()) or type(error).__name__, file=sys.stderr)
        sys.exit(DIVERGED if isinstance(error, DivergedError) else 1)


if __name__ == "__main__":
    main()
