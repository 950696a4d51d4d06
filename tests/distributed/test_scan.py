"""A sequence over ranks is scanned by the same tree: values, gradients, state, counts."""

import threading
from math import log2
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import scannable as sc
from scannable import distributed
from scannable.distributed import scan_over_ranks
from scannable.distributed.scan_over_ranks import blocks_sent
from scannable.distributed.split import Split, blocks, even_bounds

from operators import Brackets, two_three
from rank_cases import bounds_case, exact_case, refused_case, run_case, sizes
from rank_pool import run


@st.composite
def cut(draw: st.DrawFn, most: int = 70, ranks: int = 5) -> tuple[int, ...]:
    """Bounds of up to five parts, uneven and empty ones too."""
    n = draw(st.integers(0, most))
    p = draw(st.integers(1, ranks))
    return (0, *sorted(draw(st.lists(st.integers(0, n), min_size=p - 1, max_size=p - 1))), n)


def in_threads(bounds: tuple[int, ...], work: Any, monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """`work(split)` on a thread for each rank, which exchange blocks through a list."""
    ranks = len(bounds) - 1
    barrier, sent, found = threading.Barrier(ranks), dict[int, Any](), dict[int, Any]()

    def gathered(exchange: Any, mine: Any) -> Any:
        sent[int(threading.current_thread().name)] = mine
        barrier.wait()
        return [torch.cat([sent[q][i] for q in range(ranks)]) for i in range(len(mine))], None

    def one(rank: int) -> None:
        found[rank] = work(Split(bounds, rank))

    monkeypatch.setattr(scan_over_ranks, "gathered", gathered)
    monkeypatch.setattr(scan_over_ranks, "check_part", lambda *_: None)
    threads = [threading.Thread(target=one, args=(rank,), name=str(rank)) for rank in range(ranks)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(found) == ranks, "a rank raised"
    return [found[rank] for rank in range(ranks)]


@given(cut(), st.integers(0, 40), st.booleans(), st.booleans(), st.booleans())
@settings(max_examples=150, deadline=None)
def test_every_bracket_is_that_of_one_scan(
    bounds: tuple[int, ...], t: int, inclusive: bool, literal: bool, with_state: bool
) -> None:
    letters, lock = Brackets(), threading.Lock()
    n = bounds[-1]
    xs = letters.letters(t + n)

    def agg(older: Any, newer: Any) -> Any:
        with lock:
            return letters(older, newer)

    state = sc.empty(letters.identity, literal=literal)
    if t:
        state = sc.extend(agg, state, xs[:t])[1]
    wanted, after = sc.extend(agg, state, xs[t:], inclusive=inclusive)

    def work(split: Split) -> Any:
        shard = xs[t:][split.first : split.stop]
        if with_state or t:
            return distributed.extend(agg, state, shard, inclusive=inclusive, split=split)
        return distributed.scan(
            agg, shard, identity=letters.identity, inclusive=inclusive, literal=literal, split=split
        ), None

    with pytest.MonkeyPatch.context() as patch:
        found = in_threads(bounds, work, patch)
    assert torch.cat([prefixes for prefixes, _ in found]).tolist() == wanted.tolist()
    for _, mine in found:
        if mine is not None:
            assert mine.position == after.position
            assert {k: int(v) for k, v in mine.roots.items()} == {k: int(v) for k, v in after.roots.items()}
            assert {k: int(v) for k, v in mine.folds.items()} == {k: int(v) for k, v in after.folds.items()}


@given(cut(most=600), st.booleans(), st.booleans())
@settings(max_examples=150, deadline=None)
def test_a_rank_takes_at_most_two_evaluations_an_element_and_four_a_level(
    bounds: tuple[int, ...], with_state: bool, inclusive: bool
) -> None:
    n = bounds[-1]

    def work(split: Split) -> tuple[int, int]:
        evaluations = calls = 0

        def agg(older: Any, newer: Any) -> Any:
            nonlocal evaluations, calls
            evaluations, calls = evaluations + len(older), calls + 1
            return two_three(older, newer)

        shard = torch.ones(split.length, dtype=torch.int64)
        if with_state:
            distributed.extend(agg, sc.empty(1), shard, split=split, inclusive=inclusive)
        else:
            distributed.scan(agg, shard, identity=1, split=split, inclusive=inclusive)
        return evaluations, calls

    with pytest.MonkeyPatch.context() as patch:
        counts = in_threads(bounds, work, patch)
    for m, (evaluations, calls) in zip(sizes(bounds), counts, strict=True):
        levels = log2(max(2, n))
        assert evaluations <= 2 * m + 4 * levels
        assert calls <= 3 * (levels + 1)


@given(st.integers(0, 10_000), st.integers(0, 10_000))
def test_blocks_are_the_largest_nodes_inside_a_part(first: int, length: int) -> None:
    found = blocks(first, first + length)
    covered = [place for k, j in found for place in range(j << k, (j + 1) << k)]
    assert covered == list(range(first, first + length))
    assert len(found) <= 2 * log2(max(1, length)) + 1
    for k, j in found:
        parent = (j >> 1) << (k + 1)
        assert parent < first or parent + (2 << k) > first + length


@pytest.mark.parametrize(("n", "ranks", "unit"), [(-1, 2, 1), (5, 0, 1), (5, 2, 0)])
def test_bounds_of_fewer_than_nothing_are_refused(n: int, ranks: int, unit: int) -> None:
    with pytest.raises(ValueError, match=f"{n} elements over {ranks} ranks in units of {unit}; no number may be below"):
        even_bounds(n, ranks, unit)


@given(st.integers(0, 5000), st.integers(1, 20), st.integers(1, 70))
def test_even_bounds_cover_everything_at_multiples_of_a_unit(n: int, ranks: int, unit: int) -> None:
    bounds = even_bounds(n, ranks, unit)
    assert bounds[0] == 0 and bounds[-1] == n and len(bounds) == ranks + 1
    assert all(bound % unit == 0 or bound == n for bound in bounds)
    units = -(-n // unit)
    assert max(sizes(bounds)) <= unit * (units / ranks * 1.25 + 1)


@given(
    cut(most=40),
    st.integers(0, 1000),
    st.sampled_from((0, 0, 5, 12)),
    st.sampled_from(("tensor", "tree")),
    st.booleans(),
    st.booleans(),
    st.booleans(),
    st.booleans(),
)
@settings(max_examples=30, deadline=None)
def test_values_and_all_gradients_are_those_of_one_process(
    bounds: tuple[int, ...],
    seed: int,
    t: int,
    kind: str,
    inclusive: bool,
    literal: bool,
    checkpoint: bool,
    with_state: bool,
) -> None:
    options = {"inclusive": inclusive, "literal": literal, "checkpoint": checkpoint, "with_state": with_state}
    ranks = len(bounds) - 1
    wanted = run_case(None, seed, bounds, t, kind, dict(options))
    found = run(run_case, ranks, seed, bounds, t, kind, dict(options))
    # One leaf of a tree is complex64.
    tolerance = {"rtol": 0, "atol": 1e-12 if kind == "tensor" else 2e-4}
    for name in ("prefixes", "shard"):
        for i, whole in enumerate(wanted[name]):
            together = np.concatenate([rank[name][i] for rank in found], 1)
            np.testing.assert_allclose(together, whole, **tolerance, err_msg=name)
    for i, whole in enumerate(wanted["shares"]):
        np.testing.assert_allclose(sum(rank["shares"][i] for rank in found), whole, **tolerance)
    for rank in found:
        if wanted["state"] is not None:
            for mine, whole in zip(rank["state"], wanted["state"], strict=True):
                np.testing.assert_allclose(mine, whole, **tolerance)
    sends = any(blocks_sent(Split(bounds, 0), with_state=wanted["state"] is not None))
    for rank in found:
        agreed = [("agreement", 1024)] if ranks > 1 else []
        assert rank["forward"][: len(agreed)] == agreed
        assert [kind for kind, _ in rank["forward"][len(agreed) :]] == ["all-gather"] * sends
        assert [kind for kind, _ in rank["backward"]] == ["reduce-scatter"] * sends


@pytest.mark.parametrize("bounds", [(0, 33, 64, 100), (0, 7, 7, 50), (0, 0, 0, 9)])
@pytest.mark.parametrize("inclusive", [False, True])
def test_an_exact_operator_gives_exactly_the_same_in_processes(bounds: tuple[int, ...], inclusive: bool) -> None:
    wanted = sc.scan(two_three, torch.arange(1, bounds[-1] + 1) ** 3, identity=torch.tensor(5), inclusive=inclusive)
    found = run(exact_case, len(bounds) - 1, bounds, inclusive)
    assert np.concatenate(found).tolist() == wanted.tolist()


def test_with_a_known_split_a_scan_is_one_all_gather_of_its_blocks_and_one_reduce_scatter() -> None:
    bounds = (0, 16, 28, 40)
    found = run(run_case, 3, 0, bounds, 0, "tensor", {"known": True})
    block = 2 * 3 * 8  # rows, width, bytes of a float64
    # [0, 16) is one node, [16, 28) two, and the last rank sends nothing.
    assert [rank["forward"] for rank in found] == [
        [("all-gather", block)],
        [("all-gather", 2 * block)],
        [("all-gather", 0)],
    ]
    assert [rank["backward"] for rank in found] == [[("reduce-scatter", 3 * block)]] * 3


@pytest.mark.parametrize(
    ("faults", "words"),
    [
        ({1: "shape"}, "ranks 0 and 1 of 3 do not fit together: rank 0 has element (2, 3) torch.float64"),
        ({2: "dtype"}, "rank 2 has element (2, 3) torch.float32"),
        ({1: "literal"}, "literal=True"),
        ({1: "gradients"}, "gradients off"),
        ({1: "dim"}, "rank 1 of 3 cannot go on: ValueError: dim=7 is out of range"),
        ({0: "identity"}, "rank 0 of 3 cannot go on: ValueError: identity has the shape (9,)"),
    ],
)
def test_what_does_not_fit_is_an_error_on_every_rank(faults: dict[int, str], words: str) -> None:
    errors = run(refused_case, 3, faults)
    for rank, error in enumerate(errors):
        own = words.split("ValueError: ")[-1]
        assert (own if rank in faults else words) in error, error
    assert run(refused_case, 3, {}) == ["nothing was wrong"] * 3, "the ranks are still in step"


@pytest.mark.parametrize(
    ("bounds", "lengths", "words"),
    [
        (
            [(0, 4, 9)] * 2,
            [4, 4],
            "rank 1 has 4 elements, but its bounds are 4 to 9, 5 elements; bounds and parts must agree",
        ),
        ([(0, 4)] * 2, [4, 4], "2 bounds for 2 ranks; there is one more than ranks: (0, 4)"),
        ([(1, 5, 9)] * 2, [4, 4], "do not cover the sequence: they begin at 1, not at 0"),
        ([(0, 4, 8), None], [4, 4], "rank 0 has the bounds (0, 4, 8); rank 1 has no bounds"),
        ([None, None], [4, -1], "length=-1 must be a whole number"),
    ],
)
def test_bounds_that_do_not_cover_the_sequence_are_an_error_on_every_rank(
    bounds: Any, lengths: Any, words: str
) -> None:
    for error in run(bounds_case, 2, bounds, lengths):
        assert words in error


def test_ranks_agree_on_a_split_by_their_lengths() -> None:
    assert run(bounds_case, 3, [None] * 3, [4, 0, 7]) == [(0, 4, 4, 11)] * 3


@pytest.mark.parametrize("bounds", [(0,), (0, 5, 3), (-1, 4), (0, 2.5)])
def test_bounds_that_cut_nothing_are_refused(bounds: Any) -> None:
    with pytest.raises(ValueError, match="do not cut a sequence into parts"):
        Split(bounds, 0)


def test_a_rank_that_the_bounds_do_not_know_is_refused() -> None:
    with pytest.raises(ValueError, match="rank=2 is none of the 2 ranks"):
        Split((0, 3, 5), 2)


def test_alone_it_is_the_scan() -> None:
    xs = torch.arange(1, 30)
    assert distributed.scan(two_three, xs, identity=7).tolist() == sc.scan(two_three, xs, identity=7).tolist()
