"""The command line: `scannable --help`."""

import sys
from pathlib import Path


def demo(out: Path = Path("demo")) -> None:
    """Scan a non-associative operator in parallel and element by element, and see that both are the same.

    Args:
        out: folder for the figure and its numbers.
    """
    from rich.console import Console

    from scannable.demo import run

    run(out, Console())


def zoo(width: int = 256, heads: int = 4, length: int = 1024) -> None:
    """List the rows of the affine zoo: what each does to its state, its complexity class, its memory and its work.

    Args:
        width: of the layers that are counted.
        heads: of the layers that are counted.
        length: how many tokens they have seen.
    """
    from scannable.zoo import table

    print(table(width, heads, length))


def main() -> None:
    """Entry point of the `scannable` command."""
    try:
        import matplotlib  # noqa: F401
        import rich  # noqa: F401
        import tyro
    except ImportError as missing:
        sys.exit(
            f"scannable: the command line needs {missing.name}; install it with: pip install 'scannable[train,plot]'"
        )
    try:
        tyro.extras.subcommand_cli_from_dict(
            {"demo": demo, "zoo": zoo},
            prog="scannable",
            description="Prefix-scannable sequence models: the laboratory.",
        )
    except KeyboardInterrupt:
        sys.exit(130)
    except OSError as error:
        sys.exit(f"scannable: {error}")
