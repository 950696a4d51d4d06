"""Streams advanced together are the same streams advanced alone."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import scannable as sc
from scannable.spd import CountedAgg

from operators import Brackets, TanhMLP, two_three


def calls_of_one_push(t: int, *, literal: bool) -> int:
    carries = (t + 1).bit_length() - 1 if t & (t + 1) == 0 else ((t ^ (t + 1)).bit_length() - 1)
    fold = literal or (t >> carries) != 0
    return carries + int(fold)


@settings(max_examples=60, deadline=None)
@given(
    positions=st.lists(st.integers(0, 40), min_size=1, max_size=8),
    steps=st.integers(1, 9),
    literal=st.booleans(),
)
def test_streams_at_any_positions_bracket_as_they_do_alone(positions: list[int], steps: int, literal: bool) -> None:
    brackets = Brackets()
    e = brackets.identity
    alone = []
    for t in positions:
        counter = sc.BinaryCounter(brackets.one, int(e), literal=literal)
        for x in brackets.letters(t).tolist():
            counter.push(x)
        alone.append(counter)
    states = [sc.extend(brackets, sc.empty(e, literal=literal), brackets.letters(t))[1] for t in positions]
    for step in range(steps):
        elements = [brackets.letters(1, start=100 + 10 * i + step)[0] for i in range(len(positions))]
        agg = CountedAgg(brackets)
        before = [counter.prefix() for counter in alone]
        pushed = [counter.position for counter in alone]
        prefixes, after = sc.extend_many(agg, states, elements)
        with_it, _ = sc.extend_many(brackets, states, elements, inclusive=True)
        for counter, x in zip(alone, elements, strict=True):
            counter.push(int(x))
        assert [int(p) for p in prefixes] == before
        assert [int(p) for p in with_it] == [counter.prefix() for counter in alone]
        for state, counter in zip(after, alone, strict=True):
            assert state.position == counter.position
            assert {k: int(x) for k, x in state.roots.items()} == counter.roots
            assert {k: int(x) for k, x in state.folds.items()} == counter.state.folds
        costs = [calls_of_one_push(t, literal=literal) for t in pushed]
        assert agg.calls == max(costs) and agg.evaluations == sum(costs)
        states = after


def test_merges_of_different_levels_share_a_call() -> None:
    """A stream at 1 (one merge) and one at 2 (a fold at once): two evaluations, one call."""
    agg = CountedAgg(two_three)
    states = [sc.extend(two_three, sc.empty(torch.tensor(0)), torch.ones(t, dtype=torch.int64))[1] for t in (1, 2)]
    sc.extend_many(agg, states, [torch.tensor(1), torch.tensor(1)])
    assert (agg.calls, agg.evaluations) == (1, 2)


def test_trees_rows_of_a_batch_and_gradients() -> None:
    torch.manual_seed(0)
    mlp = TanhMLP(3)

    def agg(older: dict[str, torch.Tensor], newer: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
        return {"x": mlp(older["x"], newer["x"]), "n": older["n"] + newer["n"]}

    e = {"x": torch.zeros(3, dtype=torch.float64, requires_grad=True), "n": torch.tensor(0)}
    rows = torch.randn(4, 3, dtype=torch.float64, requires_grad=True)
    states = [sc.empty(e, literal=True) for _ in range(4)]
    prefixes = []
    for _ in range(5):
        prefixes, states = sc.extend_many(agg, states, [{"x": row, "n": torch.tensor(1)} for row in rows])
    together = torch.stack([p["x"] for p in prefixes])
    alone = sc.scan(
        agg, {"x": rows.expand(5, 4, 3), "n": torch.ones(5, 4, dtype=torch.int64)}, identity=e, literal=True
    )
    torch.testing.assert_close(together, alone["x"][-1], rtol=1e-10, atol=1e-10)
    for a, b in zip(
        torch.autograd.grad(together.sum(), [rows, e["x"], *mlp.parameters()]),
        torch.autograd.grad(alone["x"][-1].sum(), [rows, e["x"], *mlp.parameters()]),
        strict=True,
    ):
        torch.testing.assert_close(a, b, rtol=1e-10, atol=1e-10)


def test_a_state_does_not_hold_its_neighbours_rows() -> None:
    states = [sc.empty(torch.zeros(8)) for _ in range(16)]
    for step in range(7):
        _, states = sc.extend_many(two_three, states, torch.randn(16, 8).unbind())
        for state in states:
            held = {
                x.untyped_storage().data_ptr(): x.untyped_storage().nbytes()
                for x in [*state.roots.values(), *state.folds.values()]
            }
            assert sum(held.values()) == state.nbytes == (2 * (step + 1).bit_count() - 1) * 32


def test_states_are_left_as_they_were() -> None:
    _, state = sc.extend(two_three, sc.empty(torch.tensor(0)), torch.arange(7))
    roots = {k: int(x) for k, x in state.roots.items()}
    _, (left, right) = sc.extend_many(two_three, [state, state], [torch.tensor(1), torch.tensor(2)])
    assert {k: int(x) for k, x in state.roots.items()} == roots and state.position == 7
    assert int(left.prefix()) != int(right.prefix())


def test_no_streams_need_no_call() -> None:
    assert sc.extend_many(two_three, [], []) == ([], [])


def test_bad_calls_are_named() -> None:
    state = sc.empty(torch.tensor(0.0))
    with pytest.raises(ValueError, match="2 states but 1 elements"):
        sc.extend_many(two_three, [state, state], [torch.tensor(1.0)])
    with pytest.raises(ValueError, match=r"elements\[1\] has the shape \(2,\), elements\[0\] has \(\)"):
        sc.extend_many(two_three, [state, state], [torch.tensor(1.0), torch.zeros(2)])
    _, later = sc.extend(two_three, sc.empty(torch.zeros(2)), torch.zeros(3, 2))
    with pytest.raises(ValueError, match="the state does not fit these elements: at level 1 "):
        sc.extend_many(two_three, [later], [torch.tensor(1.0)])


def test_results_are_the_callers_own_memory() -> None:
    e = torch.zeros(2)
    states = [sc.empty(e), sc.empty(e)]
    for inclusive in (False, True):
        prefixes, after = sc.extend_many(two_three, states, [torch.ones(2), torch.ones(2)], inclusive=inclusive)
        for prefix in prefixes:
            prefix.add_(7)
        assert e.tolist() == [0, 0] and all(state.prefix().tolist() == [1, 1] for state in after)


def test_agg_is_checked_and_a_broadcast_identity_is_spread() -> None:
    states = [sc.extend(two_three, sc.empty(0.0, literal=True), torch.ones(t, 3))[1] for t in (0, 1)]
    prefixes, _ = sc.extend_many(two_three, states, [torch.ones(3), torch.ones(3)])
    assert [prefix.tolist() for prefix in prefixes] == [[0, 0, 0], [3, 3, 3]]
    with pytest.raises(ValueError, match="agg does not return an element"):
        sc.extend_many(lambda a, b: (a + b).double(), states, [torch.ones(3), torch.ones(3)])
