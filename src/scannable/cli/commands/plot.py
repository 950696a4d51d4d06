"""`scannable plot`."""

from pathlib import Path

from scannable.cli.run_argument import RunFolders, check_run
from scannable.storage.configuration import ConfigurationError


def plot(runs: RunFolders, out: Path = Path("plot.png")) -> None:
    """Draw loss and validation error of one run or several.

    Example:
        scannable plot runs/s5 runs/s5-plain --out curves.png

    Args:
        runs: folders of the runs.
        out: the picture; its numbers go beside it as CSV.
    """
    if not runs:
        raise ConfigurationError("no run to draw; give one folder or several")
    for run in runs:
        check_run(run)
    from scannable.training.plot import plot_runs

    plot_runs(list(runs), out)
    print(f"written to {out} and {out.with_suffix('.csv')}")
