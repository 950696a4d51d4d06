"""What each command of `scannable` does; `cli.py` finds it."""

import math
import os
import shlex
import signal
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Generic

import torch
import tyro
from rich.console import Console
from tyro.conf import Positional

from scannable.cli.demo import run as run_demo
from scannable.cli.layer_costs import table
from scannable.experiments.laboratory import Laboratory
from scannable.experiments.reproduce import ABOUT, named, perform, profile_named
from scannable.models.generation import generate as stream
from scannable.recipes import RECIPES, recipe_named
from scannable.spd import verify_duality
from scannable.storage.configuration import ConfigurationError, to_plain
from scannable.tasks import Split
from scannable.tasks.text import TextTask
from scannable.training.evaluation import evaluate as measure
from scannable.training.limits import check_batch_memory, check_samples
from scannable.training.logging import Sink, TensorBoardSink, WandbSink
from scannable.training.loop import Interrupted, Run
from scannable.training.plot import plot_runs
from scannable.training.processes import leave_processes
from scannable.training.recipe import M, Recipe, T, positive
from scannable.training.run_folder import load_trained


def demo(out: Path = Path("demo")) -> None:
    """Train a small model in about a minute, stream it far beyond its training length, and see that it is one function.

    Args:
        out: folder for the report: figures, their numbers, and the run itself.
    """
    out.mkdir(parents=True, exist_ok=True)  # before a minute of work for it
    run_demo(out, Console())


def zoo(width: int = 256, heads: int = 4, length: int = 1024) -> None:
    """List the rows of the affine zoo: what each does to its state, its complexity class, its memory and its work.

    Args:
        width: of the layers that are counted.
        heads: of the layers that are counted.
        length: how many tokens they have seen.
    """
    print(table(width, heads, length))


def recipes() -> None:
    """List the recipes that `train` knows, with a line for each."""
    for name, function in RECIPES.items():
        print(f"{name:<16}{(function.__doc__ or '').strip().splitlines()[0]}")


def evaluate(
    run: Positional[Path],
    lengths: tuple[int, ...] = (),
    samples: int | None = None,
    split: Split = "test",
) -> None:
    """Measure loss and error of a trained run, at its own length or at others.

    Args:
        run: folder of the run.
        lengths: lengths to measure at; by default the longest it was trained on.
        samples: samples for each length; by default 256, or all of a text.
        split: train, validation or test.
    """
    recipe, model = load_trained(run)
    lengths = lengths or (recipe.curriculum.lengths[-1],)
    for name, number in (*(("lengths", length) for length in lengths), ("samples", samples)):
        if number is not None:
            positive(name, number, int)
    check_batch_memory(recipe, lengths)
    if samples is None and not isinstance(recipe.task, TextTask):
        samples = 256
    print(f"{'length':>8}{'samples':>9}{'loss':>10}{'perplexity':>12}{'error':>9}{'bits/byte':>11}")
    for length in lengths:
        score = measure(
            model, recipe.task, split, length, samples, batch_tokens=recipe.batch_tokens, precision=recipe.precision
        )
        bits = "-" if score.bits_per_byte is None else f"{score.bits_per_byte:.4f}"
        print(
            f"{length:>8}{score.samples:>9}{score.loss:>10.4f}{math.exp(min(score.loss, 700)):>12.4f}"
            f"{score.error:>9.2%}{bits:>11}",
            flush=True,
        )


def generate(
    run: Positional[Path],
    prompt: str = "",
    tokens: int = 200,
    temperature: float = 0.8,
    top_k: int | None = None,
    seed: int = 0,
) -> None:
    """Stream text, or tokens, from a trained run.

    Args:
        run: folder of the run.
        prompt: what to go on from: text for a model of text, else token numbers with spaces between.
        tokens: how many to generate.
        temperature: 0 takes the likeliest every time.
        top_k: choose among the k likeliest.
        seed: makes the choice repeatable.
    """
    recipe, model = load_trained(run)
    task = recipe.task
    if isinstance(task, TextTask):
        start = task.encode(prompt or "\n")
    else:
        try:
            start = [int(word) for word in (prompt or "0").split()]
        except ValueError:
            raise ConfigurationError(
                f"prompt {prompt!r:.40} is no list of tokens; those of this run's {type(task).__name__} "
                f"are the numbers 0 to {task.vocab_size - 1}"
            ) from None
    chosen = stream(model, start, max_new_tokens=tokens, temperature=temperature, top_k=top_k, seed=seed)
    numbers = (int(token) for token in chosen)
    pieces = task.decode_stream(numbers) if isinstance(task, TextTask) else (f"{number} " for number in numbers)
    for piece in pieces:
        print(piece, end="", flush=True)
    print()


def verify(run: Positional[Path], length: int = 300, batch: int = 2) -> None:
    """Check that a trained model is one function: in parallel, by prefill in any split, and step by step.

    Args:
        run: folder of the run.
        length: tokens to check on.
        batch: rows to check on.
    """
    recipe, model = load_trained(run)
    tokens = recipe.task.batch("test", range(batch), length).tokens
    report = verify_duality(model, tokens, dtype=torch.float64)
    print(report)
    if not report.passed:
        sys.exit(1)


