"""Tables are groups, targets are products, and no sequence is in two splits."""

from itertools import permutations, product
from typing import Any, get_args

import numpy as np
import pytest
import torch
from sympy.combinatorics import Permutation

from scannable.tasks import GroupTask, Split
from scannable.tasks.groups import NAMES, group_order, multiplication_table
from scannable.tasks.sample import in_split

ORDERS = {
    "S1": 1, "S2": 2, "S3": 6, "S4": 24, "S5": 120, "S6": 720, "A2": 1, "A3": 3, "A4": 12, "A5": 60, "A6": 360,
    "Z1": 1, "Z2": 2, "Z60": 60, "Z2048": 2048, "S3xZ4": 24, "A4xZ5": 60, "Z2xZ2xZ2": 8, "S5xA4": 1440, "S1xZ3xA2": 3,
}  # fmt: skip


@pytest.mark.parametrize("name", ORDERS)
def test_a_table_is_a_group_whose_element_0_is_the_identity(name: str) -> None:
    table, order = multiplication_table(name), ORDERS[name]
    everything = np.arange(order)
    assert group_order(name) == order and table.shape == (order, order) and table.dtype == np.int64
    assert (table[0] == everything).all() and (table[:, 0] == everything).all()
    # Closed, and with an inverse on either side: every row and every column holds each element once.
    assert (np.sort(table, axis=0) == everything[:, None]).all() and (np.sort(table, axis=1) == everything).all()
    some = everything if order <= 120 else np.random.default_rng(0).choice(order, 100, replace=False)
    left = table[table[np.ix_(some, some)][:, :, None], some]
    right = table[some[:, None, None], table[np.ix_(some, some)]]
    assert (left == right).all()


def test_the_table_of_s5_composes_permutations_as_sympy_does() -> None:
    """new[j] = state[action[j]], which sympy calls rmul(state, action)."""
    elements = [Permutation(list(p)) for p in permutations(range(5))]
    table = multiplication_table("S5")
    for state, action in product(range(120), repeat=2):
        assert elements[table[state, action]] == Permutation.rmul(elements[state], elements[action])


def test_alternating_groups_are_the_even_permutations_in_the_same_order() -> None:
    even = [i for i, p in enumerate(permutations(range(5))) if Permutation(list(p)).is_even]
    inside = multiplication_table("S5")[np.ix_(even, even)]
    assert (np.searchsorted(even, inside) == multiplication_table("A5")).all()


def derived(table: np.ndarray, inside: set[int]) -> set[int]:
    """The subgroup that the commutators a^-1 b^-1 a b of a subgroup generate."""
    inverse = np.argmin(table, axis=1)
    members = np.array(sorted(inside))
    a, b = members[:, None], members[None, :]
    found = np.unique(table[table[inverse[a], inverse[b]], table[a, b]])
    while len(grown := np.unique(table[np.ix_(found, found)])) > len(found):
        found = grown
    return set(found.tolist())


def test_a5_is_not_solvable_and_groups_of_its_order_are() -> None:
    everything = set(range(60))
    assert derived(multiplication_table("A5"), everything) == everything
    solvable = multiplication_table("A4xZ5")
    first = derived(solvable, everything)
    assert len(first) == 4 and derived(solvable, first) == {0}
    abelian = multiplication_table("Z60")
    assert derived(abelian, everything) == {0} and (abelian == abelian.T).all()
    assert (solvable != solvable.T).any()
    assert len(derived(multiplication_table("S5"), set(range(120)))) == 60


