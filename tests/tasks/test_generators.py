"""A few elements that generate a group: sequences of them, and the products they have."""

from itertools import permutations
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from sympy.combinatorics import Permutation, PermutationGroup

from scannable.tasks import GroupTask
from scannable.tasks.generators import generated
from scannable.tasks.groups import generators_of, multiplication_table

ELEMENTS = list(permutations(range(5)))


@pytest.mark.parametrize("count", [2, 4, 8, 32])
def test_they_generate_s5_as_sympy_has_it(count: int) -> None:
    chosen = generators_of("S5", count)
    assert len(set(chosen.tolist())) == count and 0 not in chosen
    assert PermutationGroup([Permutation(ELEMENTS[i]) for i in chosen]).order() == 120


@settings(max_examples=40, deadline=None)
@given(st.sets(st.integers(0, 119), min_size=1, max_size=3))
def test_a_generated_subgroup_is_the_one_that_sympy_finds(elements: set[int]) -> None:
    found = generated(multiplication_table("S5"), np.array(sorted(elements)))
    group: Any = PermutationGroup([Permutation(ELEMENTS[i]) for i in elements])
    assert {ELEMENTS[i] for i in found} == {tuple(p.array_form) for p in group.elements}


def test_tokens_are_generators_and_targets_their_products() -> None:
    task = GroupTask("S5", seed=2, generators=4)
    batch = task.batch("test", range(50), 9)
    allowed = generators_of("S5", 4)
    assert set(batch.tokens.unique().tolist()) == set(allowed.tolist())
    assert (task.vocab_size, task.out_size) == (120, 120)
    for tokens, targets in zip(batch.tokens.tolist(), batch.targets.tolist(), strict=True):
        product = (0, 1, 2, 3, 4)
        for token, target in zip(tokens, targets, strict=True):
            product = tuple(product[j] for j in ELEMENTS[token])
            assert ELEMENTS[target] == product


def test_without_generators_the_samples_are_what_they_were() -> None:
    """Of the first version of the task: a run goes on with the samples it began with."""
    assert GroupTask("S5", seed=1).batch("train", [0], 6).tokens.tolist() == [SAMPLE]


SAMPLE = [30, 21, 111, 57, 20, 109]


@pytest.mark.parametrize(
    ("group", "count", "expected"),
    [
        ("S5", 0, "generators=0 of 'S5' must be a whole number from 1 to 119, or None"),
        ("S5", 120, "generators=120 of 'S5' must be"),
        ("S5", True, "generators=True of 'S5' must be"),
        ("S5", 1, "generators=1 elements are too few to generate 'S5'"),
        ("Z1", 1, "generators=1 of 'Z1' must be"),
    ],
)
def test_a_number_that_cannot_generate_is_named(group: str, count: Any, expected: str) -> None:
    with pytest.raises(ValueError, match=expected):
        GroupTask(group, generators=count)
