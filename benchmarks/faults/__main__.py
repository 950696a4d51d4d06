"""`python -m benchmarks.faults`: try all faults, and print how often each was tried and how often it did harm."""

import argparse
import shutil
import sys
import tempfile
import time
from pathlib import Path

import benchmarks.faults
from benchmarks.faults.changes import changes
from benchmarks.faults.corruptions import corruptions
from benchmarks.faults.disks import disks
from benchmarks.faults.kills import SAVING, kills
from benchmarks.faults.ranks import ranks
from benchmarks.faults.signals import signals
from benchmarks.faults.tally import Tally
from benchmarks.faults.tiny_run import RECIPE, Reference, reference
from benchmarks.faults.watching import MOMENTS
from scannable.storage.files import write_csv

PARTS = ("kills", "corruptions", "changes", "disks", "signals", "ranks")


def main() -> None:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.faults",
        description=f"{benchmarks.faults.__doc__}\nThe exit code is 1 if anything failed; what did is kept then.",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--kills", type=int, default=40, help="how often to kill runs (default 40)")
    parser.add_argument("--corruptions", type=int, default=200, help="checkpoints to damage (default 200)")
    parser.add_argument("--ranks", type=int, default=10, help="faults of one of several processes (default 10)")
    parser.add_argument("--only", choices=PARTS, help="try one part; by default all")
    parser.add_argument("--seed", type=int, default=0, help="of what is chosen at random (default 0)")
    parser.add_argument("--out", type=Path, help="write the table to this CSV file too")
    arguments = parser.parse_args()
    tally, began = Tally(), time.monotonic()
    place = Path(tempfile.mkdtemp(prefix="scannable-faults-"))
    expected = reference(place / "reference")
    print(f"reference: {RECIPE.steps} steps in {expected.seconds:.2f} s; working in {place}", flush=True)
    for part in [arguments.only] if arguments.only else PARTS:
        match part:
            case "kills":
                try_kills(arguments.kills, place, expected, tally, arguments.seed)
            case "corruptions":
                corruptions(arguments.corruptions, place, expected, tally, seed=arguments.seed)
            case "changes":
                changes(place, expected, tally)
            case "disks":
                disks(place, expected, tally)
            case "signals":
                signals(place, expected, tally)
            case _:
                ranks(arguments.ranks, place, tally, seed=arguments.seed)
    print(f"\n{tally.table()}\n\n{len(tally.failures)} failures in {time.monotonic() - began:.0f} s")
    if arguments.out:
        rows = [[part, what, tried, failed] for (part, what), (tried, failed) in tally.rows.items()]
        write_csv(arguments.out, ["part", "what", "tried", "failed"], rows)
        print(f"written to {arguments.out}")
    if tally.failures:
        print(f"what failed is in {place}")
        sys.exit(1)
    shutil.rmtree(place)


def try_kills(count: int, place: Path, expected: Reference, tally: Tally, seed: int) -> None:
    """Kill, and see that enough of it came while a checkpoint was written."""
    deaths = kills(count, place, expected, tally, seed=seed)
    share = sum(deaths[moment] for moment in SAVING) / max(1, deaths.total())
    few = [] if share >= 0.3 else [f"only {share:.0%} of the kills came while saving"]
    tally.add("kills", "at least 30 % while saving", few)
    print(", ".join(f"{moment} {deaths[moment]}" for moment in MOMENTS) + f"; {share:.0%} while saving")


if __name__ == "__main__":
    main()
