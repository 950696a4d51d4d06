"""What a run survives: being killed at any moment, damaged checkpoints, a full disk, and signals.

A tiny run is trained once without interruption. Whatever happens to the others, once they have been resumed to the end
their weights, moments, averages, counters, metrics and results are the same bytes.

Every run is a fork of this process, which has imported everything already. What the library does in a fork is told to
the parent by wrapping functions there: the library itself knows nothing of it.
"""

import argparse
import contextlib
import json
import mmap
import os
import random
import resource
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import traceback
import warnings
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from select import select
from typing import Any

import torch
from rich.console import Console

import scannable.training.checkpoint as checkpoints
from scannable import recipes
from scannable.cli import commands as _commands  # noqa: F401  (here, so that no fork has to import it)
from scannable.cli import main as cli
from scannable.models.transformer_psm_config import TransformerPSMConfig
from scannable.storage.files import write_csv
from scannable.tasks import GroupTask
from scannable.training.checkpoint import CheckpointError
from scannable.training.logging import read_metrics
from scannable.training.loop import Run
from scannable.training.recipe import Curriculum, Evaluation, Optimizer, Recipe

RECIPE = Recipe(
    TransformerPSMConfig(6, width=16, chunk_length=2, agg_layers=1, inf_layers=1, heads=2, dropout=0.1),
    GroupTask("S3"),
    steps=60,
    batch_tokens=64,
    optimizer=Optimizer(learning_rate=3e-2, warmup=5),
    curriculum=Curriculum((4, 8), below=(0.7,), revisit=0.3),
    evaluation=Evaluation(every=10, samples=32, lengths=(12,)),
    ema=0.9,
    checkpoint_every=5,
    keep=2,
    log_every=3,
)
"""Small, and with everything that a checkpoint has to hold."""

MOMENTS = (
    "starting",
    "training",
    "evaluating",
    "saving",
    "between the renames",
    "deleting old checkpoints",
    "finishing",
)
SAVING = ("saving", "between the renames")
PATIENCE = 120.0
"""Seconds after which a run is taken to hang."""


# Counting.


@dataclass
class Tally:
    """What was tried, how often, and what went wrong."""

    rows: dict[tuple[str, str], list[int]] = field(default_factory=dict)
    failures: list[str] = field(default_factory=list)

    def add(self, part: str, what: str, wrong: list[str]) -> None:
        """One more try; it failed if anything is in `wrong`."""
        row = self.rows.setdefault((part, what), [0, 0])
        row[0] += 1
        if wrong:
            row[1] += 1
            self.failures.append(f"{part}, {what}: {'; '.join(wrong)}")
            print(f"FAILED  {self.failures[-1]}", flush=True)

    def table(self) -> str:
        lines = [f"{'part':<14}{'what':<48}{'tried':>7}{'failed':>8}"]
        lines += [f"{part:<14}{what:<48}{tried:>7}{failed:>8}" for (part, what), (tried, failed) in self.rows.items()]
        return "\n".join(lines)


# Processes.


@dataclass(frozen=True)
class Aim:
    """When the parent hears from the run: at the `nth` time that it comes to `moment`, and `calls` system calls later.

    With `calls` the run waits there for what the parent does to it; without, it goes on.
    """

    moment: str
    nth: int = 1
    calls: int | None = None


