"""Training over a mesh of processes computes what one process computes."""

from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from scannable.training.parallel import Parallel
from scannable.training.recipe import Optimizer

from rank_pool import run_apart
from training_cases import HYBRID, PSM, recipe_of, refused_case, steps_case

MESHES = [(1, 1), (2, 1), (1, 2), (2, 2), (4, 1)]


@cache
def alone(model: Any, steps: int, accumulate: int) -> dict[str, Any]:
    recipe = recipe_of(model, steps=steps, accumulate=accumulate)
    return run_apart(steps_case, 1, "unused", Parallel(), recipe, timeout=300)[0]


@pytest.mark.slow
@pytest.mark.parametrize("shard", [False, True], ids=["replicated", "sharded"])
@pytest.mark.parametrize(("data", "sequence"), MESHES)
def test_fifty_steps_over_a_mesh_are_those_of_one_process(
    data: int, sequence: int, shard: bool, tmp_path: Path
) -> None:
    assert_as_alone(PSM, 50, data, sequence, shard, tmp_path)


@pytest.mark.parametrize(("data", "sequence", "shard"), [(1, 2, True), (2, 1, True), (1, 2, False)])
def test_steps_over_a_mesh_are_those_of_one_process(data: int, sequence: int, shard: bool, tmp_path: Path) -> None:
    # Samples that do not come out even, in parts; and blocks that are computed once more, exchanges and all.
    model = replace(HYBRID, checkpoint=True, tie_weights=True)
    assert_as_alone(model, 6, data, sequence, shard, tmp_path, accumulate=3)


def assert_as_alone(
    model: Any, steps: int, data: int, sequence: int, shard: bool, folder: Path, accumulate: int = 1
) -> None:
    wanted = alone(model, steps, accumulate)
    parallel = Parallel(data, sequence, shard)
    recipe = recipe_of(model, steps=steps, accumulate=accumulate)
    found = run_apart(steps_case, data * sequence, str(folder), parallel, recipe, timeout=300)
    for rank in found:
        np.testing.assert_allclose(rank["losses"], wanted["losses"], rtol=1e-9)
        for name in ("weights", "average"):
            for key, value in wanted[name].items():
                np.testing.assert_allclose(rank[name][key], value, rtol=1e-8, atol=1e-10, err_msg=key)
        # Evaluation looks at outputs in float32.
        assert rank["score"][:2] == pytest.approx(wanted["score"][:2], rel=1e-6)
        assert rank["tokens"] == wanted["tokens"]
        np.testing.assert_allclose(rank["logits"], wanted["logits"], rtol=1e-5, atol=1e-6)
        assert rank["loss"] == pytest.approx(wanted["loss"], rel=1e-9)
        if shard:
            assert rank["held"] < 1.1 * wanted["held"] / (data * sequence) + 500, "a process holds its share"


@pytest.mark.parametrize(
    ("parallel", "recipe", "words"),
    [
        (
            Parallel(2, 2),
            recipe_of(),
            "a mesh of data=2 x sequence=2 takes 4 processes, but there are 2; start torchrun with --nproc-per-node 4",
        ),
        (Parallel(sequence=3), recipe_of(), "a mesh of data=1 x sequence=3 takes 3 processes"),
        (Parallel(sequence=2), recipe_of(replace(HYBRID, layers=("lstm",))), "LSTM does not go over a split sequence"),
        (Parallel(shard=True), recipe_of(replace(HYBRID, layers=("lstm",))), "an LSTM of torch keeps its own list"),
        (Parallel(shard=True), recipe_of(compile=True), "compile=True does not go with sharded weights"),
        (Parallel(shard=True), recipe_of(optimizer=Optimizer(algorithm="muon")), "Muon takes whole matrices"),
    ],
)
def test_what_does_not_fit_the_processes_is_refused_on_all_of_them(
    parallel: Parallel, recipe: Any, words: str, tmp_path: Path
) -> None:
    for error in run_apart(refused_case, 2, str(tmp_path), parallel, recipe):
        assert words in error


@pytest.mark.parametrize("values", [{"data": 0}, {"sequence": -1}, {"timeout": 0.0}])
def test_impossible_meshes_are_refused(values: Any) -> None:
    with pytest.raises(ValueError, match=f"{next(iter(values))}="):
        Parallel(**values)


def test_half_precision_over_a_mesh_follows_one_process(tmp_path: Path) -> None:
    recipe = recipe_of(HYBRID, steps=4, precision="bfloat16")
    wanted = run_apart(steps_case, 1, str(tmp_path), Parallel(), recipe, False)[0]
    for rank in run_apart(steps_case, 2, str(tmp_path), Parallel(1, 2, shard=True), recipe, False):
        np.testing.assert_allclose(rank["losses"], wanted["losses"], rtol=3e-2)


@pytest.mark.parametrize(
    ("other", "words"),
    [
        ((Parallel(1, 2), recipe_of(steps=7)), "rank 1 has Parallel(data=1, sequence=2, shard=False, timeout=600.0)"),
        ((Parallel(2, 1), recipe_of()), "ranks 0 and 1 of 2 do not fit together"),
        ((Parallel(2, 3), recipe_of()), "data=2 x sequence=3 takes 6 processes"),
    ],
)
def test_processes_that_were_told_different_things_all_say_so(other: Any, words: str, tmp_path: Path) -> None:
    for error in run_apart(refused_case, 2, str(tmp_path), Parallel(1, 2), recipe_of(), other):
        assert words in error, error
