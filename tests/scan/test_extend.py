"""Static scan and extend against the recursion: exact, for every length, split, tree of tensors and axis."""

from dataclasses import dataclass, field
from typing import Any, NamedTuple

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

import scannable as sc
from scannable.scan import reference
from scannable.spd import CountedAgg

from operators import Brackets, evaluations_after, two_three


@pytest.mark.parametrize("literal", [False, True])
@pytest.mark.parametrize("inclusive", [False, True])
def test_static_scan_brackets_like_the_recursion_for_every_length_to_1100(inclusive: bool, literal: bool) -> None:
    brackets = Brackets()
    e = brackets.identity
    longest = 1100
    letters = brackets.letters(longest)
    # A prefix does not depend on what comes after it, so one slow run serves all lengths.
    truth = reference.scan(brackets.one, letters.tolist(), int(e), inclusive=inclusive, literal=literal)
    for r in range(longest + 1):
        got = sc.scan(brackets, letters[:r], identity=e, inclusive=inclusive, literal=literal)
        assert got.tolist() == truth[:r], r


@pytest.mark.parametrize("longest", [24, pytest.param(70, marks=pytest.mark.slow)])
@pytest.mark.parametrize("literal", [False, True])
def test_extend_continues_from_every_position_by_every_length(literal: bool, longest: int) -> None:
    brackets = Brackets()
    e = brackets.identity
    letters = brackets.letters(2 * longest)
    exclusive = reference.scan(brackets.one, letters.tolist(), int(e), literal=literal)
    inclusive = reference.scan(brackets.one, letters.tolist(), int(e), literal=literal, inclusive=True)
    counter = sc.BinaryCounter(brackets.one, int(e), literal=literal)
    states = [counter.state]
    for x in letters.tolist():
        counter.push(x)
        states.append(counter.state)
    before = sc.empty(e, literal=literal)
    for t in range(longest + 1):
        for m in range(longest + 1):
            xs = letters[t : t + m]
            prefixes, after = sc.extend(brackets, before, xs)
            assert prefixes.tolist() == exclusive[t : t + m], (t, m)
            assert sc.extend(brackets, before, xs, inclusive=True)[0].tolist() == inclusive[t : t + m], (t, m)
            assert after.position == t + m
            assert {k: int(root) for k, root in after.roots.items()} == states[t + m].roots, (t, m)
            assert {k: int(fold) for k, fold in after.folds.items()} == states[t + m].folds, (t, m)
        _, before = sc.extend(brackets, before, letters[t : t + 1])


def test_a_bracket_by_eye() -> None:
    brackets = Brackets()
    prefixes = sc.scan(brackets, brackets.letters(6), identity=brackets.identity)
    assert [brackets.string(p) for p in prefixes.tolist()] == [
        "e", "x0", "(x0x1)", "((x0x1)x2)", "((x0x1)(x2x3))", "(((x0x1)(x2x3))x4)",
    ]  # fmt: skip


@settings(max_examples=25, deadline=None)
@given(r=st.integers(0, 2**16), literal=st.booleans(), inclusive=st.booleans(), seed=st.integers(0, 2**32))
def test_static_scan_is_exact_for_long_non_associative_sequences(
    r: int, literal: bool, inclusive: bool, seed: int
) -> None:
    xs = torch.randint(-(2**40), 2**40, (r,), generator=torch.Generator().manual_seed(seed))
    wrap = 2**64

    def exact(older: int, newer: int) -> int:
        return (2 * older + 3 * newer) % wrap

    truth = reference.scan(exact, [x % wrap for x in xs.tolist()], 5, literal=literal, inclusive=inclusive)
    got = sc.scan(two_three, xs, identity=torch.tensor(5), literal=literal, inclusive=inclusive)
    assert [g % wrap for g in got.tolist()] == truth


@settings(max_examples=60, deadline=None)
@given(
    parts=st.lists(st.integers(0, 200), max_size=6),
    literal=st.booleans(),
    shape=st.sampled_from([((), 0), ((3,), 0), ((3,), 1), ((2, 3), 1), ((2, 3), 2)]),
    seed=st.integers(0, 2**32),
)
def test_extend_in_any_split_on_any_axis_equals_one_scan(
    parts: list[int], literal: bool, shape: tuple[tuple[int, ...], int], seed: int
) -> None:
    element, dim = shape
    size = [*element]
    size.insert(dim, sum(parts))
    xs = torch.randint(-(2**40), 2**40, size, generator=torch.Generator().manual_seed(seed))
    e = torch.randint(-9, 9, element)
    whole = sc.scan(two_three, xs, identity=e, dim=dim, literal=literal)
    state, pieces = sc.empty(e, literal=literal), []
    for piece in xs.split(parts, dim) if parts else []:
        prefixes, state = sc.extend(two_three, state, piece, dim=dim)
        pieces.append(prefixes)
    assert state.position == sum(parts)
    if pieces:
        assert torch.equal(torch.cat(pieces, dim), whole)


