"""The command line: `scannable --help`."""

import os
import sys


def main() -> None:
    """Entry point of the `scannable` command."""
    arguments = sys.argv[1:]
    debug = "--debug" in arguments
    arguments = [argument for argument in arguments if argument != "--debug"]
    try:
        import matplotlib  # noqa: F401
        import rich  # noqa: F401
        import tokenizers  # noqa: F401
        import tyro
    except ImportError as missing:
        sys.exit(
            f"scannable: the command line needs {missing.name}; install it with: pip install 'scannable[train,plot]'"
        )
    try:
        from scannable.cli import commands

        if arguments[:1] == ["train"]:
            # What a recipe's fields are is known only when it is named.
            commands.train(arguments[1:])
            return
        tyro.extras.subcommand_cli_from_dict(
            {
                "demo": commands.demo,
                "recipes": commands.recipes,
                "train": commands.train,
                "eval": commands.evaluate,
                "generate": commands.generate,
                "verify": commands.verify,
                "plot": commands.plot,
                "zoo": commands.zoo,
                "reproduce": commands.reproduce,
            },
            args=arguments,
            prog="scannable",
            description="Prefix-scannable sequence models: the laboratory. --debug shows where an error comes from.",
        )
    except KeyboardInterrupt:
        sys.exit(130)
    except BrokenPipeError:
        # Whoever read the output has seen enough, as `head` does; and nothing is left to be flushed to it.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        sys.exit(141)
    except Exception as error:
        if debug:
            raise
        sys.exit(f"scannable: {' '.join(str(error).split()) or type(error).__name__}")
