"""A checkpoint is there and right, or it is not there."""

import json
import shutil
from pathlib import Path

import pytest
import torch

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
    with pytest.raises(CheckpointError, match=f"{name} is missing"):
        checkpoints.read(path)


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