class Inside:
    """In a fork only: keeps track of the moment, tells the parent, and makes writing slow enough to be hit."""

    def __init__(self, page: mmap.mmap, writer: int, aim: Aim, slow: float) -> None:
        self.page, self.writer, self.aim, self.slow = page, writer, aim, slow
        self.stack: list[str] = []
        self.seen: Counter[str] = Counter()
        self.left: int | None = None
        self.enter("starting")
        self._wrap(Run, "_train", "training")
        self._wrap(Run, "_look", "evaluating")
        self._wrap(Run, "_finish", "finishing")
        self._wrap(checkpoints, "write", "saving")
        self._wrap(checkpoints, "prune", "deleting old checkpoints")
        step = Run._one_step

        def one_step(run: Run, length: int) -> tuple[float, float, int]:
            self._tell("step")
            return step(run, length)

        kind: Any = Run
        kind._one_step = one_step
        for name in ("fsync", "unlink", "rmdir", "mkdir"):
            self._slow_down(name)
        rename = Path.rename

        def watched_rename(path: Path, target: Path) -> Path:
            self._call()
            moved = rename(path, target)
            if str(target).endswith(".replaced"):
                self.enter("between the renames")
            elif str(path).endswith(".writing") and self.stack[-1] == "between the renames":
                self.leave()
            return moved

        paths: Any = Path
        paths.rename = watched_rename

    def enter(self, moment: str) -> None:
        self.stack.append(moment)
        self.page[0] = MOMENTS.index(moment)
        self._tell(moment)

    def leave(self) -> None:
        self.stack.pop()
        self.page[0] = MOMENTS.index(self.stack[-1])

    def _tell(self, moment: str) -> None:
        self.seen[moment] += 1
        if moment == self.aim.moment and self.seen[moment] == self.aim.nth:
            if self.aim.calls is None:
                os.write(self.writer, b"!")
            else:
                self.left = self.aim.calls
                self._call()

    def _call(self) -> None:
        """Before a system call that changes the disk."""
        if self.left == 0:
            self.left = None
            os.write(self.writer, b"!")
            time.sleep(PATIENCE)
        elif self.left:
            self.left -= 1
        if self.slow and self.stack[-1] != "training":
            time.sleep(self.slow)

    def _wrap(self, owner: Any, name: str, moment: str) -> None:
        original = getattr(owner, name)

        def wrapped(*arguments: Any, **named: Any) -> Any:
            self.enter(moment)
            try:
                return original(*arguments, **named)
            finally:
                while self.stack.pop() != moment:
                    pass
                self.page[0] = MOMENTS.index(self.stack[-1])

        setattr(owner, name, wrapped)

    def _slow_down(self, name: str) -> None:
        original = getattr(os, name)

        def wrapped(*arguments: Any, **named: Any) -> Any:
            self._call()
            return original(*arguments, **named)

        setattr(os, name, wrapped)


class Life:
    """A fork that does something, and what its parent can see and do."""

    def __init__(
        self, body: Callable[[], object], log: Path, *, aim: Aim | None = None, slow: float = 0.0, watch: bool = True
    ) -> None:
        self.page = mmap.mmap(-1, mmap.PAGESIZE)
        self.reader, writer = os.pipe()
        self.log = log
        sys.stdout.flush()
        sys.stderr.flush()
        with warnings.catch_warnings():
            # Later Pythons warn of threads in the parent; the fork has but its own and never meets theirs.
            warnings.simplefilter("ignore")
            self.pid = os.fork()
        if self.pid:
            os.close(writer)
            return
        code = 1
        try:
            output = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o644)
            os.dup2(output, 1)
            os.dup2(output, 2)
            sys.stdout = open(1, "w", buffering=1, closefd=False)  # noqa: SIM115
            sys.stderr = open(2, "w", buffering=1, closefd=False)  # noqa: SIM115
            if watch:
                Inside(self.page, writer, aim or Aim("nothing"), slow)
            body()
            code = 0
        except SystemExit as leaving:
            code = leaving.code if isinstance(leaving.code, int) else int(leaving.code is not None)
            if isinstance(leaving.code, str):
                print(leaving.code)
        except BaseException as error:
            traceback.print_exc()
            print(f"\nERROR {type(error).__name__}: {error}")
        finally:
            os._exit(code)

    def told(self) -> bool:
        """Wait until the run is where it was aimed at; False if it ended before."""
        ready, _, _ = select([self.reader], [], [], PATIENCE)
        if not ready:
            self.send(signal.SIGKILL)
            self.wait()
            raise TimeoutError(f"a run hangs; it said: {self.said()[-500:]}")
        return os.read(self.reader, 1) == b"!"

    def send(self, number: int) -> None:
        os.kill(self.pid, number)

    def wait(self) -> int:
        """The exit code; negative after a signal."""
        _, status = os.waitpid(self.pid, 0)
        os.close(self.reader)
        return os.waitstatus_to_exitcode(status)

    @property
    def moment(self) -> str:
        """The last one that the run came to."""
        return MOMENTS[self.page[0]]

    def said(self) -> str:
        return self.log.read_text()

    def error(self) -> str:
        """The type and message of the exception that ended it, or nothing."""
        found = self.said().rpartition("\nERROR ")
        return found[2].strip() if found[1] else ""


