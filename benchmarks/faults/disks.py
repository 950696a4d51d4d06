"""Disks that cannot be written: the last checkpoint stays, the message says what to do, and then the run goes on."""

import contextlib
import mmap
import os
import resource
import shutil
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import scannable.training.checkpoint as checkpoints
from benchmarks.faults.life import Life
from benchmarks.faults.tally import Tally
from benchmarks.faults.tiny_run import RECIPE, Reference, finish, stopped_at, train, whole
from scannable.training.checkpoint import CheckpointError

NOBODY = 65534


def disks(place: Path, expected: Reference, tally: Tally) -> None:
    """All of them; those that this user or this system cannot make are skipped, and said to be."""
    file_limits(place, expected, tally)
    read_only(place, expected, tally)
    small_disks(place, expected, tally)


def file_limits(place: Path, expected: Reference, tally: Tally) -> None:
    """No file may grow beyond a size: less than the model takes, or less than the optimizer does."""
    for name, share in (("model", 0.5), ("optimizer", 0.99)):
        folder = _stopped(place, f"limited-{name}")
        size = (checkpoints.path_of(folder / "checkpoints", 12) / f"{name}.safetensors").stat().st_size
        size = int(size * share)
        wrong = _badly_survived(folder, lambda f=folder, s=size: _limited(f, s), lambda: None, expected)
        tally.add("full disk", f"no file longer than {share:.0%} of the {name}", wrong)
    folder = _stopped(place, "limited-metrics")
    size = (folder / "metrics.jsonl").stat().st_size + 20
    wrong = _badly_survived(folder, lambda: _limited(folder, size), lambda: None, expected, OSError)
    tally.add("full disk", "a line of metrics cut short", wrong)


def read_only(place: Path, expected: Reference, tally: Tally) -> None:
    """A checkpoints folder of somebody else; root, whom no folder refuses, becomes nobody for it."""
    folder = _stopped(place, "read-only")
    held = folder / "checkpoints"
    if os.getuid() == 0:
        for path in (folder, *folder.iterdir()):
            if path != held:
                os.chown(path, NOBODY, NOBODY)
        above = [parent for parent in folder.parents if parent.stat().st_uid == 0 and not parent.stat().st_mode & 0o001]
        for parent in above:
            if not parent.is_relative_to(place):
                print(f"read-only folder: skipped, since nobody may not enter {parent}")
                return
            parent.chmod(0o755)
    held.chmod(0o555)
    wrong = _badly_survived(folder, lambda: _as_nobody(folder), lambda: held.chmod(0o755), expected)
    tally.add("full disk", "a folder that may not be written", wrong)


def small_disks(place: Path, expected: Reference, tally: Tally) -> None:
    """A filesystem in memory that is nearly full: of bytes, known beforehand or not, or of files."""
    last = checkpoints.path_of(expected.folder / "checkpoints", RECIPE.steps)
    content = sum(path.stat().st_size for path in last.iterdir())
    page = mmap.PAGESIZE
    ways: dict[str, tuple[int, bool]] = {
        "a full disk": (content // 2, False),
        "a full disk that says it has room": (content // 2, True),
        "a disk with a page left": (page, True),
        "a disk with nothing left": (0, True),
    }
    for what, (free, lie) in ways.items():
        with _small_disk(place / what.replace(" ", "-"), "size=4m") as disk:
            if disk is None:
                return
            folder, filler = _stopped(place, f"{disk.name}/run"), disk / "filler"
            with filler.open("wb") as file:
                room = shutil.disk_usage(disk).free - free
                file.write(bytes(room // page * page))
            body = (lambda f=folder: _lied_to(f)) if lie else (lambda f=folder: train(f))
            tally.add("full disk", what, _badly_survived(folder, body, filler.unlink, expected))
    with _small_disk(place / "few-files", "size=64m,nr_inodes=40") as disk:
        if disk is None:
            return
        folder, fillers = _stopped(place, f"{disk.name}/run"), disk / "fillers"
        fillers.mkdir()
        for i in range(os.statvfs(disk).f_ffree - 3):
            (fillers / str(i)).touch()
        wrong = _badly_survived(folder, lambda: train(folder), lambda: shutil.rmtree(fillers), expected)
        tally.add("full disk", "a disk without room for more files", wrong)


def _stopped(place: Path, name: str) -> Path:
    """A run that was stopped at step 12; its log is never on the disk that it is on."""
    base, folder = place / "stopped-at-12", place / name
    if not base.exists():
        stopped_at(base, 12)
    shutil.copytree(base, folder)
    folder.with_suffix(".log").symlink_to(place / f"{name.replace('/', '-')}-elsewhere.log")
    return folder


def _badly_survived(
    folder: Path,
    body: Callable[[], object],
    lift: Callable[[], object],
    expected: Reference,
    kind: type[Exception] = CheckpointError,
) -> list[str]:
    """A stopped run goes on in `body`, where it cannot write, and once more after `lift`; what is wrong with how it
    fails with `kind`, and how it resumes afterwards.
    """
    held = folder / "checkpoints"
    last = checkpoints.steps(held)[-1]
    kept = {path.name: path.read_bytes() for path in checkpoints.path_of(held, last).iterdir()}
    life = Life(body, folder.with_suffix(".log"))
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
    return wrong + expected.differences(folder)


# How writing is made to fail, in the process of the run.


def _limited(folder: Path, size: int) -> None:
    most = resource.getrlimit(resource.RLIMIT_FSIZE)[1]
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, most))
    try:
        train(folder)
    finally:
        # The log is a file too.
        resource.setrlimit(resource.RLIMIT_FSIZE, (most, most))


def _as_nobody(folder: Path) -> None:
    if os.getuid() == 0:
        os.setuid(NOBODY)
    train(folder)


def _lied_to(folder: Path) -> None:
    """As under a quota: the filesystem has room, the user has not."""
    shutil.disk_usage = lambda path: shutil._ntuple_diskusage(1 << 40, 0, 1 << 40)  # pyright: ignore
    train(folder)


@contextlib.contextmanager
def _small_disk(at: Path, options: str) -> Iterator[Path | None]:
    at.mkdir(parents=True)
    mount = ["mount", "-t", "tmpfs", "-o", options, "tmpfs", str(at)]
    done = subprocess.run(mount, capture_output=True, text=True, check=False) if os.getuid() == 0 else None
    if done is None or done.returncode:
        print(f"small filesystem: skipped, since {'only root can mount' if done is None else done.stderr.strip()}")
        yield None
        return
    try:
        yield at
    finally:
        subprocess.run(["umount", str(at)], check=True)