class Pair(NamedTuple):
    gate: Tensor
    value: Tensor


@dataclass
class Record:
    gate: Tensor
    value: Tensor


def as_pair(tree: Any) -> tuple[Tensor, Tensor]:
    match tree:
        case {"gate": gate, "nested": [value, None]}:
            return gate, value
        case Record():
            return tree.gate, tree.value
        case _:
            return tree


TREES = {
    "tuple": lambda gate, value: (gate, value),
    "NamedTuple": Pair,
    "dataclass": Record,
    "dict with a list and None inside": lambda gate, value: {"gate": gate, "nested": [value, None]},
}


@pytest.mark.parametrize("kind", TREES)
@pytest.mark.parametrize("dim", [0, 1])
def test_elements_may_be_any_tree_of_tensors(kind: str, dim: int) -> None:
    make = TREES[kind]

    def agg(older: Any, newer: Any) -> Any:
        (g, v), (h, w) = as_pair(older), as_pair(newer)
        return make(2 * g + 3 * h, h.unsqueeze(-1) * v - w)

    n = 37
    gates, values = torch.randint(-50, 50, (n, 2)), torch.randint(-50, 50, (n, 2, 3))
    e = make(torch.tensor(1), torch.zeros(3, dtype=torch.int64))
    truth = reference.scan(agg, [make(g, v) for g, v in zip(gates, values, strict=True)], e)
    got = sc.scan(agg, make(gates.movedim(0, dim), values.movedim(0, dim)), identity=e, dim=dim)
    assert type(got) is type(e)
    for t, prefix in enumerate(truth):
        for a, b in zip(as_pair(got), as_pair(prefix), strict=True):
            assert torch.equal(a.movedim(dim, 0)[t], b.expand_as(a.movedim(dim, 0)[t])), t


def test_agg_sees_elements_with_one_batch_axis_in_front_whatever_the_time_axis() -> None:
    """Time last: a matrix product over the last axis of an element would be wrong if time stayed where it was."""
    matrices = torch.randint(-3, 3, (2, 2, 9))
    truth = reference.scan(torch.matmul, list(matrices.unbind(-1)), torch.eye(2, dtype=torch.int64))
    got = sc.scan(torch.matmul, matrices, identity=torch.eye(2, dtype=torch.int64), dim=2)
    assert torch.equal(got, torch.stack(truth, -1))


def test_extending_a_state_twice_is_a_fork() -> None:
    e = torch.tensor(0)
    xs = torch.arange(1, 22)
    _, state = sc.extend(two_three, sc.empty(e), xs[:13])
    kept = {k: root.clone() for k, root in state.roots.items()}, {k: fold.clone() for k, fold in state.folds.items()}
    left, after_left = sc.extend(two_three, state, xs[13:])
    right, _ = sc.extend(two_three, state, -xs[13:])
    again, after_again = sc.extend(two_three, state, xs[13:])
    assert torch.equal(left, again) and not torch.equal(left, right)
    assert after_left.roots.keys() == after_again.roots.keys()
    assert (dict(state.roots), dict(state.folds)) == kept and state.position == 13


def test_a_state_does_not_change_when_its_elements_are_overwritten() -> None:
    xs = torch.arange(1, 8)
    _, state = sc.extend(two_three, sc.empty(torch.tensor(0)), xs)
    before = [int(root) for root in state.roots.values()]
    xs.zero_()
    assert [int(root) for root in state.roots.values()] == before


def test_extending_by_nothing_gives_no_prefixes_and_the_same_state() -> None:
    xs = torch.ones(3, 0, 4)
    prefixes, state = sc.extend(two_three, sc.empty(torch.zeros(4)), xs, dim=1)
    assert prefixes.shape == (3, 0, 4) and state.position == 0
    _, five = sc.extend(two_three, state, torch.ones(3, 5, 4), dim=1)
    assert sc.extend(two_three, five, xs, dim=1)[1] is five
    assert sc.scan(two_three, xs, identity=torch.zeros(4), dim=1).shape == (3, 0, 4)