def plot(runs: Positional[tuple[Path, ...]], out: Path = Path("plot.png")) -> None:
    """Draw loss and validation error of one or several runs.

    Args:
        runs: folders of the runs.
        out: the picture; its numbers go beside it as CSV.
    """
    plot_runs(list(runs), out)
    print(f"written to {out} and {out.with_suffix('.csv')}")


def reproduce(
    experiment: Positional[Annotated[str, tyro.conf.arg(metavar="{s5,mqar,wikitext,latency,spd,all}")]],
    profile: Annotated[str, tyro.conf.arg(metavar="{smoke,laptop,paper}")] = "laptop",
    out: Path = Path("results"),
    runs: Path = Path("runs/reproduce"),
    workers: int | None = None,
    device: str = "cpu",
    data: str = "stdlib",
    tokenizer: str | None = None,
) -> None:
    """Run an experiment of the paper: train or measure all it needs, and write table, figure and a page about them.

    Interrupted, training has saved itself, and the same command goes on; latency and spd start anew.

    Args:
        experiment: s5 (state tracking), mqar (associative recall), wikitext (language modelling), latency (time per
            token), spd (complexity classes), or all of them.
        profile: smoke takes seconds and shows that it works; laptop takes up to two and a half hours an experiment
            on two CPU cores; paper is the paper's size, for a GPU.
        out: folder of the results; those of laptop go to NAME/ in it, others to NAME/PROFILE/.
        runs: folder of the training runs.
        workers: runs to train at once, each in a process of its own; by default as many as there are cores, at most 2.
        device: such as cuda.
        data: text for wikitext: stdlib, a file or folder, or a WikiText folder.
        tokenizer: for wikitext: bytes, bpe, or a folder with a tokenizer.json.
    """
    chosen, size = named(experiment), profile_named(profile)
    if workers is None:
        workers = 1 if size == "smoke" or device != "cpu" else min(2, os.cpu_count() or 1)
    positive("workers", workers, int)
    # As Ctrl-C: whatever is being trained saves itself first.
    before = signal.signal(signal.SIGTERM, signal.default_int_handler)
    console = Console()
    try:
        for name in chosen:
            results = out / name if size == "laptop" else out / name / size
            results.mkdir(parents=True, exist_ok=True)  # before hours of work for it
            lab = Laboratory(name, size, results, runs / name / size, console, workers, device, data, tokenizer)
            console.print(f"{name}: {ABOUT[name]} ({size})", highlight=False)
            perform(name, lab)
            console.print(f"{name}: written to {lab.results}", highlight=False)
    except (Interrupted, KeyboardInterrupt) as stopped:
        what = f"{stopped}; " if str(stopped) else ""
        console.print(f"interrupted; {what}the same command goes on", highlight=False)
        sys.exit(130)
    finally:
        signal.signal(signal.SIGTERM, before)


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


def train(arguments: list[str]) -> None:
    """Train a recipe; every field of it can be set, as in --model.width 128."""
    if not arguments or arguments[0].startswith("-"):
        print("usage: scannable train RECIPE [--out FOLDER] [--resume] [--FIELD VALUE ...]\n")
        recipes()
        print(f"\nscannable train {next(iter(RECIPES))} --help lists the fields of a recipe.")
        sys.exit(0 if arguments and arguments[0] in ("-h", "--help") else 2)
    name, rest = arguments[0], arguments[1:]
    default = recipe_named(name)
    kind: Any = Train[type(default.model), type(default.task)]  # pyright: ignore[reportInvalidTypeArguments]
    settings: Train[Any, Any] = tyro.cli(
        kind,
        default=Train(default),
        args=rest,
        prog=f"scannable train {name}",
        description=f"Train {name}: {(RECIPES[name].__doc__ or '').strip()}",
    )
    folder = settings.out or Path("runs") / name
    console = Console()

    def sinks() -> list[Sink]:
        chosen: list[Sink] = [TensorBoardSink(folder / "tensorboard")] if settings.tensorboard else []
        return [*chosen, WandbSink(folder, to_plain(settings.recipe))] if settings.wandb else chosen

    run = Run(settings.recipe, folder, console=console, device=settings.device, sinks=sinks)
    check_samples(settings.recipe)
    again = shlex.join(["scannable", "train", name, *[a for a in rest if a != "--resume"], "--resume"])
    try:
        result = run.train(resume=settings.resume, force=settings.force)
    except Interrupted as stopped:
        if run.processes.first:
            console.print(f"{stopped}\nTo go on: {again}", highlight=False)
        sys.exit(stopped.exit_code)
    finally:
        leave_processes()
    if run.processes.first:
        console.print(
            f"{result['parameters']:,} parameters, {result['steps']} steps; written to {folder}", highlight=False
        )
