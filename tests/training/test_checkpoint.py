"""A checkpoint is there and right, or it is not there."""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from scannable.training import checkpoint as checkpoints
from scannable.training.checkpoint import Checkpoint, CheckpointError


def some(step: int) -> Checkpoint:
    generator = torch.Generator().manual_seed(step)
    weights = {"w": torch.randn(4, 5, generator=generator), "b": torch.randn(5, generator=generator)}
    moments = {"w/step": torch.tensor(float(step)), "w/exp_avg": torch.randn(4, 5, generator=generator)}
    return Checkpoint(step, weights, moments, {"step": step, "text": "ä"}, {"w": torch.ones(4, 5)})


def test_what_is_read_is_what_was_written(tmp_path: Path) -> None:
    path = checkpoints.write(tmp_path, some(7))
    assert path == tmp_path / "step-00000007"
    assert sorted(p.name for p in path.iterdir()) == [
        "MANIFEST.json", "average.safetensors", "model.safetensors", "optimizer.safetensors", "state.json",
    ]  # fmt: skip
    found = checkpoints.read(path)
    assert found.step == 7 and found.state == some(7).state
    for name in ("model", "optimizer", "average"):
        for key, tensor in getattr(some(7), name).items():
            assert torch.equal(getattr(found, name)[key], tensor)
    assert [p.name for p in tmp_path.iterdir()] == ["step-00000007"]


def test_every_bit_of_every_file_is_watched(tmp_path: Path) -> None:
    path = checkpoints.write(tmp_path, some(1))
    generator = torch.Generator().manual_seed(0)
    for file in sorted(path.iterdir()):
        whole = file.read_bytes()
        places = (
            range(len(whole)) if file.name == "MANIFEST.json" else torch.randint(len(whole), (40,), generator=generator)
        )
        for place in map(int, places):
            damaged = bytearray(whole)
            damaged[place] ^= 1 << place % 8
            file.write_bytes(damaged)
            with pytest.raises(CheckpointError):
                checkpoints.read(path)
        file.write_bytes(whole)
    checkpoints.read(path)


@pytest.mark.parametrize("name", ["MANIFEST.json", "model.safetensors", "state.json"])
def test_a_missing_or_short_file_is_named(tmp_path: Path, name: str) -> None:
    path = checkpoints.write(tmp_path, some(1))
    whole = (path / name).read_bytes()
    (path / name).write_bytes(whole[:-3])
    with pytest.raises(CheckpointError, match=name.replace(".", r"\.")):
        checkpoints.read(path)
    (path / name).unlink()
    with pytest.raises(CheckpointError, match=f"step-00000001: {name} is missing"):
        checkpoints.read(path)
    (path / name).mkdir()
    with pytest.raises(CheckpointError, match=f"step-00000001: {name} cannot be read: Is a directory"):
        checkpoints.read(path)
    with pytest.raises(CheckpointError, match=f"step-00000001: {name} cannot be read: Is a directory"):
        checkpoints.prune(tmp_path, 1)


@pytest.mark.parametrize(
    "name", ["step-abc", "step-", "step-7", "step-000000007", "step-0000000\u0663", "step-00000001.bak"]
)
def test_what_is_no_checkpoint_is_named(tmp_path: Path, name: str) -> None:
    checkpoints.write(tmp_path, some(1))
    (tmp_path / name).write_text("by somebody else")
    for call in (checkpoints.steps, lambda folder: checkpoints.prune(folder, 1)):
        with pytest.raises(
            CheckpointError, match=rf"{name} is no checkpoint, whose name would be like step-00000500; move"
        ):
            call(tmp_path)


def test_a_stray_file_in_a_checkpoint_is_named(tmp_path: Path) -> None:
    path = checkpoints.write(tmp_path, some(1))
    (path / "notes.txt").write_text("by somebody else")
    with pytest.raises(
        CheckpointError, match=r"step-00000001: notes\.txt is a stray file, which MANIFEST\.json does not"
    ):
        checkpoints.read(path)


def test_a_file_in_the_place_of_a_checkpoint_is_named_and_replaced(tmp_path: Path) -> None:
    checkpoints.write(tmp_path, some(1))
    path = tmp_path / "step-00000002"
    path.write_text("a file")
    assert checkpoints.steps(tmp_path) == [1, 2]
    with pytest.raises(CheckpointError, match=r"step-00000002: MANIFEST\.json cannot be read: Not a directory"):
        checkpoints.read(path)
    checkpoints.write(tmp_path, some(2))
    assert checkpoints.read(path).step == 2
    (tmp_path / "step-00000001").rename(tmp_path / "kept")
    (tmp_path / "step-00000001").symlink_to(tmp_path / "kept")
    (tmp_path / "step-00000000").write_text("a file")
    checkpoints.prune(tmp_path, 1)
    assert sorted(p.name for p in tmp_path.iterdir()) == ["kept", "step-00000002"]
    assert (tmp_path / "kept" / "state.json").is_file(), "a link goes, not what it leads to"


