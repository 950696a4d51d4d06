"""Streams advanced together, each by its own number of elements, are the same streams advanced alone."""

from math import ceil, log2
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

import scannable as sc
from scannable.scan import reference
from scannable.spd import CountedAgg

from operators import Brackets, TanhMLP, two_three

STREAMS = st.lists(st.tuples(st.integers(0, 70), st.integers(0, 70)), min_size=1, max_size=6)


def bound(streams: list[tuple[int, int]]) -> int:
    return 2 * ceil(log2(max(t + m for t, m in streams) + 1)) + 2


@settings(max_examples=150, deadline=None)
@given(streams=STREAMS, literal=st.lists(st.booleans(), min_size=6, max_size=6), inclusive=st.booleans())
def test_streams_anywhere_bracket_and_cost_as_they_do_alone(
    streams: list[tuple[int, int]], literal: list[bool], inclusive: bool
) -> None:
    brackets = Brackets()
    e = brackets.identity
    letters = [brackets.letters(t + m, start=200 * i) for i, (t, m) in enumerate(streams)]
    truths = [
        reference.scan(brackets.one, x.tolist(), int(e), inclusive=inclusive, literal=law)
        for x, law in zip(letters, literal, strict=False)
    ]
    states = [
        sc.extend(brackets, sc.empty(e, literal=law), x[:t])[1]
        for x, (t, _), law in zip(letters, streams, literal, strict=False)
    ]
    together, alone = CountedAgg(brackets), CountedAgg(brackets)
    new = [x[t:] for x, (t, _) in zip(letters, streams, strict=True)]
    prefixes, after = sc.extend_many(together, states, new, inclusive=inclusive)
    assert [p.tolist() for p in prefixes] == [truth[t:] for truth, (t, _) in zip(truths, streams, strict=True)]
    for state, x, end in zip(states, new, after, strict=True):
        expected = sc.extend(alone, state, x, inclusive=inclusive)[1]
        assert end.position == expected.position and end.literal == expected.literal
        assert {k: int(r) for k, r in end.roots.items()} == {k: int(r) for k, r in expected.roots.items()}
        assert {k: int(f) for k, f in end.folds.items()} == {k: int(f) for k, f in expected.folds.items()}
    assert together.evaluations == alone.evaluations
    assert together.calls <= bound(streams)


def test_the_calls_of_all_streams_are_those_of_the_deepest() -> None:
    """Six streams of one element each, at 0 to 5: merges at levels 0 and 1, folds at level 0; by law none at the top."""
    states = [sc.extend(two_three, sc.empty(torch.tensor(0)), torch.ones(t, dtype=torch.int64))[1] for t in range(6)]
    agg = CountedAgg(two_three)
    sc.extend_many(agg, states, [torch.ones(1, dtype=torch.int64)] * 6)
    # t = 1: a merge. 2: a fold at 0. 3: two merges. 4: a fold at 0. 5: a merge, and a fold at 1.
    assert (agg.calls, agg.evaluations) == (4, 7)


@settings(max_examples=30, deadline=None)
@given(
    streams=st.lists(st.tuples(st.integers(0, 9), st.integers(0, 9)), min_size=2, max_size=4),
    dim=st.integers(0, 2),
    literal=st.booleans(),
    checkpoint=st.booleans(),
)
def test_every_gradient_is_that_of_the_streams_alone(
    streams: list[tuple[int, int]], dim: int, literal: bool, checkpoint: bool
) -> None:
    torch.manual_seed(0)
    mlp = TanhMLP(3)

    def agg(older: dict[str, Tensor], newer: dict[str, Tensor]) -> dict[str, Tensor]:
        return {"x": mlp(older["x"], newer["x"]), "n": older["n"] + newer["n"]}

    e = {"x": torch.randn(2, 1, 3, dtype=torch.float64, requires_grad=True), "n": 0}
    pasts = [torch.randn(2, 2, t, 3, dtype=torch.float64).movedim(2, dim).requires_grad_() for t, _ in streams]
    news = [torch.randn(2, 2, m, 3, dtype=torch.float64).movedim(2, dim).requires_grad_() for _, m in streams]
    inputs = [*pasts, *news, e["x"], *mlp.parameters()]

    def element(x: Tensor) -> dict[str, Tensor]:
        return {"x": x, "n": torch.ones(x.shape[:3], dtype=torch.int64)}

    def run(together: bool) -> tuple[list[Tensor], list[Tensor], tuple[Tensor, ...]]:
        states = [sc.extend(agg, sc.empty(e, literal=literal), element(x), dim=dim)[1] for x in pasts]
        if together:
            prefixes, after = sc.extend_many(agg, states, [element(x) for x in news], dim=dim, checkpoint=checkpoint)
        else:
            each = [sc.extend(agg, s, element(x), dim=dim) for s, x in zip(states, news, strict=True)]
            prefixes, after = [p for p, _ in each], [s for _, s in each]
        values: list[Any] = [*prefixes, *(x for s in after for x in (*s.roots.values(), *s.folds.values()))]
        floats = [value["x"] for value in values]
        loss = torch.stack([((i + 1) * value.sin()).sum() for i, value in enumerate(floats)]).sum()
        found = torch.autograd.grad(loss, inputs, materialize_grads=True)
        return floats, [value["n"] for value in values], found

    for mine, truth in zip(run(True), run(False), strict=True):
        torch.testing.assert_close(mine, truth, rtol=1e-10, atol=1e-10)


