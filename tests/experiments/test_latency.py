"""What is held and what is timed; never how long it takes."""

import csv
from pathlib import Path
from typing import Any

import pytest
import torch

from scannable.experiments import latency
from scannable.experiments.laboratory import Laboratory

SMOKE = latency.SIZES["smoke"]


@pytest.fixture(scope="module")
def candidates() -> dict[str, latency.Candidate]:
    torch.manual_seed(0)
    return {candidate.name: candidate for candidate in latency.candidates(SMOKE, "cpu")}


@torch.no_grad()
def held(candidate: latency.Candidate, positions: tuple[int, ...]) -> list[int]:
    return [latency.measure([candidate], position, 1, "cpu")[0].nbytes for position in positions]


def test_transformer_psm_holds_a_root_and_a_fold_more_for_each_doubling(
    candidates: dict[str, latency.Candidate],
) -> None:
    a, b, c, d = held(candidates[latency.PSM], (64, 128, 256, 512))
    element = 4 * SMOKE.chunk_length * SMOKE.width
    assert b - a == c - b == d - c == 2 * element


@pytest.mark.parametrize("name", [latency.STATIC, latency.GROWING])
def test_gpt2_holds_keys_and_values_of_every_token(name: str, candidates: dict[str, latency.Candidate]) -> None:
    per_token = 2 * 4 * SMOKE.layers * SMOKE.width
    assert held(candidates[name], (64, 128, 256)) == [64 * per_token, 128 * per_token, 256 * per_token]


@pytest.mark.parametrize("name", [latency.MAMBA, latency.THEIR_MAMBA])
def test_mamba_holds_the_same_everywhere(name: str, candidates: dict[str, latency.Candidate]) -> None:
    a, b = held(candidates[name], (64, 256))
    assert a == b


@torch.no_grad()
def test_both_caches_of_gpt2_give_the_same_outputs(candidates: dict[str, latency.Candidate]) -> None:
    in_place: Any = candidates[latency.STATIC].state_at(50, 4)
    growing: Any = candidates[latency.GROWING].state_at(50, 4)
    for layer, part in enumerate(growing.cache.layers):
        part.keys = in_place.cache.keys[layer][:, :, :50].clone()
        part.values = in_place.cache.values[layer][:, :, :50].clone()
    for token in torch.arange(4).split(1):
        one, in_place = candidates[latency.STATIC].step(token, in_place)
        other, growing = candidates[latency.GROWING].step(token, growing)
        torch.testing.assert_close(one, other)


def test_a_window_of_transformer_psm_has_its_share_of_dear_pushes() -> None:
    for sizes in latency.SIZES.values():
        assert sizes.chunks & (sizes.chunks - 1) == 0
        for position in (*sizes.positions, *sizes.long_positions):
            assert position % sizes.chunk_length == 0
            assert position >= sizes.chunks * sizes.chunk_length


def test_a_smoke_run_leaves_numbers_pictures_and_a_page(tmp_path: Path) -> None:
    latency.run(Laboratory("latency", "smoke", tmp_path, tmp_path / "runs"))
    names = {path.name for path in tmp_path.iterdir()}
    assert {"latency.csv", "latency.png", "latency.svg", "sizes.json", "README.md"} <= names
    rows = list(csv.DictReader((tmp_path / "latency.csv").read_text().splitlines()))
    everywhere = len(SMOKE.positions) + len(SMOKE.long_positions)
    counts = {name: sum(row["model"] == name for row in rows) for name in latency.LOOKS}
    assert counts == {name: everywhere if name == latency.PSM else len(SMOKE.positions) for name in latency.LOOKS}
    assert "the paper" in (tmp_path / "README.md").read_text()