def train(folder: Path, *, resume: bool = True, stop: int | None = None) -> None:
    """Train the recipe; ask it to stop in the middle of step `stop`."""
    run = Run(RECIPE, folder, console=Console(width=1000))
    if stop is not None:
        step = run._one_step

        def one_step(length: int) -> tuple[float, float, int]:
            if run.step + 1 == stop:
                os.kill(os.getpid(), signal.SIGTERM)
            return step(length)

        run._one_step = one_step
    run.train(resume=resume)


def finish(folder: Path) -> str:
    """Resume to the end; what the run said, or a RuntimeError."""
    life = Life(lambda: train(folder), folder.with_suffix(".log"), watch=False)
    if code := life.wait():
        raise RuntimeError(f"resuming ended with {code}: {life.said()[-800:]}")
    return life.said()


def stopped_at(folder: Path, step: int) -> None:
    """A run that was asked to stop at a step, and did."""
    life = Life(lambda: train(folder, stop=step), folder.with_suffix(".log"), watch=False)
    life.wait()
    if "ERROR Interrupted" not in life.said() or checkpoints.steps(folder / "checkpoints")[-1] != step:
        raise RuntimeError(f"the run did not stop at step {step}: {life.said()[-800:]}")


def reference(folder: Path) -> float:
    """The run that nothing happens to; its seconds."""
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as other:
        # What torch imports in a first step takes longer than all steps; a fork finds it done.
        Run(replace(RECIPE, steps=1), Path(other), console=Console(quiet=True)).train(resume=True)
    folder.parent.mkdir(parents=True, exist_ok=True)
    began = time.monotonic()
    life = Life(lambda: train(folder, resume=False), folder.with_suffix(".log"), watch=False)
    if life.wait():
        raise RuntimeError(f"the reference failed: {life.said()}")
    seconds = time.monotonic() - began
    state = json.loads((checkpoints.path_of(folder / "checkpoints", RECIPE.steps) / "state.json").read_bytes())
    if state["stage"]["index"] != 1:
        raise RuntimeError("the reference never came to its second length; the recipe tests too little")
    return seconds


def differences(folder: Path, expected: Path) -> list[str]:
    """Files that are not, byte for byte, those of the reference, and files that nobody should have left.

    Seconds differ by nature. A checkpoint more is no harm: a run that was killed after its last step deletes nothing.
    """
    mine, theirs = (
        {str(path.relative_to(place)) for path in place.rglob("*") if path.is_file()} - {"timing.jsonl"}
        for place in (folder, expected)
    )
    more = [name for name in mine - theirs if not name.startswith("checkpoints/step-")]
    changed = [name for name in mine & theirs if (folder / name).read_bytes() != (expected / name).read_bytes()]
    try:
        read_metrics(folder / "timing.jsonl")
        unreadable = []
    except ValueError as error:
        unreadable = [str(error)]
    return [
        *unreadable,
        *(f"{name} is missing" for name in sorted(theirs - mine)),
        *(f"{name} is left over" for name in sorted(more)),
        *(f"{name} differs" for name in sorted(changed)),
    ]


def whole(folder: Path, step: int) -> bool:
    try:
        checkpoints.read(checkpoints.path_of(folder / "checkpoints", step))
    except CheckpointError:
        return False
    return True


# 1. Kills.

WAYS = (
    "anywhere",
    "anywhere",
    "starting",
    "evaluating",
    "saving",
    "saving",
    "saving, any time",
    "renames",
    "finishing",
)
"""How a kill is aimed; one is chosen at random each time."""


def kills(
    count: int,
    place: Path,
    expected: Path,
    seconds: float,
    tally: Tally,
    *,
    ways: tuple[str, ...] = WAYS,
    seed: int = 0,
) -> Counter[str]:
    """Kill runs `count` times altogether, each until it has had a few, and let it finish; deaths by moment."""
    chance = random.Random(seed)
    deaths: Counter[str] = Counter()
    number = 0
    while deaths.total() < count:
        folder = place / f"killed-{number}"
        number += 1
        wrong: list[str] = []
        for _ in range(min(chance.randint(1, 6), count - deaths.total())):
            died = _one_kill(folder, seconds, chance, ways, wrong)
            if died is None:
                break
            deaths[died] += 1
        try:
            finish(folder)
            wrong += differences(folder, expected)
        except RuntimeError as error:
            wrong.append(str(error))
        tally.add("kills", "runs that end as if nothing had happened", wrong)
        if not wrong:
            shutil.rmtree(folder)
        print(
            f"\rkills: {deaths.total()} of {count}, {number} runs, {len(tally.failures)} failures", end="", flush=True
        )
    print()
    for moment in MOMENTS:
        tally.rows["kills", f"killed while {moment}".replace("while between", "between")] = [deaths[moment], 0]
    return deaths


