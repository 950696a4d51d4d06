"""Checkpoints that are whole or not there, and checked before they are believed; a good one is always left.

    RUN/checkpoints/step-00000500/
        model.safetensors  optimizer.safetensors  [average.safetensors]  state.json  MANIFEST.json

A checkpoint is a checked folder (`checked_folder.py`), whose manifest also has the step. Nothing is unpickled.
"""

import errno
import json
import os
import shutil
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from torch import Tensor

from scannable.storage import tensor_file
from scannable.storage.checked_folder import (
    DamagedError,
    Sum,
    check_files,
    check_sum,
    manifest_of,
    put_in_place,
    read_manifest,
    sum_of,
    sum_of_file,
)
from scannable.storage.files import sync

FORMAT = "scannable-checkpoint-1"
MANIFEST = "MANIFEST.json"
STATE = "state.json"


class CheckpointError(RuntimeError):
    """A checkpoint that is damaged, or could not be written."""


@dataclass(frozen=True)
class Checkpoint:
    """Everything that a run needs to go on as if it had never stopped."""

    step: int
    model: Mapping[str, Tensor]
    optimizer: Mapping[str, Tensor]
    state: Mapping[str, Any]
    """What JSON can hold: counters, curriculum, configuration, versions."""
    average: Mapping[str, Tensor] = field(default_factory=dict)
    """The moving average of the weights, if there is one."""


def path_of(folder: Path, step: int) -> Path:
    """Where the checkpoint of a step is."""
    return folder / f"step-{step:08d}"


def steps(folder: Path) -> list[int]:
    """The steps that have a checkpoint, whole or damaged, the oldest first."""
    found: list[int] = []
    for path in folder.glob("step-*") if folder.is_dir() else ():
        digits = path.name[5:]
        step = int(digits) if digits.isdecimal() else -1
        if path != path_of(folder, step):
            raise CheckpointError(f"{path} is no checkpoint, whose name would be like step-00000500; move it elsewhere")
        found.append(step)
    return sorted(found)


def write(folder: Path, checkpoint: Checkpoint) -> Path:
    """Add a checkpoint to `folder`; in place of an old one of the same step, if there is one.

    Tensors go to the disk one after the other, so that a checkpoint takes no memory beside the largest of them.
    """
    target = path_of(folder, checkpoint.step)
    tensors = {
        f"{name}.safetensors": part
        for name in ("model", "optimizer", "average")
        if (part := getattr(checkpoint, name)) or name != "average"
    }
    state = json.dumps(checkpoint.state, indent=1, sort_keys=True).encode()
    temporary = folder / f".{target.name}.{os.getpid()}.writing"
    try:
        with _named_step(checkpoint.step, folder):
            begin(temporary, len(state) + sum(map(tensor_file.size_of, tensors.values())))
            sums: dict[str, Sum] = {}
            for name, part in tensors.items():
                with (temporary / name).open("wb") as file:
                    sums[name] = tensor_file.write(file, part)
        finish(temporary, target, checkpoint.step, state, sums)
    finally:
        shutil.rmtree(temporary, ignore_errors=True)
    return target


def begin(temporary: Path, needed: int) -> None:
    """Make the folder that a checkpoint is written in, beside its place, if there is room for so many bytes."""
    folder = temporary.parent
    if not folder.is_dir():
        folder.mkdir(parents=True)
        sync(folder.parent)
    free = shutil.disk_usage(folder).free
    if needed > free:
        raise OSError(errno.ENOSPC, f"{needed:,} bytes are needed, {free:,} are free")
    if temporary.exists():
        shutil.rmtree(temporary)
    temporary.mkdir()


def finish(temporary: Path, target: Path, step: int, state: bytes, sums: Mapping[str, Sum] | None = None) -> None:
    """Complete a folder of tensors to a checkpoint, and make it appear; without their sums, the files are read."""
    folder = target.parent
    aside = folder / f".{target.name}.{os.getpid()}.replaced"
    try:
        with _named_step(step, folder):
            known = sums if sums is not None else {path.name: sum_of_file(path) for path in sorted(temporary.iterdir())}
            (temporary / STATE).write_bytes(state)
            (temporary / MANIFEST).write_bytes(manifest_of(_about(step), {STATE: sum_of(state), **known}))
            put_in_place(temporary, target, aside)
    finally:
        if aside.exists():
            _settle(aside, target)


