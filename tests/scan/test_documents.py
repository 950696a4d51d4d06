"""Rows of different lengths and packed documents: each a tree of its own, as if it were alone."""

from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

import scannable as sc
from scannable.spd import CountedAgg

from operators import Brackets, TanhMLP


@settings(max_examples=80, deadline=None)
@given(
    lengths=st.lists(st.integers(0, 40), min_size=1, max_size=6),
    spare=st.integers(0, 3),
    dim=st.integers(0, 1),
    inclusive=st.booleans(),
    literal=st.booleans(),
)
def test_rows_of_different_lengths_are_scanned_as_if_alone(
    lengths: list[int], spare: int, dim: int, inclusive: bool, literal: bool
) -> None:
    brackets = Brackets()
    e = brackets.identity
    n = max(lengths) + spare
    rows = torch.stack([brackets.letters(n, start=100 * i) for i in range(len(lengths))])
    together, alone = CountedAgg(brackets), CountedAgg(brackets)
    options: dict[str, Any] = {"identity": e, "inclusive": inclusive, "literal": literal}
    found = sc.scan(together, rows.movedim(1, dim), dim=dim, lengths=torch.tensor(lengths), **options).movedim(dim, 1)
    for row, x, m in zip(found, rows, lengths, strict=True):
        assert row[:m].tolist() == sc.scan(alone, x[:m], **options).tolist()
        assert (row[m:] == e).all()
    assert together.evaluations == alone.evaluations


@settings(max_examples=80, deadline=None)
@given(data=st.data(), n=st.integers(0, 60), rows=st.integers(1, 3), inclusive=st.booleans())
def test_packed_documents_are_scanned_as_if_alone(data: st.DataObject, n: int, rows: int, inclusive: bool) -> None:
    brackets = Brackets()
    e = brackets.identity
    starts = [sorted({0, *data.draw(st.sets(st.integers(0, n), max_size=5))}) for _ in range(rows)]
    x = torch.stack([brackets.letters(n, start=100 * i) for i in range(rows)])
    truth = [
        p
        for row, cuts in zip(x, starts, strict=True)
        for first, last in zip(cuts, [*cuts[1:], n], strict=True)
        for p in sc.scan(brackets, row[first:last], identity=e, inclusive=inclusive).tolist()
    ]
    mask = torch.zeros(rows, n, dtype=torch.bool)
    for row, cuts in zip(mask, starts, strict=True):
        row[[cut for cut in cuts if cut < n]] = True
    for given_as in (starts, mask, [torch.tensor(cuts) for cuts in starts]):
        found = sc.scan(brackets, x, identity=e, dim=1, starts=given_as, inclusive=inclusive)
        assert found.flatten().tolist() == truth
    if len({len(cuts) for cuts in starts}) == 1:
        for table in (torch.tensor(starts), torch.tensor(starts).numpy(), mask.numpy()):
            found = sc.scan(brackets, x, identity=e, dim=1, starts=table, inclusive=inclusive)
            assert found.flatten().tolist() == truth
    # The same in all rows: time need not have rows beside it.
    one = sc.scan(brackets, x[0], identity=e, starts=starts[0], inclusive=inclusive)
    assert one.tolist() == truth[:n]
    cumulative = torch.tensor([*(cut for cut in starts[0] if cut < n), n])
    assert sc.scan(brackets, x, identity=e, dim=1, starts=cumulative, inclusive=inclusive)[0].tolist() == truth[:n]


def test_gradients_and_padding_that_is_not_a_number() -> None:
    torch.manual_seed(0)
    agg = TanhMLP(3)
    e = torch.randn(3, dtype=torch.float64, requires_grad=True)
    lengths = [5, 0, 7, 1]
    x = torch.randn(4, 7, 3, dtype=torch.float64)
    for row, m in zip(x, lengths, strict=True):
        row[m:] = torch.nan
    x.requires_grad_()
    inputs = [x, e, *agg.parameters()]
    keep = torch.arange(7) < torch.tensor(lengths)[:, None]
    together = sc.scan(agg, x, identity=e, dim=1, lengths=lengths, literal=True)
    loss = together[keep].sin().sum()
    alone = [sc.scan(agg, row[:m], identity=e, literal=True) for row, m in zip(x, lengths, strict=True)]
    truth = torch.cat(alone)
    torch.testing.assert_close(together[keep], truth, rtol=1e-12, atol=1e-12)
    for mine, theirs in zip(
        torch.autograd.grad(loss, inputs), torch.autograd.grad(truth.sin().sum(), inputs), strict=True
    ):
        torch.testing.assert_close(mine, theirs, rtol=1e-10, atol=1e-10)


def test_an_identity_of_its_own_for_each_row() -> None:
    brackets = Brackets()
    es = brackets.letters(2, start=500)
    found = sc.scan(brackets, brackets.letters(6).view(2, 3), identity=es, dim=1, lengths=[3, 2])
    assert found[:, 0].tolist() == es.tolist() and found[1, 2] == es[1]


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"lengths": [1, 2, 3]}, r"lengths have the shape \(3,\); expected one whole number for each of the 2 rows"),
        ({"lengths": [1, 5]}, r"lengths \[1, 5\] must lie between 0 and 4"),
        ({"lengths": [-1, 2]}, "must lie between 0 and 4"),
        ({"lengths": [1.5, 2.0]}, "lengths have the dtype float64; expected whole numbers"),
        ({"lengths": [1, 2], "starts": [0]}, "not both"),
        ({"starts": [0, 3, 2]}, r"starts \[0, 3, 2\] must rise from 0 to at most 4"),
        ({"starts": [0, 5]}, "must rise from 0 to at most 4"),
        ({"starts": [[0], [1], [2]]}, "starts for 3 rows, but there are 2"),
        ({"starts": torch.zeros(3, 4, dtype=torch.bool)}, r"a mask has \(2, 4\)"),
    ],
)
def test_what_describes_no_documents_is_refused(given: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        sc.scan(Tensor.add, torch.ones(2, 4), identity=0.0, dim=1, **given)


def test_rows_need_an_axis() -> None:
    with pytest.raises(ValueError, match="rows of different lengths are the first axis that is not time"):
        sc.scan(
            lambda older, newer: newer, (torch.ones(2, 4), torch.ones(3, 4)), identity=(0, 0), dim=1, lengths=[1, 2]
        )
