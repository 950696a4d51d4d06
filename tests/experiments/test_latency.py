"""What is held and what is timed; never how long it takes."""

import csv
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from rich.console import Console

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


@pytest.mark.parametrize("name", [latency.PSM, latency.RECENT])
def test_transformer_psm_holds_a_root_and_a_fold_more_for_each_doubling(
    candidates: dict[str, latency.Candidate], name: str
) -> None:
    a, b, c, d = held(candidates[name], (64, 128, 256, 512))
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


def test_transformer_psms_alone_go_on_to_the_end_and_many_streams_follow(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[tuple[int, list[str], set[int], int]] = []

    def measure(models: Any, position: int, rounds: int, device: str) -> list[latency.Timing]:
        asked.append((position, [one.name for one in models], {one.streams for one in models}, rounds))
        return [latency.timing(one, position, [[0.001]], 100) for one in models]

    monkeypatch.setattr(latency, "measure", measure)
    monkeypatch.setattr(latency, "save_figure", lambda *_: None)
    latency.run(Laboratory("latency", "smoke", tmp_path, tmp_path / "runs", Console(quiet=True)))
    every, psm = list(latency.LOOKS), [latency.PSM, latency.RECENT]
    expected = [(position, every, {1}, SMOKE.rounds) for position in SMOKE.positions]
    expected += [(position, psm, {1}, SMOKE.rounds) for position in SMOKE.long_positions]
    together = [latency.PSM, latency.RECENT, latency.STATIC, latency.MAMBA]
    expected += [(position, together, {SMOKE.many}, SMOKE.rounds) for position in SMOKE.many_positions]
    assert [(position, sorted(names, key=every.index), *rest) for position, names, *rest in asked] == expected
    with (tmp_path / "latency.csv").open() as file:
        rows = [(row["model"], int(row["streams"])) for row in csv.DictReader(file)]
    assert rows == sorted(rows, key=lambda row: (row[1], every.index(row[0])))
    assert len(rows) == sum(len(names) for _, names, _, _ in asked)


@pytest.mark.parametrize("streams", [1, 3])
def test_a_cache_has_room_for_the_tokens_to_come(streams: int) -> None:
    model = latency.GPT2Baseline(latency.GPT2BaselineConfig(16, 8, 2, 2, 1000))
    state = latency.filled_cache(model, 100, 40, streams)
    assert state.position == 100 and state.cache.lengths == (100,) * streams
    assert all(140 <= buffer.shape[2] <= 1000 for buffer in (*state.cache.keys, *state.cache.values))
    assert {buffer.shape[0] for buffer in state.cache.keys} == {streams}


@pytest.mark.slow
def test_a_smoke_run_leaves_numbers_pictures_and_a_page(tmp_path: Path) -> None:
    latency.run(Laboratory("latency", "smoke", tmp_path, tmp_path / "runs"))
    names = {path.name for path in tmp_path.iterdir()}
    assert {"latency.csv", "latency.png", "latency.svg", "sizes.json", "README.md"} <= names
    rows = list(csv.DictReader((tmp_path / "latency.csv").read_text().splitlines()))
    everywhere = len(SMOKE.positions) + len(SMOKE.long_positions)
    alone = [row for row in rows if row["streams"] == "1"]
    counts = {name: sum(row["model"] == name for row in alone) for name in latency.LOOKS}
    psm = (latency.PSM, latency.RECENT)
    assert counts == {name: everywhere if name in psm else len(SMOKE.positions) for name in latency.LOOKS}
    many = [(row["model"], int(row["position"])) for row in rows if row["streams"] == str(SMOKE.many)]
    together = (*psm, latency.STATIC, latency.MAMBA)
    assert many == [(name, position) for name in together for position in SMOKE.many_positions]
    for row in rows:
        p50, p99, slowest = (float(row[f"{which}_milliseconds"]) for which in ("p50", "p99", "slowest"))
        assert 0 < p50 <= p99 <= slowest and float(row["milliseconds"]) <= slowest
    page = (tmp_path / "README.md").read_text()
    assert "the paper" in page and "p50 at 256 | p99 at 256 | slowest at 256" in page and "## 3 streams at once" in page
    for lines in (block.splitlines() for block in page.split("\n\n") if block.startswith("| ")):
        assert len({line.count("|") for line in lines}) == 1


def test_tails_are_of_all_rounds_and_the_mean_of_the_best(candidates: dict[str, latency.Candidate]) -> None:
    slow, quick = [0.002] * 99 + [0.1], [0.001] * 98 + [0.004, 0.005]
    found = latency.timing(candidates[latency.MAMBA], 64, [slow, quick], 5)
    assert found.milliseconds == pytest.approx(1.07) and found.tokens == 100
    assert (found.p50_milliseconds, found.p99_milliseconds, found.slowest_milliseconds) == pytest.approx((2, 4, 100))


@given(st.lists(st.floats(0, 10), min_size=1, max_size=250), st.integers(1, 100))
def test_a_percentile_is_the_least_value_that_so_many_do_not_exceed(values: list[float], percent: int) -> None:
    found = latency.percentile(values, percent)
    assert 100 * sum(value <= found for value in values) >= percent * len(values)
    assert 100 * sum(value < found for value in values) < percent * len(values)


@torch.no_grad()
def test_streams_together_hold_what_each_holds_alone() -> None:
    alone = {one.name: one for one in latency.candidates(SMOKE, "cpu")}
    for one in latency.candidates(SMOKE, "cpu", 3):
        assert held(one, (64,)) == held(alone[one.name], (64,)), one.name