@contextmanager
def _named_step(step: int, folder: Path) -> Iterator[None]:
    """What the system refuses becomes a `CheckpointError` that says what is left."""
    try:
        yield
    except OSError as error:
        raise CheckpointError(
            f"the checkpoint of step {step} could not be written to {folder}: {error.strerror or error}; "
            "the ones before it are untouched. Make room or give the folder to this user, then resume"
        ) from error


Keep = Callable[[str, str, Tensor], Tensor]
"""What is kept of a tensor: `keep(part, name, tensor)`, the part being "model", "optimizer" or "average"."""


def read(path: Path, keep: Keep = lambda part, name, tensor: tensor) -> Checkpoint:
    """Read a checkpoint and check all of it; any damage raises a `CheckpointError` that says what is wrong."""
    with _named(path):
        files = _known_files(path)
        parts: dict[str, Any] = {name: _part(path, name, known, keep) for name, known in files.items()}
    try:
        model, optimizer, state = (parts[name] for name in ("model.safetensors", "optimizer.safetensors", STATE))
        average = parts.get("average.safetensors", {})
        return Checkpoint(int(path.name[5:]), model, optimizer, json.loads(state), average)
    except (ValueError, KeyError, TypeError) as error:
        raise CheckpointError(f"{path} is whole but cannot be understood: {error!r:.200}") from error


def prune(folder: Path, keep: int, also: Collection[int] = (), newest: int | None = None) -> None:
    """Delete all but the newest `keep` checkpoints and those of the steps `also`, if the newest one reads back whole.

    Those after `newest`, if it is given, do not count: the run has gone on from before them, so they are damaged.
    """
    present = [step for step in steps(folder) if newest is None or step <= newest]
    if not present:
        return
    newest_path = path_of(folder, present[-1])
    with _named(newest_path):
        check_files(newest_path, _known_files(newest_path))
    for step in present[:-keep]:
        if step not in also:
            _remove(path_of(folder, step))


def tidy(folder: Path) -> None:
    """Remove what an interrupted write left behind."""
    for path in folder.glob(".step-*"):
        if path.name.endswith(".replaced"):
            _settle(path, folder / path.name[1:].split(".")[0])
        else:
            _remove(path)


def _about(step: int) -> dict[str, Any]:
    return {"format": FORMAT, "step": step}


@contextmanager
def _named(path: Path) -> Iterator[None]:
    """Damage becomes a `CheckpointError` that names the checkpoint and the file."""
    try:
        yield
    except OSError as error:
        name = Path(error.filename or path).name
        missing = isinstance(error, FileNotFoundError)
        reason = "is missing" if missing else f"cannot be read: {error.strerror or error}"
        raise CheckpointError(f"{path}: {name} {reason}") from error
    except DamagedError as error:
        raise CheckpointError(f"{path}: {error}") from error


def _known_files(path: Path) -> dict[str, Sum]:
    about, files = read_manifest(path / MANIFEST)
    if about != _about(int(path.name[5:])):
        raise DamagedError(f"{MANIFEST} is not what was written: it says {about!r:.80}")
    return files


def _part(path: Path, name: str, known: Sum, keep: Keep) -> Any:
    """What one file holds, if it is what was written; what is checked is what was read."""
    if not name.endswith(".safetensors"):
        content = (path / name).read_bytes()
        check_sum(name, sum_of(content), known)
        return content
    try:
        with (path / name).open("rb") as file:
            part = name.removesuffix(".safetensors")
            _, tensors, found = tensor_file.read(file, keep=lambda key, tensor: keep(part, key, tensor))
    except tensor_file.TensorFileError as error:
        raise DamagedError(f"{name} is not what was written: {error}") from error
    check_sum(name, found, known)
    return tensors


def _settle(aside: Path, target: Path) -> None:
    """What was there before goes, or back, if a replacement was stopped between its two renames."""
    if target.exists():
        _remove(aside)
    else:
        aside.rename(target)


def _remove(path: Path) -> None:
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path)
    else:
        path.unlink()
