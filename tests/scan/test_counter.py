"""The theorems of the paper's scan section, each in the form in which it is true."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import scannable as sc
from scannable.scan import reference
from scannable.spd import CountedAgg

from operators import Brackets, evaluations_after, two_three


def bracket(older: str, newer: str) -> str:
    return f"({older}{newer})"


@pytest.mark.parametrize("literal", [False, True])
def test_online_prefix_equals_static_prefix_without_associativity(literal: bool) -> None:
    """Theorem "Equivalence with static Blelloch": before the push exclusive, after it inclusive."""
    brackets = Brackets()
    n, e = 1100, brackets.identity
    static = sc.scan(brackets, brackets.letters(n), identity=e, literal=literal).tolist()
    inclusive = sc.scan(brackets, brackets.letters(n), identity=e, literal=literal, inclusive=True).tolist()
    counter = sc.BinaryCounter(brackets.one, int(e), literal=literal)
    for t, x in enumerate(brackets.letters(n).tolist()):
        assert counter.prefix() == static[t]
        counter.push(x)
        assert counter.prefix() == inclusive[t]


def test_what_the_printed_counter_emits_is_the_prefix_after_the_push() -> None:
    xs = [str(i % 10) for i in range(200)]
    counter = sc.BinaryCounter(bracket, "e", literal=True)
    for x, emitted in zip(xs, reference.refolding_counter(bracket, xs, "e"), strict=True):
        counter.push(x)
        assert counter.prefix() == emitted


def older_then_newer(older: tuple[int, ...], newer: tuple[int, ...]) -> tuple[int, ...]:
    return older + newer


def test_root_k_covers_the_aligned_block_that_the_set_bit_k_stands_for() -> None:
    """Proposition "Block invariant"; as printed ("the most recent 2^k") it holds for the lowest root only."""
    counter = sc.BinaryCounter(older_then_newer, ())
    for t in range(1, 600):
        counter.push((t - 1,))
        bits = [k for k in range(t.bit_length()) if t >> k & 1]
        assert sorted(counter.roots) == bits
        for k in bits:
            start = t >> (k + 1) << (k + 1)
            assert counter.roots[k] == tuple(range(start, start + 2**k))
        assert counter.roots[bits[0]] == tuple(range(t - 2 ** bits[0], t))


def test_the_counter_holds_popcount_roots_at_most_floor_log2_plus_one() -> None:
    """Corollary "Memory bound"; the printed ceil(log2(t+1)) fails at once: it allows no root after one element."""
    counter = sc.BinaryCounter(two_three, torch.tensor(0))
    for n in range(1, 1100):
        counter.push(torch.tensor(n))
        assert len(counter.roots) == len(counter.state.folds) == n.bit_count() <= (n.bit_length() - 1) + 1


@pytest.mark.parametrize("literal", [False, True])
def test_a_push_costs_two_aggregations_amortised(literal: bool) -> None:
    """Paragraph "Work": true only if the folds are kept."""
    agg = CountedAgg(lambda older, newer: 0)
    counter = sc.BinaryCounter(agg, 0, literal=literal)
    for n in range(1, 65_537):
        counter.push(0)
        counter.prefix()
        if n.bit_count() == 1 or n % 977 == 0:
            assert agg.evaluations == evaluations_after(n, literal=literal) <= 2 * n
    assert agg.evaluations / 65_536 == pytest.approx(2.0, abs=0.001)


@pytest.mark.slow
@pytest.mark.parametrize(("n", "folds"), [(1024, 5.0), (65_536, 8.0)])
def test_the_printed_counter_pays_a_fold_that_grows_with_log_n(n: int, folds: float) -> None:
    agg = CountedAgg(lambda older, newer: 0)
    for _ in reference.refolding_counter(agg, [0] * n, 0):
        pass
    merges = n - n.bit_count()
    assert (agg.evaluations - merges) / n == pytest.approx(folds, abs=0.002)


@settings(max_examples=50, deadline=None)
@given(xs=st.lists(st.floats(-1e6, 1e6), max_size=120))
def test_a_counter_takes_plain_numbers(xs: list[float]) -> None:
    def mean(older: float, newer: float) -> float:
        return 0.25 * older + 0.75 * newer

    counter = sc.BinaryCounter(mean, 0.0)
    exclusive = []
    for x in xs:
        exclusive.append(counter.prefix())
        counter.push(x)
    assert exclusive == reference.scan(mean, xs, 0.0)


def test_a_counter_takes_none_as_an_element() -> None:
    counter = sc.BinaryCounter[str | None](lambda older, newer: None, identity="e")
    for _ in range(5):
        counter.push(None)
    assert counter.prefix() is None and counter.position == 5


def test_a_fork_goes_its_own_way() -> None:
    counter = sc.BinaryCounter(bracket, "e")
    for x in "abcde":
        counter.push(x)
    branch = counter.fork()
    branch.push("F")
    counter.push("f")
    assert branch.prefix() == "(((ab)(cd))(eF))" and counter.prefix() == "(((ab)(cd))(ef))"


def test_a_push_that_fails_leaves_the_counter_as_it_was() -> None:
    def agg(older: str, newer: str) -> str:
        if "!" in newer:
            raise RuntimeError("bad element")
        return bracket(older, newer)

    counter = sc.BinaryCounter(agg, "e")
    for x in "abc":
        counter.push(x)
    state = counter.state
    with pytest.raises(RuntimeError, match="bad element"):
        counter.push("!")
    assert counter.state is state
    counter.push("d")
    assert counter.prefix() == "((ab)(cd))"


def test_a_pushed_tensor_may_be_reused_and_keeps_nothing_else_alive() -> None:
    counter = sc.BinaryCounter(two_three, torch.zeros(2))
    buffer = torch.zeros(2)
    for t in range(3):
        counter.push(buffer.fill_(t + 1))
    buffer.fill_(99)
    assert counter.roots[0].tolist() == [3, 3]
    counter = sc.BinaryCounter(two_three, torch.zeros(2))
    for row in torch.ones(1000, 2)[:3]:
        counter.push(row)
    held = [x.untyped_storage().nbytes() for x in counter.roots.values()]
    assert sum(held) == 2 * 8