def _one_kill(
    folder: Path, seconds: float, chance: random.Random, ways: tuple[str, ...], wrong: list[str]
) -> str | None:
    """Start or resume, and kill; the moment, or None if the run came to its end before."""
    way = chance.choice(ways)
    there = checkpoints.steps(folder / "checkpoints")
    span = 0.0
    if way == "renames" and sum(whole(folder, step) for step in there) >= 2:
        # A checkpoint is replaced when the run comes again to a step whose checkpoint was damaged.
        damaged = checkpoints.path_of(folder / "checkpoints", there[-1]) / "model.safetensors"
        content = bytearray(damaged.read_bytes())
        content[chance.randrange(len(content))] ^= 1 << chance.randrange(8)
        damaged.write_bytes(content)
        aim = Aim("between the renames", 1, chance.choice((0, 0, 1, 2)))
    elif way == "anywhere":
        aim, span = Aim("starting"), seconds
    elif way == "starting":
        aim = Aim("starting", 1, chance.randint(1, 4))
    elif way == "evaluating":
        aim, span = Aim("evaluating", chance.randint(1, 4)), 0.01
    elif way == "finishing":
        aim = Aim("finishing", 1, chance.randint(0, 1))
    elif way == "saving, any time":
        aim, span = Aim("saving", chance.randint(1, 6)), 0.03
    else:
        aim = Aim("saving", chance.randint(1, 6), chance.randint(0, 11))
    life = Life(lambda: train(folder), folder.with_suffix(".log"), aim=aim, slow=0.002 if span else 0.0)
    if life.told():
        time.sleep(chance.uniform(0, span))
        life.send(signal.SIGKILL)
    code = life.wait()
    if code == -signal.SIGKILL:
        return life.moment
    if code:
        wrong.append(f"a resumed run ended with {code}: {life.said()[-800:]}")
    return None


# 2. Damage.


def _flip(path: Path, chance: random.Random, _: Path) -> None:
    victim = chance.choice(sorted(path.iterdir()))
    content = bytearray(victim.read_bytes())
    for _bit in range(chance.choice((1, 1, 1, 2, 16))):
        content[chance.randrange(len(content))] ^= 1 << chance.randrange(8)
    victim.write_bytes(content)


def _flip_manifest(path: Path, chance: random.Random, _: Path) -> None:
    content = bytearray((path / checkpoints.MANIFEST).read_bytes())
    content[chance.randrange(len(content))] ^= 1 << chance.randrange(8)
    (path / checkpoints.MANIFEST).write_bytes(content)


def _rewrite_manifest(path: Path, chance: random.Random, _: Path) -> None:
    """Well-formed, and not what was written."""
    plain = json.loads((path / checkpoints.MANIFEST).read_bytes())
    names = list(plain["files"])
    files = plain["files"]
    odd = chance.choice(([], {}, None, 0, "", names, [names], {"..": 1}, {"": 1}, {"a\0b": 1}, {"/etc/passwd": 1}))
    match chance.randrange(6):
        case 0:
            plain[chance.choice(list(plain))] = odd
        case 1:
            files[chance.choice(names)] = odd
        case 2:
            del files[chance.choice(names)]
        case 3:
            files[chance.choice((checkpoints.MANIFEST, ".", "..", "../state.json", "\ud800", "x" * 300))] = odd
        case 4:
            del plain[chance.choice(list(plain))]
        case _:
            (path / checkpoints.MANIFEST).write_text(chance.choice((json.dumps(odd), "[" * 100_000, "1" * 5000)))
            return
    (path / checkpoints.MANIFEST).write_text(json.dumps(plain, indent=1, sort_keys=True))


def _truncate(path: Path, chance: random.Random, _: Path) -> None:
    victim = chance.choice(sorted(path.iterdir()))
    victim.write_bytes(victim.read_bytes()[: chance.randrange(victim.stat().st_size)])