@pytest.mark.parametrize("literal", [False, True])
def test_work_is_linear_and_each_tree_level_is_one_call(literal: bool) -> None:
    for r in [*range(1, 300), 1023, 1024, 1025, 65_536]:
        agg = CountedAgg(two_three)
        sc.scan(agg, torch.arange(r), identity=torch.tensor(0), literal=literal)
        m = r - 1
        assert agg.evaluations == evaluations_after(m, literal=literal) < 2 * r
        merging = sum(2 << k <= m for k in range(20))
        folding = sum((1 if literal else 3) << k <= m for k in range(20))
        assert agg.calls == merging + folding <= 2 * (r - 1).bit_length() + 2, r


@settings(max_examples=100, deadline=None)
@given(t=st.integers(0, 3000), m=st.integers(0, 3000), literal=st.booleans())
def test_extend_computes_nothing_twice(t: int, m: int, literal: bool) -> None:
    _, state = sc.extend(two_three, sc.empty(torch.tensor(0), literal=literal), torch.arange(t))
    agg = CountedAgg(two_three)
    sc.extend(agg, state, torch.arange(m))
    assert agg.evaluations == evaluations_after(t + m, literal=literal) - evaluations_after(t, literal=literal)
    assert agg.calls <= 2 * (t + m).bit_length()


def test_a_state_holds_log_n_elements_and_nothing_behind_them() -> None:
    n = 5000
    _, state = sc.extend(two_three, sc.empty(torch.zeros(7)), torch.randn(3, n, 7), dim=1)
    assert len(state.roots) == len(state.folds) == n.bit_count()
    element = 3 * 7 * 4
    assert state.nbytes == (2 * n.bit_count() - 1) * element
    held = {x.untyped_storage().data_ptr(): x.untyped_storage() for x in [*state.roots.values(), *state.folds.values()]}
    assert sum(storage.nbytes() for storage in held.values()) == state.nbytes


def test_torch_generic_associative_scan_builds_the_same_tree() -> None:
    """An oracle nobody here wrote: for a non-associative operator it promises nothing, but does agree."""
    from torch._higher_order_ops import associative_scan

    for r in (1, 2, 7, 63, 64, 65, 1000):
        xs = torch.randint(-1000, 1000, (r, 2))
        theirs = associative_scan(two_three, xs, 0, combine_mode="generic")
        assert torch.equal(theirs, sc.scan(two_three, xs, identity=torch.tensor(0), inclusive=True))


@pytest.mark.parametrize("n", [1, 2, 3])
@pytest.mark.parametrize("inclusive", [False, True])
def test_results_are_the_callers_own_memory(n: int, inclusive: bool) -> None:
    e, xs = torch.zeros(2), torch.ones(n, 2, requires_grad=True)
    _, before = sc.extend(two_three, sc.empty(e), torch.ones(5, 2))
    kept = {k: root.clone() for k, root in before.roots.items()}
    for state in (sc.empty(e), before):
        sc.scan(two_three, xs, identity=e, inclusive=inclusive).mul_(7).add_(7)
        prefixes, after = sc.extend(two_three, state, xs, inclusive=inclusive)
        folds = {k: fold.clone() for k, fold in after.folds.items()}
        prefixes.add_(7)
        assert all(torch.equal(after.folds[k], fold) for k, fold in folds.items())
    assert e.tolist() == [0, 0] and xs.detach().eq(1).all()
    assert all(torch.equal(before.roots[k], root) for k, root in kept.items())


@dataclass(frozen=True, kw_only=True)
class Odd:
    """A dataclass that computes in its constructor, keeps a constant and has a tensor that is no argument."""

    value: Tensor
    name: str = "odd"
    seen: Tensor = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "seen", self.value + 100)


def test_a_dataclass_is_not_built_through_its_constructor() -> None:
    def agg(older: Odd, newer: Odd) -> Odd:
        return Odd(value=2 * older.value + 3 * newer.value)

    xs = torch.arange(1, 12)
    got = sc.scan(agg, Odd(value=xs), identity=Odd(value=torch.tensor(0)))
    assert torch.equal(got.value, sc.scan(two_three, xs, identity=0))
    assert torch.equal(got.seen[2:], got.value[2:] + 100) and got.name == "odd"
    with pytest.raises(ValueError, match="structure"):
        sc.scan(agg, Odd(value=xs, name="other"), identity=Odd(value=torch.tensor(0)))
