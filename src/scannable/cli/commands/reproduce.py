"""`scannable reproduce`."""

import os
import signal
import sys
from pathlib import Path
from typing import Annotated, Any

import tyro
from tyro.conf import Positional

from scannable.experiments.profile import profile_named
from scannable.experiments.reproduce import ABOUT, PARTS, checked_parts, named, perform
from scannable.storage.configuration import ConfigurationError
from scannable.training.recipe import positive


def reproduce(
    experiment: Positional[Annotated[str, tyro.conf.arg(metavar="{s5,mqar,wikitext,latency,spd,space,corrected,all}")]],
    profile: Annotated[str, tyro.conf.arg(metavar="{smoke,laptop,paper}")] = "laptop",
    out: Path = Path("results"),
    runs: Path = Path("runs/reproduce"),
    workers: int | None = None,
    device: str = "cpu",
    data: str | None = None,
    tokenizer: str | None = None,
    parts: tuple[str, ...] | None = None,
    only_finished: bool = False,
    recorded: bool = False,
) -> None:
    """Run an experiment of the paper: table, figure and page.

    All that it needs is trained or measured. Interrupted, training has saved itself, and the same command goes on;
    latency, spd and space start anew.

    Examples:
        scannable reproduce s5 --profile smoke
        scannable reproduce wikitext --data ~/wikitext-103-raw
        scannable reproduce s5 --only-finished
        scannable reproduce s5 --recorded --parts opponents

    Args:
        experiment: s5 (state tracking), mqar (associative recall), wikitext (language modelling), latency (time per
            token), spd (complexity classes), space (bytes kept for backward), corrected (what each
            departure from the paper is worth), or all of them.
        profile: smoke takes seconds and shows that it works; laptop takes minutes to hours on two CPU cores, and
            about six for s5; paper is the paper's size, for a GPU.
        out: folder of the results; those of laptop go to NAME/ in it, others to NAME/PROFILE/.
        runs: folder of the training runs.
        workers: runs to train at once, each in a process of its own; by default as many as there are cores, at most 2.
        device: such as cuda.
        data: text for wikitext and corrected: stdlib, a file or folder, or a WikiText folder; by default stdlib, and
            WikiText-103 from the hub for wikitext at the paper's size.
        tokenizer: of that text: bytes, bpe, or a folder with a tokenizer.json.
        parts: train only these parts (s5: psm, opponents, noise, ablation, longer, generators, seeds, direct, reading;
            mqar: sweep, first, seeds, pairs; wikitext: sweep, modern, further, paper, longer, seeds, streams), and make
            the page of all that is there.
        only_finished: train nothing, and make the page of the runs that are finished; it says which are missing.
        recorded: take runs as finished whose records lie beside the page (configurations/ and finished/ there), as if
            they had been trained here; so that a long experiment can go on where another machine has stopped. A run
            folder without weights is brought to what its record says.
    """
    chosen, size = named(experiment), profile_named(profile)
    wanted = checked_parts(chosen, parts)
    with_records = [name for name in chosen if name in PARTS]
    if recorded and not with_records:
        raise ConfigurationError(f"{experiment} has no runs that records stand for; leave --recorded out")
    if workers is None:
        workers = 1 if size == "smoke" or device != "cpu" else min(2, os.cpu_count() or 1)
    positive("workers", workers)
    if "wikitext" in chosen:
        from scannable.experiments.language_profiles import check_text

        check_text(size, data, tokenizer)
    from rich.console import Console

    from scannable.cli.device import usable_device
    from scannable.experiments.laboratory import Laboratory
    from scannable.training.loop import Interrupted

    usable_device(device)
    console, heard = Console(), [signal.SIGINT]

    def stop(number: int, frame: Any) -> None:
        # As Ctrl-C: whatever is being trained saves itself first.
        heard.append(signal.Signals(number))
        raise KeyboardInterrupt

    before = signal.signal(signal.SIGTERM, stop)
    try:
        for name in chosen:
            results = out / name if size == "laptop" else out / name / size
            results.mkdir(parents=True, exist_ok=True)  # before hours of work for it
            lab = Laboratory(
                name,
                size,
                results,
                runs / name / size,
                console,
                workers,
                device,
                data,
                tokenizer,
                wanted,
                only_finished,
                recorded and name in with_records,
            )
            console.print(f"{name}: {ABOUT[name]} ({size})", highlight=False)
            perform(name, lab)
            console.print(f"{name}: written to {lab.results}", highlight=False)
    except Interrupted as stopped:
        console.print(f"interrupted; {stopped}; the same command goes on", highlight=False)
        sys.exit(stopped.exit_code)
    except KeyboardInterrupt:
        console.print("interrupted; the same command goes on", highlight=False)
        sys.exit(128 + heard[-1])
    finally:
        signal.signal(signal.SIGTERM, before)