def _lengthen(path: Path, chance: random.Random, _: Path) -> None:
    victim = chance.choice(sorted(path.iterdir()))
    victim.write_bytes(victim.read_bytes() + chance.choice((b"\0", b"\n", b" " * 100)))


def _miss(path: Path, chance: random.Random, _: Path) -> None:
    chance.choice(sorted(path.iterdir())).unlink()


def _empty(path: Path, chance: random.Random, _: Path) -> None:
    chance.choice(sorted(path.iterdir())).write_bytes(b"")


def _folder_for_file(path: Path, chance: random.Random, _: Path) -> None:
    victim = chance.choice(sorted(path.iterdir()))
    victim.unlink()
    victim.mkdir()


def _from_another_step(path: Path, chance: random.Random, other: Path) -> None:
    name = chance.choice(sorted(file.name for file in path.iterdir()))
    shutil.copy(other / name, path / name)


def _swap_within(path: Path, chance: random.Random, _: Path) -> None:
    one, two = chance.sample(sorted(path.iterdir()), 2)
    first, second = one.read_bytes(), two.read_bytes()
    one.write_bytes(second)
    two.write_bytes(first)


def _another_number(path: Path, chance: random.Random, other: Path) -> None:
    """All of another step's files, under this step's name."""
    shutil.rmtree(path)
    shutil.copytree(other, path)


def _zero_block(path: Path, chance: random.Random, _: Path) -> None:
    victim = chance.choice(sorted(path.iterdir()))
    content = bytearray(victim.read_bytes())
    start, size = chance.randrange(len(content)), chance.choice((1, 16, 512, 4096))
    content[start : start + size] = bytes(len(content[start : start + size]))
    victim.write_bytes(content)


DAMAGE: dict[str, Callable[[Path, random.Random, Path], None]] = {
    "bits flipped in any file": _flip,
    "a bit flipped in MANIFEST.json": _flip_manifest,
    "MANIFEST.json rewritten": _rewrite_manifest,
    "a file truncated": _truncate,
    "a file lengthened": _lengthen,
    "a file missing": _miss,
    "a file empty": _empty,
    "a folder in place of a file": _folder_for_file,
    "a file of another step": _from_another_step,
    "two files swapped": _swap_within,
    "another step under this name": _another_number,
    "a block of zeros": _zero_block,
}


def corruptions(count: int, place: Path, expected: Path, tally: Tally, *, resume_every: int = 17, seed: int = 0) -> int:
    """Damage copies of a checkpoint; each must be refused. Every so often a run meets the damage when it resumes.

    Returns how many runs were resumed.
    """
    chance = random.Random(seed)
    base = place / "stopped"
    stopped_at(base, 41)
    held = base / "checkpoints"
    newest, before = reversed(checkpoints.steps(held)[-2:])
    resumed = 0
    for i in range(count):
        kind = list(DAMAGE)[i % len(DAMAGE)]
        folder = place / f"damaged-{i}"
        # With folders that a run can resume from, or the checkpoint alone.
        resume = i % resume_every == resume_every - 1
        if resume:
            shutil.copytree(base, folder)
        path = checkpoints.path_of(folder / "checkpoints", newest)
        # An extra folder, newer than all, is the worst of the wrong names: a run meets it at every save.
        extra = kind == "another step under this name" and chance.random() < 0.5
        if extra:
            path = checkpoints.path_of(folder / "checkpoints", chance.choice((newest + 1, 70)))
        path.parent.mkdir(parents=True, exist_ok=True)
        source, other = checkpoints.path_of(held, newest), checkpoints.path_of(held, newest if extra else before)
        while not path.exists() or (not extra and _same(path, source)):
            # Zeros over zeros, or the same bit twice, are no damage.
            shutil.rmtree(path, ignore_errors=True)
            shutil.copytree(source, path)
            DAMAGE[kind](path, chance, other)
        wrong: list[str] = []
        try:
            checkpoints.read(path)
            wrong.append(f"accepted ({folder})")
        except CheckpointError as error:
            message = str(error)
            if path.name not in message:
                wrong.append(f"the message does not name the checkpoint: {message}")
        except Exception as error:
            wrong.append(f"{type(error).__name__} instead of CheckpointError: {error} ({folder})")
        tally.add("corruptions", kind, wrong)
        if resume and not wrong:
            resumed += 1
            tally.add("corruptions", "resumed from the one before", _resumes(folder, path, expected))
        if not wrong:
            shutil.rmtree(folder)
        if i % 20 == 19 or i + 1 == count:
            print(
                f"\rcorruptions: {i + 1} of {count}, {resumed} resumed, {len(tally.failures)} failures",
                end="",
                flush=True,
            )
    print()
    return resumed


