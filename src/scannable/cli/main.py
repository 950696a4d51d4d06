"""The command line: `scannable --help`."""

import os
import sys
from importlib import import_module
from importlib.util import find_spec
from inspect import cleandoc, getdoc
from typing import Any

import scannable

GROUPS: dict[str, dict[str, str]] = {
    "See what it is": {"demo": "demo", "explain": "explain", "zoo": "zoo", "models": "models"},
    "Train": {"recipes": "recipes", "train": "train", "plot": "plot"},
    "Use a trained model": {"eval": "evaluate", "generate": "generate", "verify": "verify", "hf": "hf"},
    "Repeat the paper's experiments": {"reproduce": "reproduce"},
    "Set up": {"doctor": "doctor", "completion": "completion"},
}
"""The commands, and the functions that do them, each in a module of its name."""

HELP = """\
usage: scannable COMMAND [OPTIONS]

Prefix-scannable sequence models: train in parallel, stream in O(log n) state.

{commands}

  --help      this list; scannable COMMAND --help says what a command takes
  --version   the version
  --debug     show where an error comes from

Examples:
  scannable demo
  scannable train s5 --steps 5000 --out runs/short
  scannable eval runs/short --lengths 32 64 128
  scannable eval s5 --lengths 1000000"""

NEEDED = ("tyro", "rich", "tokenizers", "matplotlib")


def main() -> None:
    """Entry point of the `scannable` command."""
    arguments = sys.argv[1:]
    debug = "--debug" in arguments
    try:
        answer([argument for argument in arguments if argument != "--debug"])
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


def answer(arguments: list[str]) -> None:
    """Do what was typed."""
    if arguments[:1] == ["--version"]:
        print(f"scannable {scannable.__version__}")
        return
    if arguments == ["doctor"]:
        # It says what is missing, so it must not need it.
        command("doctor")()
        return
    missing = [package for package in NEEDED if find_spec(package) is None]
    if missing:
        sys.exit(
            f"scannable: the command line needs {missing[0]}; install it with: pip install 'scannable[train,plot]'; "
            "scannable doctor shows what else is missing"
        )
    if not arguments or arguments[0] in ("-h", "--help"):
        print(HELP.format(commands=listing()))
        sys.exit(0 if arguments else 2)
    name, *rest = arguments
    functions = {command: function for group in GROUPS.values() for command, function in group.items()}
    if name not in functions:
        from scannable.storage.configuration import nearest

        print(f"scannable: there is no command {name!r:.60}{nearest(name, functions)}", file=sys.stderr)
        sys.exit(2)
    function = command(functions[name])
    if name == "train":
        # What a recipe's fields are is known only when it is named.
        function(rest)
        return
    import tyro

    tyro.cli(function, args=rest, prog=f"scannable {name}", description=description(function))


def command(function: str) -> Any:
    return getattr(import_module(f"scannable.cli.commands.{function}"), function)


def listing() -> str:
    """All commands in their groups, with a line for each."""
    parts: list[str] = []
    for title, group in GROUPS.items():
        lines = [f"  {name:<12}{(getdoc(command(function)) or '').splitlines()[0]}" for name, function in group.items()]
        parts.append("\n".join([f"{title}:", *lines]))
    return "\n\n".join(parts)


def description(function: Any) -> str:
    """What a command's docstring says before its arguments, line by line: examples keep their lines."""
    return cleandoc(function.__doc__ or "").partition("\nArgs:")[0].strip()
