"""Checkpoints that are whole or not there, and checked before they are believed; a good one is always left.

    RUN/checkpoints/step-00000500/
        model.safetensors  optimizer.safetensors  [average.safetensors]  state.json  MANIFEST.json

A checkpoint is a checked folder (`checked_folder.py`), whose manifest also has the step. Nothing is unpickled.
"""

import errno
import json
import os
import shutil
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from safetensors.torch import load, save
from torch import Tensor

from scannable.storage.checked_folder import DamagedError, flush, manifest_of, put_in_place, read_manifest, sum_of

FORMAT = "scannable-checkpoint-1"
MANIFEST = "MANIFEST.json"


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
    names = [path.name for path in folder.glob("step-*")] if folder.is_dir() else []
    return sorted(int(name[5:]) for name in names if name[5:].isdigit())


def write(folder: Path, checkpoint: Checkpoint) -> Path:
    """Add a checkpoint to `folder`; in place of an old one of the same step, if there is one."""
    target = path_of(folder, checkpoint.step)
    contents = {
        "model.safetensors": save(_ready(checkpoint.model)),
        "optimizer.safetensors": save(_ready(checkpoint.optimizer)),
        "state.json": json.dumps(checkpoint.state, indent=1, sort_keys=True).encode(),
    }
    if checkpoint.average:
        contents["average.safetensors"] = save(_ready(checkpoint.average))
    sums = {name: sum_of(content) for name, content in contents.items()}
    contents[MANIFEST] = manifest_of(_about(checkpoint.step), sums)
    temporary = folder / f".{target.name}.{os.getpid()}.writing"
    try:
        folder.mkdir(parents=True, exist_ok=True)
        needed, free = sum(map(len, contents.values())), shutil.disk_usage(folder).free
        if needed > free:
            raise OSError(errno.ENOSPC, f"{needed:,} bytes are needed, {free:,} are free")
        temporary.mkdir()
        for name, content in contents.items():
            (temporary / name).write_bytes(content)
        flush(temporary)
        _replace(target, temporary)
    except OSError as error:
        raise CheckpointError(
            f"the checkpoint of step {checkpoint.step} could not be written to {folder}: {error.strerror or error}; "
            "the ones before it are untouched. Make room or give the folder to this user, then resume"
        ) from error
    finally:
        shutil.rmtree(temporary, ignore_errors=True)
    return target


def read(path: Path) -> Checkpoint:
    """Read a checkpoint and check all of it; any damage raises a `CheckpointError` that says what is wrong."""
    contents = _verified(path)
    try:
        tensors = {
            name: {key: tensor.clone() for key, tensor in load(contents[f"{name}.safetensors"]).items()}
            for name in ("model", "optimizer", "average")
            if f"{name}.safetensors" in contents
        }
        state = json.loads(contents["state.json"])
        return Checkpoint(int(path.name[5:]), tensors["model"], tensors["optimizer"], state, tensors.get("average", {}))
    except (ValueError, KeyError, TypeError) as error:
        raise CheckpointError(f"{path} is whole but cannot be understood: {error!r:.200}") from error


def prune(folder: Path, keep: int, also: Collection[int] = (), newest: int | None = None) -> None:
    """Delete all but the newest `keep` checkpoints and those of the steps `also`, if the newest one reads back whole.

    Those after `newest`, if it is given, do not count: the run has gone on from before them, so they are damaged.
    """
    present = [step for step in steps(folder) if newest is None or step <= newest]
    if not present:
        return
    _verified(path_of(folder, present[-1]))
    for step in present[:-keep]:
        if step not in also:
            shutil.rmtree(path_of(folder, step))


def tidy(folder: Path) -> None:
    """Remove what an interrupted write left behind."""
    for path in folder.glob(".step-*"):
        if path.name.endswith(".replaced") and not (target := folder / path.name[1:].split(".")[0]).exists():
            # Killed between the two renames of a replacement: what was there before goes back.
            path.rename(target)
        else:
            shutil.rmtree(path)


def _ready(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    return {name: tensor.detach().cpu().contiguous() for name, tensor in tensors.items()}


def _about(step: int) -> dict[str, Any]:
    return {"format": FORMAT, "step": step}


def _verified(path: Path) -> dict[str, bytes]:
    """The contents of all files of a checkpoint, if they are what was written."""
    try:
        about, files = read_manifest(path / MANIFEST)
        contents = {name: (path / name).read_bytes() for name in files}
    except FileNotFoundError as error:
        raise CheckpointError(f"{path}: {Path(error.filename).name} is missing") from error
    except OSError as error:
        raise CheckpointError(f"{path} cannot be read: {error.strerror or error}") from error
    except DamagedError as error:
        raise CheckpointError(f"{path}: {MANIFEST} is damaged") from error
    wrong = [name for name, content in contents.items() if sum_of(content) != files[name]]
    if about != _about(int(path.name[5:])):
        wrong.append(MANIFEST)
    if wrong:
        raise CheckpointError(f"{path}: {', '.join(wrong)} is not what was written (truncated or changed)")
    return contents


def _replace(target: Path, temporary: Path) -> None:
    old = target.with_name(f".{target.name}.{os.getpid()}.replaced")
    if target.exists():
        target.rename(old)
    put_in_place(temporary, target)
    shutil.rmtree(old, ignore_errors=True)