def test_files_of_another_step_are_noticed(tmp_path: Path) -> None:
    one, two = (checkpoints.write(tmp_path, some(step)) for step in (1, 2))
    shutil.copy(one / "model.safetensors", two / "model.safetensors")
    with pytest.raises(CheckpointError, match=r"model\.safetensors is not what was written"):
        checkpoints.read(two)
    one.rename(tmp_path / "step-00000003")
    with pytest.raises(CheckpointError, match=r"MANIFEST\.json is not what was written"):
        checkpoints.read(tmp_path / "step-00000003")


def test_an_old_one_goes_only_when_the_newest_reads_back(tmp_path: Path) -> None:
    for step in (1, 2, 3, 4):
        checkpoints.write(tmp_path, some(step))
    checkpoints.prune(tmp_path, 2, also=[1])
    assert checkpoints.steps(tmp_path) == [1, 3, 4]
    (tmp_path / "step-00000004" / "state.json").write_text("{}")
    with pytest.raises(CheckpointError):
        checkpoints.prune(tmp_path, 1)
    assert checkpoints.steps(tmp_path) == [1, 3, 4]


def test_a_damaged_one_of_the_same_step_is_replaced(tmp_path: Path) -> None:
    path = checkpoints.write(tmp_path, some(1))
    (path / "state.json").write_text("{}")
    checkpoints.write(tmp_path, some(1))
    assert checkpoints.read(path).state["step"] == 1
    assert [p.name for p in tmp_path.iterdir()] == ["step-00000001"]


def test_what_an_interrupted_write_left_is_tidied(tmp_path: Path) -> None:
    path = checkpoints.write(tmp_path, some(1))
    shutil.copytree(path, tmp_path / ".step-00000002.99.writing")
    # Killed between the two renames of a replacement: only the old one is left, under its other name.
    path.rename(tmp_path / ".step-00000001.99.replaced")
    checkpoints.tidy(tmp_path)
    assert [p.name for p in tmp_path.iterdir()] == ["step-00000001"]
    checkpoints.read(path)


def test_safetensors_reads_the_files(tmp_path: Path) -> None:
    path = checkpoints.write(tmp_path, some(7))
    for name in ("model", "optimizer", "average"):
        found = load_file(path / f"{name}.safetensors")
        assert found.keys() == getattr(some(7), name).keys()
        assert all(torch.equal(found[key], tensor) for key, tensor in getattr(some(7), name).items())


def test_a_checkpoint_without_an_average_or_moments_survives(tmp_path: Path) -> None:
    path = checkpoints.write(tmp_path, Checkpoint(3, some(3).model, {}, {"loss": float("inf")}))
    assert sorted(p.name for p in path.iterdir()) == [
        "MANIFEST.json", "model.safetensors", "optimizer.safetensors", "state.json",
    ]  # fmt: skip
    found = checkpoints.read(path)
    assert not found.average and not found.optimizer and found.state == {"loss": float("inf")}


DIE = """
import os, sys
from pathlib import Path
import torch
from scannable.training import checkpoint as checkpoints
from scannable.training.checkpoint import Checkpoint

def write(folder, text):
    checkpoints.write(folder, Checkpoint(1, {"w": torch.ones(3)}, {}, {"text": text}))

def dying(real, calls, at, later):
    def call(*args, **kwargs):
        now = next(calls) == at
        if now and not later:
            os._exit(9)
        result = real(*args, **kwargs)
        if now:
            os._exit(9)
        return result
    return call

torch.set_num_threads(1)
count = 0
for owner, name in ((Path, "rename"), (Path, "mkdir"), (Path, "open"), (Path, "write_bytes"), (os, "fsync"), (os, "open")):
    seen, deaths = set(), 0
    for at in range(9):
        for later in (False, True):
            folder = Path(sys.argv[1]) / f"{name}{count}"
            count += 1
            write(folder, "old")
            child = os.fork()
            if child == 0:
                setattr(owner, name, dying(getattr(owner, name), iter(range(1000)), at, later))
                write(folder, "new")
                os._exit(0)
            deaths += os.waitpid(child, 0)[1] != 0
            checkpoints.tidy(folder)
            assert [path.name for path in folder.iterdir()] == ["step-00000001"], (name, at, later)
            seen.add(checkpoints.read(checkpoints.path_of(folder, 1)).state["text"])
    assert deaths and seen == {"old", "new"}, (name, deaths, seen)
print(count)
"""


