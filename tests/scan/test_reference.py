"""The slow truth is Alg. 1 and Alg. 2 of the paper, where those are defined."""

import pytest

from scannable.scan import reference


def bracket(older: str, newer: str) -> str:
    return f"({older}{newer})"


@pytest.mark.parametrize("r", [1, 2, 4, 8, 16, 64])
def test_recursion_equals_the_printed_static_scan_on_powers_of_two(r: int) -> None:
    xs = [f"x{i}" for i in range(r)]
    assert reference.scan(bracket, xs, "e", literal=True) == reference.static_blelloch(bracket, xs, "e")


@pytest.mark.parametrize("literal", [False, True])
def test_printed_counter_emits_the_inclusive_prefix_which_is_the_exclusive_one_a_step_later(literal: bool) -> None:
    xs = [f"x{i}" for i in range(100)]
    emitted = list(reference.refolding_counter(bracket, xs, "e", literal=literal))
    assert emitted == reference.scan(bracket, xs, "e", inclusive=True, literal=literal)
    assert emitted[:-1] == reference.scan(bracket, xs, "e", literal=literal)[1:]


def test_the_brackets_are_those_of_the_papers_figure() -> None:
    xs = list("abcdefgh")
    assert reference.scan(bracket, xs, "e") == [
        "e",
        "a",
        "(ab)",
        "((ab)c)",
        "((ab)(cd))",
        "(((ab)(cd))e)",
        "(((ab)(cd))(ef))",
        "((((ab)(cd))(ef))g)",
    ]


def test_literal_calls_agg_on_the_identity_once_a_prefix() -> None:
    assert reference.scan(bracket, ["a", "b", "c"], "e", literal=True) == ["e", "(ea)", "(e(ab))"]


def test_printed_static_scan_refuses_other_lengths() -> None:
    with pytest.raises(ValueError, match="power of two of elements, not 6"):
        reference.static_blelloch(bracket, ["x"] * 6, "e")