def test_a_state_does_not_hold_its_neighbours_rows() -> None:
    states = [sc.empty(torch.zeros(8)) for _ in range(16)]
    for step in range(7):
        _, states = sc.extend_many(two_three, states, list(torch.randn(16, 1, 8)))
        for state in states:
            held = {
                x.untyped_storage().data_ptr(): x.untyped_storage().nbytes()
                for x in [*state.roots.values(), *state.folds.values()]
            }
            assert sum(held.values()) == state.nbytes == (2 * (step + 1).bit_count() - 1) * 32


def test_states_are_left_as_they_were() -> None:
    _, state = sc.extend(two_three, sc.empty(torch.tensor(0)), torch.arange(7))
    roots = {k: int(x) for k, x in state.roots.items()}
    _, (left, right) = sc.extend_many(two_three, [state, state], [torch.tensor([1]), torch.tensor([2, 3])])
    assert {k: int(x) for k, x in state.roots.items()} == roots and state.position == 7
    assert (left.position, right.position) == (8, 9)


def test_no_streams_and_no_elements_need_no_call() -> None:
    agg = CountedAgg(two_three)
    assert sc.extend_many(agg, [], []) == ([], [])
    states = [sc.extend(two_three, sc.empty(torch.tensor(0)), torch.arange(t))[1] for t in (0, 5)]
    prefixes, after = sc.extend_many(agg, states, [torch.arange(0), torch.arange(0)])
    assert [len(p) for p in prefixes] == [0, 0] and after == states and agg.calls == 0


def test_bad_calls_are_named() -> None:
    state = sc.empty(torch.tensor(0.0))
    with pytest.raises(ValueError, match="2 states but 1 elements"):
        sc.extend_many(two_three, [state, state], [torch.ones(1)])
    with pytest.raises(ValueError, match=r"elements\[1\] has the shape \(2,\), elements\[0\] has \(\)"):
        sc.extend_many(two_three, [state, state], [torch.ones(1), torch.zeros(1, 2)])
    with pytest.raises(ValueError, match="dim=0 is out of range"):
        sc.extend_many(two_three, [state, state], [torch.tensor(1.0), torch.tensor(1.0)])
    _, later = sc.extend(two_three, sc.empty(torch.zeros(2)), torch.zeros(3, 2))
    with pytest.raises(ValueError, match="the state does not fit these elements: at level 1 "):
        sc.extend_many(two_three, [state, later], [torch.ones(1), torch.ones(1)])


def test_results_are_the_callers_own_memory() -> None:
    e = torch.zeros(2)
    states = [sc.empty(e), sc.empty(e)]
    for inclusive in (False, True):
        prefixes, after = sc.extend_many(two_three, states, [torch.ones(1, 2), torch.ones(1, 2)], inclusive=inclusive)
        for prefix in prefixes:
            prefix.add_(7)
        assert e.tolist() == [0, 0] and all(state.prefix().tolist() == [1, 1] for state in after)


def test_agg_is_checked_and_a_broadcast_identity_is_spread() -> None:
    states = [sc.extend(two_three, sc.empty(0.0, literal=True), torch.ones(t, 3))[1] for t in (0, 1)]
    prefixes, _ = sc.extend_many(two_three, states, [torch.ones(1, 3), torch.ones(1, 3)])
    assert [prefix[0].tolist() for prefix in prefixes] == [[0, 0, 0], [3, 3, 3]]
    with pytest.raises(ValueError, match="agg does not return an element"):
        sc.extend_many(lambda a, b: (a + b).double(), states, [torch.ones(1, 3), torch.ones(1, 3)])