def _same(one: Path, two: Path) -> bool:
    return {p.name: p.read_bytes() for p in one.iterdir() if p.is_file()} == {
        p.name: p.read_bytes() for p in two.iterdir()
    }


def _resumes(folder: Path, damaged: Path, expected: Path) -> list[str]:
    """What is wrong when a run resumes beside a damaged checkpoint."""
    try:
        said = finish(folder)
    except RuntimeError as error:
        return [str(error)]
    message = next((line for line in said.splitlines() if "skipped:" in line), "")
    known = ("is missing", "is damaged", "is not what was written", "cannot be read")
    wrong = [] if damaged.name in message and any(text in message for text in known) else [f"it said {message!r}"]
    # A folder beyond the last step is never replaced; all else ends as it should.
    return wrong + differences(folder, expected)


# 3. Full disks.


def _limited(folder: Path, size: int) -> None:
    most = resource.getrlimit(resource.RLIMIT_FSIZE)[1]
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, most))
    try:
        train(folder)
    finally:
        # The log is a file too.
        resource.setrlimit(resource.RLIMIT_FSIZE, (most, most))


def _lied_to(folder: Path) -> None:
    """As under a quota: the filesystem has room, the user has not."""
    shutil.disk_usage = lambda path: shutil._ntuple_diskusage(1 << 40, 0, 1 << 40)  # pyright: ignore
    train(folder)


def _as_nobody(folder: Path) -> None:
    if os.getuid() == 0:
        os.setuid(65534)
    train(folder)


def _survives(
    folder: Path,
    body: Callable[[], object],
    lift: Callable[[], object],
    expected: Path,
    kind: type[Exception] = CheckpointError,
) -> list[str]:
    """A stopped run goes on where it cannot write; what is wrong with how it fails, and how it resumes afterwards."""
    held = folder / "checkpoints"
    last = checkpoints.steps(held)[-1]
    kept = {path.name: path.read_bytes() for path in checkpoints.path_of(held, last).iterdir()}
    life = Life(body, folder.with_suffix(".log"), watch=False)
    code, error = life.wait(), life.error()
    wrong: list[str] = []
    if code != 1 or not error.startswith(f"{kind.__name__}: ") or "then resume" not in error:
        wrong.append(f"ended with {code}, {error or life.said()[-300:]!r}")
    after = {path.name: path.read_bytes() for path in checkpoints.path_of(held, last).iterdir()}
    if kept != after or not whole(folder, last):
        wrong.append("the last good checkpoint was touched")
    wrong += [f"{path.name} is left over" for path in folder.rglob(".*") if path.name != ".lock"]
    lift()
    try:
        finish(folder)
    except RuntimeError as failed:
        return [*wrong, str(failed)]
    return wrong + differences(folder, expected)


def file_limits(place: Path, expected: Path, tally: Tally) -> None:
    """No file may grow beyond a size: less than the model takes, or less than the optimizer does."""
    for name, share in (("model", 0.5), ("optimizer", 0.99)):
        folder = place / f"limited-{name}"
        stopped_at(folder, 12)
        size = (checkpoints.path_of(folder / "checkpoints", 12) / f"{name}.safetensors").stat().st_size
        size = int(size * share)
        wrong = _survives(folder, lambda f=folder, s=size: _limited(f, s), lambda: None, expected)
        tally.add("full disk", f"no file longer than {share:.0%} of the {name}", wrong)
    folder = place / "limited-metrics"
    stopped_at(folder, 12)
    size = (folder / "metrics.jsonl").stat().st_size + 20
    tally.add(
        "full disk",
        "a line of metrics cut short",
        _survives(folder, lambda: _limited(folder, size), int, expected, OSError),
    )