def test_a_process_that_dies_around_any_file_operation_leaves_the_old_or_the_new(tmp_path: Path) -> None:
    done = subprocess.run([sys.executable, "-c", DIE, str(tmp_path)], capture_output=True, text=True, check=False)
    assert done.stdout.strip() == "108", done.stderr


def test_everything_is_on_the_disk_before_the_checkpoint_has_its_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    events: list[str] = []
    fsync, rename = os.fsync, Path.rename

    def recorded_fsync(handle: int) -> None:
        events.append(Path(os.readlink(f"/proc/self/fd/{handle}")).name)
        fsync(handle)

    def recorded_rename(self: Path, target: Path) -> Path:
        events.append(f"rename to {target.name}")
        return rename(self, target)

    monkeypatch.setattr(os, "fsync", recorded_fsync)
    monkeypatch.setattr(Path, "rename", recorded_rename)
    checkpoints.write(tmp_path / "run", some(1))
    end = events.index("rename to step-00000001")
    assert events[0] == tmp_path.name, "the new folder of checkpoints"
    assert sorted(events[1 : end - 1]) == [
        "MANIFEST.json", "average.safetensors", "model.safetensors", "optimizer.safetensors", "state.json",
    ]  # fmt: skip
    assert events[end - 1].endswith(".writing") and events[end + 1 :] == ["run"]


MEASURE = """
import sys, torch
from pathlib import Path
from scannable.training import checkpoint as checkpoints

def peak():
    # Of this program alone; what getrusage says begins with the process that started it.
    (line,) = [line for line in Path("/proc/self/status").read_text().splitlines() if line.startswith("VmHWM")]
    return int(line.split()[1]) / 1024

folder, count = Path(sys.argv[1]), 20
checkpoints.write(folder, checkpoints.Checkpoint(1, {"t": torch.ones(9, 9).T}, {}, {}))
checkpoints.read(checkpoints.path_of(folder, 1))
if sys.argv[2] == "write":
    # Out of order, so that each has to be copied to be written, as one on another device has.
    parts = [{f"t{i}": torch.full((1250, 1000), float(i)).T for i in range(count)} for _ in range(2)]
    before = peak()
    checkpoints.write(folder, checkpoints.Checkpoint(2, *parts, {}))
else:
    before = peak()
    found = checkpoints.read(checkpoints.path_of(folder, 2))
    assert all(bool((found.optimizer[f"t{i}"] == i).all()) for i in range(count))
print(peak() - before)
"""


@pytest.mark.slow
def test_writing_takes_little_memory_and_reading_that_of_the_tensors_once(tmp_path: Path) -> None:
    """100 MB of weights and 100 MB of moments, in tensors of 5 MB."""
    extra = {}
    for way in ("write", "read"):
        command = [sys.executable, "-c", MEASURE, str(tmp_path), way]
        extra[way] = float(subprocess.run(command, capture_output=True, text=True, check=True).stdout)
    assert extra["write"] < 60 and 150 < extra["read"] < 230, extra


def test_too_little_room_is_said_before_anything_is_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    checkpoints.write(tmp_path, some(1))
    usage = shutil.disk_usage(tmp_path)
    monkeypatch.setattr(shutil, "disk_usage", lambda _: usage._replace(free=10))
    with pytest.raises(CheckpointError, match=r"step 2 could not be written.*10 are free.*Make room"):
        checkpoints.write(tmp_path, some(2))
    assert [p.name for p in tmp_path.iterdir()] == ["step-00000001"]


def test_a_place_that_is_no_folder_is_said(tmp_path: Path) -> None:
    (tmp_path / "taken").write_text("a file")
    with pytest.raises(CheckpointError, match="could not be written"):
        checkpoints.write(tmp_path / "taken" / "inside", some(1))


def test_the_manifest_has_the_size_and_sum_of_each_file(tmp_path: Path) -> None:
    path = checkpoints.write(tmp_path, some(1))
    manifest = json.loads((path / "MANIFEST.json").read_text())
    assert manifest["step"] == 1
    assert manifest["files"]["state.json"]["size"] == (path / "state.json").stat().st_size
