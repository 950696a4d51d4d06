"""Counting changes nothing and counts pairs, not tensors."""

import torch

from scannable.spd import CountedAgg


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
