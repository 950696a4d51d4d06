"""The counter without its folds: the roots of `extend`, in as few evaluations as there are pairs to merge."""

from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

import scannable as sc
from scannable.scan import LevelRoots, Roots, empty, extend, extend_roots
from scannable.spd import CountedAgg

from operators import TanhMLP, two_three


def before_each(levels: list[LevelRoots[Tensor]], t: int, m: int) -> dict[int, dict[int, Tensor]]:
    """The counter's roots by level, at every place."""
    found = {place: dict[int, Tensor]() for place in range(t, t + m)}
    for roots in levels:
        assert roots.first % 2 == 0  # right nodes are merged at once
        for here, index in zip(*roots.before(range(t, t + m)), strict=True):
            found[t + int(here)][roots.level] = roots.nodes[index]
    return found


@pytest.mark.parametrize("t", range(18))
def test_the_roots_before_each_element_are_those_of_the_counter(t: int) -> None:
    xs = torch.randint(0, 9, (40, 2))
    for m in range(1, 20):
        start = extend_roots(two_three, Roots(), xs[:t])[1]
        levels, end = extend_roots(two_three, start, xs[t : t + m])
        found = before_each(levels, t, m)
        counter = extend(two_three, empty(0), xs[:t])[1]
        for place in range(t, t + m):
            assert found[place].keys() == counter.roots.keys()
            for k, expected in counter.roots.items():
                assert torch.equal(found[place][k], expected)
            counter = extend(two_three, counter, xs[place : place + 1])[1]
        assert end.position == counter.position and end.roots.keys() == counter.roots.keys()
        for k in end.roots:
            assert torch.equal(end.roots[k], counter.roots[k])


@given(st.lists(st.integers(0, 70), min_size=1, max_size=5))
@settings(max_examples=50, deadline=None)
def test_every_pair_is_merged_once_and_nothing_else_is_evaluated(pieces: list[int]) -> None:
    xs, state, total = torch.randint(0, 9, (sum(pieces), 3)), Roots[Tensor](), CountedAgg(two_three, (3,))
    for piece in xs.split(pieces):
        before = total.calls
        state = extend_roots(total, state, piece)[1]
        # A carry may run through all levels; but there is one call for each.
        assert total.calls - before <= state.position.bit_length()
    assert total.evaluations == sum(pieces) - sum(pieces).bit_count()


def test_sixty_four_elements_take_sixty_three_merges() -> None:
    agg = CountedAgg(two_three)
    extend_roots(agg, Roots(), torch.arange(64))
    assert (agg.evaluations, agg.calls) == (63, 6)
    folded = CountedAgg(two_three)
    extend(folded, empty(0), torch.arange(64))
    assert folded.evaluations == 120


@pytest.mark.parametrize("dim", [0, 1])
def test_gradients_go_to_every_element_and_through_the_roots(dim: int) -> None:
    agg = TanhMLP(3)
    xs = torch.randn(21, 2, 3, dtype=torch.float64)

    def function(xs: Tensor) -> tuple[Tensor, ...]:
        along = xs.movedim(0, dim)
        first, second = along.split((10, 11), dim)
        one, state = extend_roots(agg, Roots(), first, dim=dim)
        two, state = extend_roots(agg, state, second, dim=dim)
        return *(level.nodes for level in (*one, *two)), *state.roots.values()

    assert torch.autograd.gradcheck(function, xs.requires_grad_())
    along, whole = xs.detach().movedim(0, dim), extend_roots(agg, Roots(), xs.detach())[1]
    for k, root in extend_roots(agg, Roots(), along, dim=dim)[1].roots.items():
        torch.testing.assert_close(root, whole.roots[k])


def test_a_counter_holds_its_roots_and_no_more() -> None:
    xs = torch.randn(87, 5)
    _, state = extend_roots(lambda a, b: a + b, Roots(), xs)
    assert state.nbytes == (87).bit_count() * 5 * 4
    assert sum(root.untyped_storage().nbytes() for root in state.roots.values()) == state.nbytes
    assert state.to(torch.float64).nbytes == 2 * state.nbytes
    taught = extend_roots(lambda a, b: a + b, state, xs.requires_grad_())[1]
    assert any(root.requires_grad for root in taught.roots.values())
    assert not any(root.requires_grad for root in taught.detach().roots.values())


def test_a_counter_is_saved_and_goes_on(tmp_path: Path) -> None:
    xs = torch.randint(0, 9, (30,))
    _, state = extend_roots(two_three, Roots(), xs[:13])
    sc.save_state(state, tmp_path / "roots.safetensors")
    resumed = sc.load_state(tmp_path / "roots.safetensors")
    expected, found = (extend_roots(two_three, one, xs[13:])[1] for one in (state, resumed))
    assert found.position == 30 and all(torch.equal(found.roots[k], expected.roots[k]) for k in expected.roots)


def test_nothing_changes_nothing() -> None:
    _, state = extend_roots(two_three, Roots(), torch.arange(5))
    levels, after = extend_roots(two_three, state, torch.arange(0))
    assert levels == [] and after is state


@pytest.mark.usefixtures("shapes_unchecked")
def test_what_is_no_counter_gets_an_answer() -> None:
    state: Any = empty(0)
    with pytest.raises(TypeError, match=r"expected the roots of a counter, got ScanState; .* starts from Roots\(\)"):
        extend_roots(two_three, state, torch.arange(3))
    _, state = extend_roots(two_three, Roots(), torch.arange(3))
    with pytest.raises(
        ValueError, match=r"at level 0 its root has the dtype torch.int64, an element has torch.float32"
    ):
        extend_roots(two_three, state, torch.randn(3))
    with pytest.raises(ValueError, match=r"after 5 elements there are roots at the levels \[0, 2\], not at \[1\]"):
        Roots(5, {1: torch.zeros(1)})
    with pytest.raises(TypeError, match="no roots of a scan: position -1"):
        Roots(-1)
