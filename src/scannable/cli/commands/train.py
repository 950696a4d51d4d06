"""`scannable train`."""

import os
import sys
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Generic

import tyro

from scannable.cli.commands.recipes import recipes
from scannable.cli.go_on import command_to_go_on
from scannable.cli.layer_argument import REGISTRY
from scannable.recipes import about, recipe_named
from scannable.storage.configuration import to_plain
from scannable.training.parallel import Parallel
from scannable.training.recipe import M, Recipe, T

if TYPE_CHECKING:
    from scannable.training.logging import Sink

EXAMPLE = """\
Examples:
  scannable train s5
  scannable train s5 --model.width 64 --steps 5000 --out runs/narrow
  scannable train s5 --model.width 64 --steps 5000 --out runs/narrow --resume
  torchrun --nproc-per-node 4 -m scannable train s5
  torchrun --nproc-per-node 4 -m scannable train s5 --parallel.sequence 2 --parallel.shard"""


@dataclass(frozen=True)
class Train(Generic[M, T]):
    """Where to train, and how to go on."""

    recipe: Annotated[Recipe[M, T], tyro.conf.arg(name="")]
    out: Path | None = None
    """Folder of the run; by default runs/RECIPE."""
    resume: bool = False
    """Go on from the newest whole checkpoint, or start if there is none."""
    force: bool = False
    """Resume even though the configuration has changed."""
    tensorboard: bool = False
    """Write TensorBoard logs too."""
    wandb: bool = False
    """Log to Weights & Biases too."""
    device: str = "cpu"
    """Such as cuda."""
    parallel: Parallel = field(default_factory=Parallel)


def train(arguments: list[str]) -> None:
    """Train a recipe; any field can be set: --model.width 128."""
    if not arguments or arguments[0].startswith("-"):
        asked = arguments[:1] in (["-h"], ["--help"])
        print("usage: scannable train RECIPE [--out FOLDER] [--resume] [--FIELD VALUE ...]\n")
        recipes()
        print(f"\nscannable train RECIPE --help lists the fields of a recipe.\n\n{EXAMPLE}")
        if not asked and arguments:
            print(f"scannable: the recipe comes first, before {arguments[0]}", file=sys.stderr)
        sys.exit(0 if asked else 2)
    name, rest = arguments[0], arguments[1:]
    work(name, parsed(name, rest), rest)


def parsed(name: str, rest: list[str]) -> Train[Any, Any]:
    """The recipe of that name with what was typed behind it."""
    default = recipe_named(name)
    kind: Any = Train[type(default.model), type(default.task)]  # pyright: ignore[reportInvalidTypeArguments]
    return tyro.cli(
        kind,
        default=Train(default),
        args=rest,
        registry=REGISTRY,
        prog=f"scannable train {name}",
        description=f"Train {name}: {about(name)}\n\nExample:\n    scannable train {name} --steps 100 --out runs/short",
    )


def work(name: str, settings: Train[Any, Any], rest: list[str]) -> None:
    """Train, and say what came of it, or how to go on."""
    from rich.console import Console

    from scannable.cli.device import usable_device
    from scannable.training.limits import check_samples
    from scannable.training.logging import TensorBoardSink, WandbSink
    from scannable.training.loop import Interrupted, Run
    from scannable.training.processes import leave_processes, restarted
    from scannable.training.roll_call import LostRankError

    recipe, folder = settings.recipe, settings.out or Path("runs") / name
    console = Console()

    def sinks() -> "list[Sink]":
        chosen: list[Sink] = [TensorBoardSink(folder / "tensorboard")] if settings.tensorboard else []
        return [*chosen, WandbSink(folder, to_plain(recipe))] if settings.wandb else chosen

    device = usable_device(settings.device)
    run = None
    try:
        run = Run(recipe, folder, console=console, device=device, sinks=sinks, parallel=settings.parallel)
        check_samples(recipe)
        result = run.train(resume=settings.resume or restarted(), force=settings.force)
    except LostRankError as lost:
        print(f"scannable: {lost}\nTo go on: {command_to_go_on(name, rest, folder)}", file=sys.stderr, flush=True)
        # At once: to leave a group in good order would wait for the one that is missing.
        os._exit(1)
    except Interrupted as stopped:
        if run is not None and run.processes.first:
            # One line, whatever the width of the terminal: it is meant to be pasted.
            print(f"{stopped}\nTo go on: {command_to_go_on(name, rest, folder)}", flush=True)
        sys.exit(stopped.exit_code)
    finally:
        leave_processes()
    if run.processes.first:
        best = f"; best validation loss at step {result['best']['step']}" if result["best"] else ""
        print(f"{result['parameters']:,} parameters, {result['steps']} steps{best}; written to {folder}")
    if run.asked_to_stop:
        # Too late for this run to stop, but not for what would follow it.
        sys.exit(128 + run.asked_to_stop)