def read_only(place: Path, expected: Path, tally: Tally) -> None:
    """A checkpoints folder of somebody else; root, whom no folder refuses, becomes nobody for it."""
    folder = place / "read-only"
    stopped_at(folder, 12)
    held = folder / "checkpoints"
    if os.getuid() == 0:
        for path in (folder, *folder.iterdir()):
            os.chown(path, 65534, 65534) if path != held else None
        above = [parent for parent in folder.parents if parent.stat().st_uid == 0 and not parent.stat().st_mode & 0o001]
        for parent in above:
            if not parent.is_relative_to(place):
                print(f"read-only folder: skipped, since nobody may not enter {parent}")
                return
            parent.chmod(0o755)
    held.chmod(0o555)
    wrong = _survives(folder, lambda: _as_nobody(folder), lambda: held.chmod(0o755), expected)
    tally.add("full disk", "a folder that may not be written", wrong)


@contextlib.contextmanager
def _small_disk(at: Path, options: str) -> Iterator[bool]:
    at.mkdir(parents=True)
    mount = ["mount", "-t", "tmpfs", "-o", options, "tmpfs", str(at)]
    done = subprocess.run(mount, capture_output=True, text=True, check=False) if os.getuid() == 0 else None
    if done is None or done.returncode:
        print(f"small filesystem: skipped, since {'only root can mount' if done is None else done.stderr.strip()}")
        yield False
        return
    try:
        yield True
    finally:
        subprocess.run(["umount", str(at)], check=True)


