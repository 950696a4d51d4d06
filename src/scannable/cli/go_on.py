"""The command that goes on with an interrupted run, to be pasted in any folder."""

import os
import shlex
import shutil
import sys
from collections.abc import Iterator
from pathlib import Path

DROPPED = ("--resume", "--no-resume", "--force", "--no-force")
"""`--resume` comes at the end; the checkpoint that an interruption leaves has the configuration that was forced."""


def command_to_go_on(recipe: str, options: list[str], folder: Path) -> str:
    """One line for a shell."""
    kept = list(_kept(options))
    words = [*_program(), "train", recipe, *kept, "--out", str(folder.absolute()), "--resume"]
    # A path in a recipe is part of the configuration, which must stay as it was typed.
    values = [option.partition("=")[2] or option for option in kept]
    here = [value for value in values if not value.startswith("-") and not Path(value).is_absolute() and _exists(value)]
    return " ".join([*(["cd", shlex.quote(str(Path.cwd())), "&&"] if here else []), shlex.join(words)])


def _kept(options: list[str]) -> Iterator[str]:
    rest = iter(options)
    for option in rest:
        if option == "--out":
            next(rest, None)
        elif option not in DROPPED and not option.startswith("--out="):
            yield option


def _exists(value: str) -> bool:
    try:
        return Path(value).exists()
    except (OSError, ValueError):  # too long for a name, or no name at all
        return False


def _program() -> list[str]:
    """What was typed before `train`: under torchrun with as many processes, else the command or the module."""
    processes, here = (int(os.environ.get(name, "1")) for name in ("WORLD_SIZE", "LOCAL_WORLD_SIZE"))
    if processes > 1:
        torchrun = ["torchrun"] if shutil.which("torchrun") else [sys.executable, "-m", "torch.distributed.run"]
        nodes = [] if processes == here else ["--nnodes", str(processes // here)]
        return [*torchrun, *nodes, "--nproc-per-node", str(here), "-m", "scannable"]
    typed = Path(sys.argv[0])
    if typed.name != "scannable":
        return [sys.executable, "-m", "scannable"]
    found = shutil.which("scannable")
    return ["scannable"] if found and Path(found).resolve() == typed.resolve() else [str(typed.absolute())]
