"""Every erratum has a counterexample that runs, and each corrected sentence holds."""

from collections.abc import Callable

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from scannable.experiments import wrong_scans
from scannable.experiments.errata import ERRATA, Erratum, refuted
from scannable.scan import reference, scan

from operators import Brackets, evaluations_after, two_three


@pytest.mark.parametrize("erratum", ERRATA, ids=lambda erratum: erratum.counterexample.__name__)
def test_what_is_printed_is_refuted(erratum: Erratum) -> None:
    assert erratum.counterexample()


def test_a_counterexample_that_is_none_is_told() -> None:
    with pytest.raises(AssertionError, match="the printed statement holds: 1 = 1"):
        refuted(1 == 1, "1 = 1")


def test_what_the_counterexamples_say() -> None:
    said = {erratum.counterexample.__name__: erratum.counterexample() for erratum in ERRATA}
    assert "Alg. 1 returns e, (ea), (e(ab)), ((e(ab))c); Alg. 2 emits (ea), (e(ab))" in said["emitted_is_inclusive"]
    assert "Inf gets s_1 = (ea), in which b is missing" in said["scan_for_inf_is_late"]
    assert "root[1] = (ab)" in said["three_elements_break_the_invariant"]
    # For n = 2^k there are n - 1 merges, and n k/2 + 1 set bits in 1 .. n.
    assert "4.00 an element at 64, 7.00 an element at 4,096" in said["folding_is_not_constant"]
    assert f"took {evaluations_after(1024):,} calls" in said["agg_is_called_twice_a_chunk"]
    assert "the state is 3 (2 * 0 + 1) + 5 = 8" in said["the_affine_order_is_the_other_one"]
    assert "gives 11" in said["the_affine_order_is_the_other_one"]
    assert "[0, 3, 15, 33] as printed, [0, 1, 5, 13] by the law" in said["calling_the_identity_is_another_function"]


# The two scans of the released code.


@given(levels=st.integers(0, 6))
def test_alg_1_on_tensors_is_alg_1(levels: int) -> None:
    brackets = Brackets()
    xs = brackets.letters(2**levels)
    expected = reference.static_blelloch(brackets.one, xs.tolist(), int(brackets.identity))
    assert wrong_scans.blelloch(brackets, xs[None], brackets.identity)[0].tolist() == expected


def test_the_swapped_scan_puts_the_newer_first() -> None:
    brackets = Brackets()
    found = wrong_scans.swapped(brackets, brackets.letters(4)[None], brackets.identity)[0].tolist()
    assert [brackets.string(one) for one in found] == ["e", "(x0e)", "((x0x1)e)", "(x2((x0x1)e))"]


def test_the_forgetful_scan_loses_the_earlier_chunks() -> None:
    brackets = Brackets()
    found = wrong_scans.forgetful(brackets, brackets.letters(8)[None], brackets.identity)[0].tolist()
    strings = [brackets.string(one) for one in found]
    # Behind the middle the right edge knows only its own half, then its own quarter.
    assert strings[-2:] == ["(x4x5)", "x6"]
    assert strings[:4] == ["e", "(ex0)", "(e(x0x1))", "((e(x0x1))x2)"]
    assert strings[4:6] == ["((x0x1)(x2x3))", "(((x0x1)(x2x3))x4)"]


@pytest.mark.parametrize(("wrong", "sums", "values"), [(wrong_scans.swapped, 16, 1), (wrong_scans.forgetful, 12, 5)])
def test_how_many_of_sixteen_prefixes_are_right(wrong: Callable[..., Tensor], sums: int, values: int) -> None:
    """Of sums, which do not notice the order of operands, and of 2a + 3b, which does."""
    xs, e = torch.arange(1, 17)[None], torch.tensor(0)
    for agg, expected in ((torch.add, sums), (two_three, values)):
        assert (wrong(agg, xs, e) == scan(agg, xs, identity=e, dim=1)).sum() == expected


def test_they_take_powers_of_two_only() -> None:
    with pytest.raises(ValueError, match="a power of two of elements, not 3"):
        wrong_scans.swapped(torch.add, torch.ones(1, 3), torch.tensor(0.0))
