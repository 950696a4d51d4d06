"""Damaged checkpoints: each is refused, and a run that meets one resumes from the one before it."""

import random
import shutil
from pathlib import Path

import scannable.training.checkpoint as checkpoints
from benchmarks.faults.damage import DAMAGE, WRONG_NAME
from benchmarks.faults.tally import Tally
from benchmarks.faults.tiny_run import Reference, finish, stopped_at
from scannable.training.checkpoint import CheckpointError


def corruptions(
    count: int, place: Path, expected: Reference, tally: Tally, *, resume_every: int = 17, seed: int = 0
) -> int:
    """Damage copies of a checkpoint; each must be refused. Every so often a run meets the damage when it resumes.

    Returns how many runs were resumed.
    """
    chance = random.Random(seed)
    base = place / "stopped"
    stopped_at(base, 41)
    resumed = 0
    for i in range(count):
        kind = list(DAMAGE)[i % len(DAMAGE)]
        folder = place / f"damaged-{i}"
        resume = i % resume_every == resume_every - 1
        if resume:
            shutil.copytree(base, folder)
        damaged = _damaged(kind, base / "checkpoints", folder / "checkpoints", chance)
        wrong = _accepted(damaged)
        tally.add("corruptions", kind, wrong)
        if resume and not wrong:
            resumed += 1
            wrong = _badly_resumed(folder, damaged, expected)
            tally.add("corruptions", "resumed from the one before", wrong)
        if not wrong:
            shutil.rmtree(folder)
        if i % 20 == 19 or i + 1 == count:
            progress = f"{i + 1} of {count}, {resumed} resumed, {len(tally.failures)} failures"
            print(f"\rcorruptions: {progress}", end="", flush=True)
    print()
    return resumed


def _damaged(kind: str, held: Path, place: Path, chance: random.Random) -> Path:
    """A damaged copy, in `place`, of the newest checkpoint in `held`."""
    before, newest = checkpoints.steps(held)[-2:]
    # An extra folder, newer than all, is the worst of the wrong names: a run meets it at every save.
    extra = kind == WRONG_NAME and chance.random() < 0.5
    path = checkpoints.path_of(place, chance.choice((newest + 1, 70)) if extra else newest)
    path.parent.mkdir(parents=True, exist_ok=True)
    source, other = checkpoints.path_of(held, newest), checkpoints.path_of(held, newest if extra else before)
    while not path.exists() or (not extra and _same(path, source)):
        # Zeros over zeros, or the same bit twice, are no damage.
        shutil.rmtree(path, ignore_errors=True)
        shutil.copytree(source, path)
        DAMAGE[kind](path, chance, other)
    return path


def _same(one: Path, two: Path) -> bool:
    first, second = ({p.name: p.read_bytes() for p in path.iterdir() if p.is_file()} for path in (one, two))
    return first == second


def _accepted(damaged: Path) -> list[str]:
    """What is wrong when it is read: it must be refused by name."""
    try:
        checkpoints.read(damaged)
        return [f"accepted ({damaged})"]
    except CheckpointError as error:
        return [] if damaged.name in str(error) else [f"the message does not name the checkpoint: {error}"]
    except Exception as error:
        return [f"{type(error).__name__} instead of CheckpointError: {error} ({damaged})"]


def _badly_resumed(folder: Path, damaged: Path, expected: Reference) -> list[str]:
    """What is wrong when a run resumes beside it."""
    try:
        said = finish(folder)
    except RuntimeError as error:
        return [str(error)]
    message = next((line for line in said.splitlines() if "skipped:" in line), "")
    known = ("is missing", "is damaged", "is not what was written", "cannot be read")
    wrong = [] if damaged.name in message and any(text in message for text in known) else [f"it said {message!r}"]
    # A folder beyond the last step is never replaced; all else ends as it should.
    return wrong + expected.differences(folder)
