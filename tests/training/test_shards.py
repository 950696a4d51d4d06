"""Checkpoints of shards are the checkpoints of one process, whoever writes and whoever reads them."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.distributed.checkpoint import HuggingFaceStorageReader, load

from scannable.training import checkpoint as checkpoints
from scannable.training.logging import read_metrics
from scannable.training.parallel import Parallel
from scannable.training.recipe import Curriculum
from scannable.training.run_folder import load_trained

from rank_pool import run_apart
from training_cases import (
    HYBRID,
    changed_while_writing_case,
    failing_evaluation_case,
    failing_save_case,
    recipe_of,
    resaved_case,
    train_case,
)

RECIPE = recipe_of(HYBRID, steps=6, checkpoint_every=2, curriculum=Curriculum((9,)))


def last_of(folder: Path) -> Path:
    return checkpoints.path_of(folder / "checkpoints", checkpoints.steps(folder / "checkpoints")[-1])


def test_a_checkpoint_goes_from_layout_to_layout_bit_for_bit(tmp_path: Path) -> None:
    run_apart(train_case, 4, str(tmp_path / "2x2"), Parallel(2, 2, shard=True), RECIPE)
    source, losses = last_of(tmp_path / "2x2"), list[Any]()
    for data, sequence, shard in ((1, 1, False), (1, 4, True), (3, 1, True), (1, 2, True)):
        folder = tmp_path / f"{data}x{sequence}"
        layout = Parallel(data, sequence, shard)
        losses.append(run_apart(resaved_case, data * sequence, str(source), str(folder), layout, RECIPE)[0])
        for name in ("model", "optimizer", "average"):
            mine, theirs = (path / f"{name}.safetensors" for path in (last_of(folder), source))
            assert mine.read_bytes() == theirs.read_bytes(), (name, data, sequence)
        source = last_of(folder)
    for loss, norm in losses:
        assert loss == pytest.approx(losses[0][0], rel=1e-5) and norm == pytest.approx(losses[0][1], rel=1e-4)


def test_a_sharded_run_is_evaluated_loaded_and_resumed_like_any_other(tmp_path: Path) -> None:
    run_apart(train_case, 1, str(tmp_path / "alone"), Parallel(), RECIPE)
    results = run_apart(train_case, 2, str(tmp_path / "sharded"), Parallel(1, 2, shard=True), RECIPE)
    assert results[0] == results[1] == json.loads((tmp_path / "sharded" / "result.json").read_bytes())
    truth, found = (
        [r["loss"] for r in read_metrics(tmp_path / name / "metrics.jsonl")] for name in ("alone", "sharded")
    )
    torch.testing.assert_close(found, truth, rtol=1e-4, atol=1e-5)
    assert not list((tmp_path / "sharded" / "checkpoints").glob(".*")), "nothing half-written is left"
    assert not list(tmp_path.rglob("*.pkl")) and not list(tmp_path.rglob(".metadata"))
    one, other = (load_trained(tmp_path / name) for name in ("alone", "sharded"))
    for key, value in one.model.state_dict().items():
        torch.testing.assert_close(other.model.state_dict()[key], value, rtol=1e-3, atol=1e-4)
    # Resumed by one process, that has nothing left to do.
    again = run_apart(train_case, 1, str(tmp_path / "sharded"), Parallel(), RECIPE, True)[0]
    assert again == results[0]


def test_an_error_passes_through_the_average_and_leaves_the_weights(tmp_path: Path) -> None:
    # One process: it has shards too, and no other one waits for what does not come.
    assert run_apart(failing_evaluation_case, 1, str(tmp_path)) == [["the average", "the error", "the weights"]]


@pytest.mark.filterwarnings("ignore:torch.distributed is disabled")
def test_the_file_is_one_that_others_read(tmp_path: Path) -> None:
    run_apart(train_case, 2, str(tmp_path), Parallel(2, 1, shard=True), RECIPE)
    folder = last_of(tmp_path)
    wanted = checkpoints.read(folder).model
    alone = tmp_path / "alone"
    alone.mkdir()
    (folder / "model.safetensors").rename(alone / "model.safetensors")
    found = {name: torch.empty_like(value) for name, value in wanted.items()}
    load(found, storage_reader=HuggingFaceStorageReader(str(alone)), no_dist=True)
    assert all(torch.equal(found[name], value) for name, value in wanted.items())


def test_what_is_saved_are_the_weights_of_its_step_and_nothing_is_found_before_it_is_whole(tmp_path: Path) -> None:
    assert run_apart(changed_while_writing_case, 2, str(tmp_path), RECIPE) == [[], []]
    assert checkpoints.steps(tmp_path / "checkpoints") == [1]


@pytest.mark.parametrize("failing", [0, 1])
def test_a_share_that_cannot_be_written_is_an_error_on_all_and_leaves_what_was_there(
    failing: int, tmp_path: Path
) -> None:
    for error in run_apart(failing_save_case, 2, str(tmp_path), RECIPE, failing):
        assert "could not be written" in error and "No space left on device" in error
    assert checkpoints.steps(tmp_path / "checkpoints") == [1]
    checkpoints.read(last_of(tmp_path))
    assert not list((tmp_path / "checkpoints").glob(".*"))


def test_damage_to_any_byte_is_noticed_by_every_layout(tmp_path: Path) -> None:
    run_apart(train_case, 2, str(tmp_path), Parallel(1, 2, shard=True), RECIPE)
    path = last_of(tmp_path) / "optimizer.safetensors"
    content = bytearray(path.read_bytes())
    content[-3] ^= 1
    path.write_bytes(content)
    with pytest.raises(checkpoints.CheckpointError, match=r"optimizer\.safetensors is not what was written"):
        checkpoints.read(path.parent, lambda part, name, tensor: tensor.new_zeros(()))
