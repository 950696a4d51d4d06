"""Counting changes nothing and counts pairs, not tensors."""

import pytest
import torch

from scannable.scan import scan
from scannable.spd import CountedAgg
from scannable.spd.counters import CountedDepth, CountedWork


def test_evaluations_are_pairs_of_elements() -> None:
    agg = CountedAgg(torch.add, element_shape=(2, 3))
    result = agg(torch.ones(5, 4, 2, 3), torch.ones(5, 4, 2, 3))
    assert result.sum() == 240
    agg(torch.ones(2, 3), torch.ones(2, 3))
    assert (agg.calls, agg.evaluations) == (2, 21)


def test_trees_and_other_objects() -> None:
    trees = CountedAgg(lambda older, newer: newer)
    trees((torch.ones(7), torch.ones(7, 2)), (torch.ones(7), torch.ones(7, 2)))
    assert (trees.calls, trees.evaluations) == (1, 7)
    strings = CountedAgg(lambda older, newer: older + newer)
    assert strings("a", "b") == "ab" and (strings.calls, strings.evaluations) == (1, 1)


def test_attention_counts_both_of_its_products() -> None:
    queries, keys = torch.ones(2, 3, 5, 8), torch.ones(2, 3, 7, 8)
    with CountedWork() as work:
        torch.nn.functional.scaled_dot_product_attention(queries, keys, keys)
    assert work.operations == 2 * 3 * 2 * (2 * 5 * 7 * 8)


def test_a_triangular_solve_counts_each_multiply_add_once() -> None:
    # Row i takes i products and their subtraction, and one division: i^2 over n rows is n (n - 1) + n = n^2 a column.
    matrix = torch.eye(5).expand(3, 5, 5).contiguous()
    with CountedWork() as work:
        torch.linalg.solve_triangular(matrix, torch.ones(3, 5, 2), upper=False)
    assert work.operations == 3 * 2 * 5**2
    # Of several matrices at once.
    with CountedWork() as work:
        torch.linalg.solve_triangular(torch.eye(5).expand(2, 3, 5, 5), torch.ones(2, 3, 5, 7), upper=False)
    assert work.operations == 2 * 3 * 7 * 5 * 5


def test_work_of_each_kind_is_counted_by_hand() -> None:
    x, y = torch.ones(4, 6), torch.ones(6, 5)
    counts = {
        "product": (lambda: x @ y, 2 * 4 * 6 * 5),
        "pointwise": (lambda: x.exp() + x, 2 * 4 * 6),
        "reduction": (lambda: x.sum(1), 4 * 6),
        "cumulative": (lambda: x.cumsum(0), 4 * 6),
        "view and copy": (lambda: x.t().clone(), 0),
        "of integers": (lambda: torch.ones(3, dtype=torch.int64) + 1, 0),
    }
    for name, (function, expected) in counts.items():
        with CountedWork() as work:
            function()
        assert work.operations == expected, name


def test_depth_is_the_longest_chain_of_calls_that_need_each_other() -> None:
    x = torch.ones(4)
    with CountedDepth() as chain:
        side_by_side = [x + i for i in range(10)]
        torch.cat(side_by_side)
    assert chain.depth == 2
    with CountedDepth() as chain:
        for _ in range(10):
            x = x * 2
    assert chain.depth == 10


def test_views_are_free_and_what_is_written_in_place_is_not() -> None:
    x = torch.ones(4, 6)
    with CountedDepth() as chain:
        y = x.t()[1:].unflatten(1, (2, 2)).unsqueeze(0).detach()
    assert chain.depth == 0
    with CountedDepth() as chain:
        y = x + 1
        for _ in range(5):
            y[0].mul_(2)
        y = y.reshape(-1) + 1
    assert chain.depth == 7


def test_parts_of_a_buffer_are_written_side_by_side() -> None:
    x, buffer = torch.ones(4), torch.zeros(10, 4)
    with CountedDepth() as chain:
        for i in range(10):
            buffer[i] = x + i
            torch.add(x, i, out=buffer[i])
    assert chain.depth == 2


def test_a_new_tensor_does_not_inherit_the_depth_of_one_that_is_gone() -> None:
    x = torch.ones(1000)
    with CountedDepth() as chain:
        for _ in range(50):
            y = x + 1
            z = y * 2
            del y, z
    assert chain.depth == 2


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_a_recurrence_is_as_deep_as_it_is_long_even_in_one_call(dtype: torch.dtype) -> None:
    # On a CPU all steps are one call in float32, and many calls in float64.
    cell = torch.nn.LSTM(4, 4, dtype=dtype)
    depths: list[int] = []
    for n in (8, 16, 32):
        with torch.no_grad(), CountedDepth() as chain:
            cell(torch.ones(n, 1, 4, dtype=dtype))
        depths.append(chain.depth)
    a_step = (depths[1] - depths[0]) // 8
    assert a_step >= 1
    assert depths[2] - depths[1] == 16 * a_step


@pytest.mark.parametrize("n", [16, 64, 256])
def test_a_scan_is_two_calls_of_agg_deep_for_each_level(n: int) -> None:
    agg = CountedAgg(lambda older, newer: 2 * older + 3 * newer)
    with CountedDepth() as whole:
        scan(agg, torch.arange(n), identity=torch.tensor(0))
    with CountedDepth() as twice:
        scan(agg, torch.arange(2 * n), identity=torch.tensor(0))
    # Agg is two calls deep; weaving odd and even prefixes is one or two more.
    assert 4 <= twice.depth - whole.depth <= 6