def small_disks(place: Path, expected: Path, tally: Tally) -> None:
    """A filesystem in memory that is nearly full: of bytes, known beforehand or not, or of files."""
    content = sum(p.stat().st_size for p in checkpoints.path_of(expected / "checkpoints", RECIPE.steps).iterdir())
    page = mmap.PAGESIZE
    ways: dict[str, tuple[int, bool]] = {
        "a full disk": (content // 2, False),
        "a full disk that says it has room": (content // 2, True),
        "a disk with a page left": (page, True),
        "a disk with nothing left": (0, True),
    }
    for what, (free, lie) in ways.items():
        at = place / what.replace(" ", "-")
        with _small_disk(at, "size=4m") as mounted:
            if not mounted:
                return
            folder, filler = at / "run", at / "filler"
            stopped_at(folder, 12)
            with filler.open("wb") as file:
                file.truncate(0)
                room = shutil.disk_usage(at).free - free
                file.write(bytes(room // page * page))
            body = (lambda f=folder: _lied_to(f)) if lie else (lambda f=folder: train(f))
            # The log of the run must be elsewhere: nothing fits here.
            tally.add("full disk", what, _survives_on(place, folder, body, filler.unlink, expected))
    at = place / "few-files"
    with _small_disk(at, "size=64m,nr_inodes=40") as mounted:
        if not mounted:
            return
        folder, fillers = at / "run", at / "fillers"
        stopped_at(folder, 12)
        fillers.mkdir()
        stat = os.statvfs(at)
        for i in range(stat.f_ffree - 3):
            (fillers / str(i)).touch()
        wrong = _survives_on(place, folder, lambda: train(folder), lambda: shutil.rmtree(fillers), expected)
        tally.add("full disk", "a disk without room for more files", wrong)


def _survives_on(
    place: Path, folder: Path, body: Callable[[], object], lift: Callable[[], object], expected: Path
) -> list[str]:
    """As `_survives`, the log beside the small disk."""
    folder.with_suffix(".log").unlink()
    folder.with_suffix(".log").symlink_to(place / "small-disk.log")
    return _survives(folder, body, lift, expected)


# 4. Signals.


def command_line(folder: Path, *, resume: bool, pause: float = 0.0) -> None:
    """`scannable train faults`, as typed; `pause` makes step 13 longer."""
    recipes.RECIPES["faults"] = lambda: RECIPE
    if pause:
        step = Run._one_step

        def one_step(run: Run, length: int) -> tuple[float, float, int]:
            done = step(run, length)
            if run.step == 12:
                time.sleep(pause)
            return done

        kind: Any = Run
        kind._one_step = one_step
    sys.argv = ["scannable", "train", "faults", "--out", str(folder), *(["--resume"] if resume else [])]
    cli.main()


def signals(place: Path, expected: Path, tally: Tally, numbers: tuple[signal.Signals, ...], *, twice: bool) -> None:
    """One signal ends a run with a checkpoint and its own exit code; a second SIGINT ends it at once."""
    for i, number in enumerate(numbers):
        folder = place / f"signal-{number.name}"
        life = Life(
            lambda f=folder: command_line(f, resume=False), folder.with_suffix(".log"), aim=Aim("step", 13 + 7 * i)
        )
        life.told()
        life.send(number)
        code, said = life.wait(), " ".join(life.said().split())
        step = 13 + 7 * i
        wrong = [] if code == 128 + number else [f"exit code {code}: {said[-300:]}"]
        if (
            f"stopped at step {step} of 60" not in said
            or "scannable train faults" not in said.partition("To go on: ")[2]
        ):
            wrong.append(f"it said {said[-300:]!r}")
        if checkpoints.steps(folder / "checkpoints")[-1:] != [step] or not whole(folder, step):
            wrong.append(f"no checkpoint of step {step}")
        tally.add("signals", f"{number.name} once", wrong + _resumes_by_command(folder, expected))
    ways = {"SIGINT twice in a step": (Aim("step", 13), 20.0), "SIGINT twice in a save": (Aim("saving", 3, 4), 0.0)}
    for what, (aim, pause) in ways.items() if twice else ():
        folder = place / what.replace(" ", "-")
        life = Life(
            lambda f=folder, p=pause: command_line(f, resume=False, pause=p),
            folder.with_suffix(".log"),
            aim=aim,
        )
        life.told()
        life.send(signal.SIGINT)
        time.sleep(0.05)
        life.send(signal.SIGINT)
        began = time.monotonic()
        code = life.wait()
        took = time.monotonic() - began
        wrong = [] if code == 130 else [f"exit code {code}: {life.said()[-300:]}"]
        if took > 5:
            wrong.append(f"it took {took:.1f} s to stop")
        if "Traceback" in life.said():
            wrong.append(f"it said {life.said()[-300:]!r}")
        tally.add("signals", what, wrong + _resumes_by_command(folder, expected))


def _resumes_by_command(folder: Path, expected: Path) -> list[str]:
    life = Life(lambda: command_line(folder, resume=True), folder.with_suffix(".log"), watch=False)
    code = life.wait()
    return [f"resuming ended with {code}: {life.said()[-300:]}"] if code else differences(folder, expected)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kills", type=int, default=0, help="how often to kill runs")
    parser.add_argument("--corruptions", type=int, default=0, help="how many checkpoints to damage")
    parser.add_argument("--full-disk", action="store_true", help="let writing fail")
    parser.add_argument("--signals", action="store_true", help="send signals")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--out", type=Path, help="where the CSV goes")
    arguments = parser.parse_args()
    # Without a choice, or with the two numbers alone, everything is tried.
    every = not (arguments.full_disk or arguments.signals)
    torch.set_num_threads(1)
    tally, began = Tally(), time.monotonic()
    place = Path(tempfile.mkdtemp(prefix="scannable-faults-"))
    expected = place / "reference"
    seconds = reference(expected)
    print(f"reference: {RECIPE.steps} steps in {seconds:.2f} s; working in {place}", flush=True)
    if arguments.kills:
        deaths = kills(arguments.kills, place, expected, seconds, tally, seed=arguments.seed)
        share = sum(deaths[moment] for moment in SAVING) / deaths.total()
        few = [] if share >= 0.3 else [f"only {share:.0%} of the kills came while saving"]
        tally.add("kills", "at least 30 % while saving", few)
        print(", ".join(f"{moment} {deaths[moment]}" for moment in MOMENTS) + f"; {share:.0%} while saving")
    if arguments.corruptions:
        corruptions(arguments.corruptions, place, expected, tally, seed=arguments.seed)
    if every or arguments.full_disk:
        file_limits(place, expected, tally)
        read_only(place, expected, tally)
        small_disks(place, expected, tally)
    if every or arguments.signals:
        signals(place, expected, tally, (signal.SIGTERM, signal.SIGUSR1, signal.SIGINT), twice=True)
    print(f"\n{tally.table()}\n\n{len(tally.failures)} failures in {time.monotonic() - began:.0f} s")
    if arguments.out:
        rows = [[part, what, tried, failed] for (part, what), (tried, failed) in tally.rows.items()]
        write_csv(arguments.out, ["part", "what", "tried", "failed"], rows)
        print(f"written to {arguments.out}")
    if tally.failures:
        print(f"what failed is in {place}")
        sys.exit(1)
    shutil.rmtree(place)


if __name__ == "__main__":
    main()