def test_a_product_multiplies_each_factor_by_itself() -> None:
    s3, z4, z5 = (multiplication_table(name) for name in ("S3", "Z4", "Z5"))
    table = multiplication_table("S3xZ4xZ5")
    for x, y in product(range(0, 120, 3), range(0, 120, 7)):
        first, second, third = s3[x // 20, y // 20], z4[x // 5 % 4, y // 5 % 4], z5[x % 5, y % 5]
        assert table[x, y] == 20 * first + 5 * second + third


@pytest.mark.parametrize("name", NAMES)
def test_every_name_in_the_list_is_a_group(name: str) -> None:
    task = GroupTask(name)
    assert task.vocab_size == task.out_size == len(multiplication_table(name)) == group_order(name)


def test_a_table_cannot_be_changed_under_a_task() -> None:
    with pytest.raises(ValueError, match="read-only"):
        multiplication_table("S3")[0, 0] = 1


def test_targets_are_the_permutations_reached_so_far() -> None:
    elements = list(permutations(range(5)))
    batch = GroupTask().batch("train", range(20), 50)
    for tokens, targets in zip(batch.tokens.tolist(), batch.targets.tolist(), strict=True):
        state = elements[0]
        for token, target in zip(tokens, targets, strict=True):
            state = tuple(state[elements[token][j]] for j in range(5))
            assert elements[target] == state


@pytest.mark.parametrize("name", ["Z7", "A4xZ5"])
def test_targets_are_the_products_so_far(name: str) -> None:
    table = multiplication_table(name).tolist()
    batch = GroupTask(name, seed=3).batch("test", range(20), 50)
    for tokens, targets in zip(batch.tokens.tolist(), batch.targets.tolist(), strict=True):
        state = 0
        for token, target in zip(tokens, targets, strict=True):
            state = table[state][token]
            assert target == state


def test_tokens_are_spread_over_the_group() -> None:
    counts = GroupTask().batch("train", range(2000), 18).tokens.flatten().bincount(minlength=120)
    assert len(counts) == 120 and ((counts - 300).abs() < 5 * 300**0.5).all()


def test_length_1_asks_for_the_token_itself() -> None:
    batch = GroupTask("S5").batch("train", range(100), 1)
    assert torch.equal(batch.tokens, batch.targets)


def test_length_4096_is_right_to_its_end() -> None:
    batch = GroupTask("Z60").batch("validation", range(3), 4096)
    assert torch.equal(batch.tokens.cumsum(1) % 60, batch.targets)


def test_all_sequences_of_s3_of_length_2_are_in_exactly_one_split() -> None:
    everything = np.array(list(product(range(6), repeat=2)))
    found = {}
    for name in get_args(Split):
        found[name] = {tuple(row) for row in GroupTask("S3").batch(name, range(2000), 2).tokens.tolist()}
        assert found[name] == {tuple(row) for row in everything[in_split(everything, name)].tolist()}
    assert sum(map(len, found.values())) == len(set.union(*found.values())) == 36


def test_splits_never_intersect_whatever_their_seeds() -> None:
    seen = {
        name: {
            tuple(row) for seed in (0, 1) for row in GroupTask("S3", seed).batch(name, range(3000), 5).tokens.tolist()
        }
        for name in get_args(Split)
    }
    assert min(map(len, seen.values())) > 500
    assert sum(map(len, seen.values())) == len(set.union(*seen.values()))


def test_a_split_without_sequences_says_so() -> None:
    with pytest.raises(
        ValueError,
        match="sample 3 of 'test': none of its 1,024 draws falls into that split, which holds too few sequences of length 1 or none; ask for a greater length or a larger vocabulary",
    ):
        GroupTask("Z1").batch("test", [3], 1)


@pytest.mark.parametrize(
    "name", ["", "D4", "s5", "S0", "A1", "A1xS3", "S", "S3x", "xS3", "S3*Z4", "S05", "Z-1", "S5\n", "S³", 5, None]
)
def test_an_unknown_group_is_answered_with_examples(name: Any) -> None:
    with pytest.raises(
        ValueError, match=r"is unknown; S, A and Z with a number name .* as in S5, A5, A4xZ5, Z60, Z2$"
    ) as told:
        GroupTask(name)
    assert f"group={name!r}" in str(told.value)


@pytest.mark.parametrize("name", ["S7", "A7", "A12", "Z2049", "S5xS4", "S6xZ2xZ2", "S999999999", "Z" + "9" * 10_000])
def test_a_group_too_large_is_refused_before_anything_is_built(name: str) -> None:
    for ask in (GroupTask, multiplication_table):
        with pytest.raises(
            ValueError, match=r"has more than 2,048 elements; S6, A6, Z2048 and products up to that size"
        ):
            ask(name)
