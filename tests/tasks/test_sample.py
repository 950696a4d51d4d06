"""Samples are pure functions of where they stand, and their randomness is good enough to forget about."""

from hashlib import blake2b
from typing import Any, get_args

import numpy as np
import pytest
import torch

from scannable.tasks import IGNORED, GroupTask, MQARTask, Split, Task
from scannable.tasks.sample import distinct_below, first_in_split, in_split, integers_below, random_bits, uniform

MASK = 2**64 - 1
STEP = 0x9E3779B97F4A7C15


def mix(x: int) -> int:
    x = (x ^ x >> 30) * 0xBF58476D1CE4E5B9 & MASK
    x = (x ^ x >> 27) * 0x94D049BB133111EB & MASK
    return x ^ x >> 31


def is_even(counts: np.ndarray, expected: np.ndarray | float) -> bool:
    """Chi-square within five standard deviations of its mean; the draws are fixed, so it holds always or never."""
    chi_square, freedom = float(((counts - expected) ** 2 / expected).sum()), counts.size - 1
    return abs(chi_square - freedom) < 5 * (2 * freedom) ** 0.5


def test_bits_are_those_of_the_formula_on_every_machine() -> None:
    key = int.from_bytes(blake2b(b"7/train", digest_size=8).digest(), "little")
    indices = [0, 1, 5, 2**63 - 1]
    expected = [[mix(mix(key + STEP * i & MASK) + STEP * (p + 1) & MASK) for p in range(4)] for i in indices]
    assert random_bits(7, "train", indices, 4).tolist() == expected


def test_a_value_is_the_same_alone_in_any_batch_and_in_any_order() -> None:
    together = random_bits(3, "train", range(50), 20)
    order = np.random.default_rng(0).permutation(50)
    assert (random_bits(3, "train", order, 20) == together[order]).all()
    assert all((random_bits(3, "train", [i], 20)[0] == together[i]).all() for i in range(50))
    assert (random_bits(3, "train", [4, 4], 7) == together[4, :7]).all()
    assert random_bits(3, "train", [], 7).shape == (0, 7)


def test_seeds_streams_indices_and_positions_all_differ() -> None:
    blocks = [random_bits(s, name, range(100), 100) for s in (0, 1, 2**63 - 1) for name in get_args(Split)]
    assert np.unique(np.stack(blocks)).size == 9 * 100 * 100


def test_neighbours_differ_in_half_their_bits() -> None:
    bits = random_bits(0, "train", range(300), 300)
    for left, right in (
        (bits[1:], bits[:-1]),
        (bits[:, 1:], bits[:, :-1]),
        (bits, random_bits(1, "train", range(300), 300)),
    ):
        differing = np.unpackbits((left ^ right).view(np.uint8)).mean()
        assert differing == pytest.approx(0.5, abs=0.001)


@pytest.mark.parametrize("axis", [0, 1])
def test_uniform_numbers_are_uniform_alone_and_in_pairs(axis: int) -> None:
    """Along the positions of a few indices, and along the indices at a few positions."""
    numbers = uniform(0, "train", range(2), 50_000) if axis else uniform(0, "train", range(50_000), 2)
    assert 0 <= numbers.min() < 1e-4 and 1 - 1e-4 < numbers.max() < 1
    assert is_even(np.histogram(numbers, 100, (0, 1))[0], 1000)
    pairs = np.moveaxis(numbers, axis, 0).reshape(-1, 2, 2)
    left, right = pairs.swapaxes(0, 1).reshape(2, -1)
    assert is_even(np.histogram2d(left, right, 20, [[0, 1], [0, 1]])[0], 125)


@pytest.mark.parametrize("bound", [1, 2, 3, 120, 8192])
def test_integers_below_a_bound_are_even(bound: int) -> None:
    numbers = integers_below(bound, 0, "train", range(1000), 200)
    counts = np.bincount(numbers.ravel(), minlength=bound)
    assert counts.size == bound and (bound == 1 or is_even(counts, 200_000 / bound))
    assert integers_below(2**32, 0, "train", [0], 1000).max() > 2**31


@pytest.mark.parametrize(("bound", "count"), [(4095, 64), (9, 4), (9, 5), (4, 4), (1, 1)])
def test_distinct_numbers_are_distinct_even_and_pure(bound: int, count: int) -> None:
    rows = 2000
    numbers = distinct_below(bound, 0, "keys", range(rows), count)
    assert numbers.shape == (rows, count) and numbers.min() >= 0 and numbers.max() < bound
    assert (np.diff(np.sort(numbers, axis=1), axis=1) > 0).all()
    if bound > 1:
        for column in (0, count - 1):
            bins = min(bound, 15)
            assert is_even(np.bincount(numbers[:, column] * bins // bound, minlength=bins), rows / bins)
    assert (distinct_below(bound, 0, "keys", [1999, 7], count) == numbers[[1999, 7]]).all()


def test_distinct_numbers_are_the_first_different_ones_of_an_endless_row_of_draws() -> None:
    numbers = distinct_below(9, 0, "keys", range(500), 4)
    row = [list(dict.fromkeys(drawn)) for drawn in integers_below(9, 0, "keys", range(500), 64).tolist()]
    assert numbers.tolist() == [different[:4] for different in row]


def test_every_arrangement_of_distinct_numbers_is_equally_likely() -> None:
    for bound in (5, 4):  # drawn again until different, and sorted
        numbers = distinct_below(bound, 0, "keys", range(20_000), 2)
        counts = np.bincount(numbers @ [bound, 1], minlength=bound**2).reshape(bound, bound)
        assert (counts.diagonal() == 0).all()
        assert is_even(counts[~np.eye(bound, dtype=bool)], 20_000 / (bound * (bound - 1)))


def test_a_hash_of_the_tokens_alone_gives_every_row_one_split_and_train_eight_tenths() -> None:
    tokens = integers_below(50, 0, "anything", range(20_000), 6)
    inside = np.stack([in_split(tokens, name) for name in get_args(Split)])
    assert (inside.sum(0) == 1).all()
    assert is_even(inside.sum(1), np.array([16_000, 2000, 2000]))
    assert (in_split(tokens[100:200], "test") == inside[2, 100:200]).all()
    assert (in_split(tokens[:, ::-1], "test") != inside[2]).any(), "order matters"


def test_a_sample_is_the_first_of_its_draws_that_falls_into_its_split() -> None:
    def draw(draws: np.ndarray) -> np.ndarray:
        return integers_below(50, 0, "anything", draws, 6)[None]

    found = first_in_split("test", range(40), draw)[0]
    for i in range(40):
        own = draw(np.arange(1024 * i, 1024 * i + 1024))[0]
        assert (own[np.argmax(in_split(own, "test"))] == found[i]).all()


@pytest.mark.parametrize("task", [GroupTask(), GroupTask("S3xZ4", seed=5), MQARTask(), MQARTask(64, 4, 0.01, False, 5)])
def test_a_task_keeps_its_protocol(task: Task) -> None:
    assert isinstance(task, Task)
    for split in get_args(Split):
        batch = task.batch(split, range(8), 40)
        assert batch.tokens.shape == batch.targets.shape == (8, 40)
        assert batch.tokens.dtype == batch.targets.dtype == torch.int64
        assert batch.tokens.min() >= 0 and batch.tokens.max() < task.vocab_size
        asked = batch.targets[batch.targets != IGNORED]
        assert len(asked) and asked.min() >= 0 and asked.max() < task.out_size
        empty = task.batch(split, [], 40)
        assert empty.tokens.shape == empty.targets.shape == (0, 40)


@pytest.mark.parametrize("task", [GroupTask(), MQARTask()])
def test_a_sample_of_a_task_is_the_same_alone_in_any_batch_and_in_any_order(task: Task) -> None:
    for split in get_args(Split):
        together = task.batch(split, range(30), 40)
        order = np.random.default_rng(0).permutation(30)
        shuffled = task.batch(split, order, 40)
        assert torch.equal(shuffled.tokens, together.tokens[order])
        assert torch.equal(shuffled.targets, together.targets[order])
        alone = task.batch(split, [11], 40)
        assert torch.equal(alone.tokens[0], together.tokens[11])
        assert torch.equal(alone.targets[0], together.targets[11])


@pytest.mark.parametrize("kind", [GroupTask, MQARTask])
def test_samples_of_other_seeds_splits_and_indices_are_others(kind: Any) -> None:
    batches = [kind(seed=seed).batch(split, range(50), 40).tokens for seed in (0, 1) for split in get_args(Split)]
    assert len(torch.cat(batches).unique(dim=0)) == 6 * 50


@pytest.mark.parametrize(
    ("indices", "message"),
    [
        ([3, -1], r"index -1 is not in a list of whole numbers from 0 to 2\^63 - 1"),
        ([2**63], r"index 9223372036854775808 is not in a list of whole numbers from 0 to 2\^63 - 1"),
        ([2**64], r"indices=\[18446744073709551616\] must be a list of whole numbers from 0 to 2\^63 - 1"),
        ([0.5], r"indices=\[0\.5\] must be a list of whole numbers"),
        ([True], r"indices=\[True\] must be a list of whole numbers"),
        ([[1]], r"indices=\[\[1\]\] must be a list of whole numbers"),
        (5, "indices=5 must be a list of whole numbers"),
    ],
)
def test_a_bad_index_is_named(indices: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        random_bits(0, "train", indices, 1)


@pytest.mark.parametrize("task", [GroupTask(), MQARTask()])
def test_a_task_names_a_bad_split_index_or_length(task: Any) -> None:
    with pytest.raises(ValueError, match="split='dev' is none of 'train', 'validation' and 'test'"):
        task.batch("dev", [0], 40)
    for index in (-1, 2**53):
        with pytest.raises(ValueError, match=rf"index {index} is not in a list of whole numbers from 0 to 2\^53 - 1"):
            task.batch("train", [0, index], 40)
    assert task.batch("train", [2**53 - 1], 40).tokens.shape == (1, 40)
    for length in (0, -3, 4.0, True):
        with pytest.raises(ValueError, match=f"length={length} must be a whole number of at least 1"):
            task.batch("train", [0], length)


@pytest.mark.parametrize("seed", [-1, 2**63, 1.0, True, None, "0"])
def test_a_bad_seed_is_named(seed: Any) -> None:
    message = rf"seed={seed!r} must be a whole number from 0 to 2\^63 - 1"
    with pytest.raises(ValueError, match=message):
        random_bits(seed, "train", [0], 1)
    for kind in (GroupTask, MQARTask):
        with pytest.raises(ValueError, match=message):
            kind(seed=seed)


def test_a_bound_that_cannot_be_kept_is_named() -> None:
    for bound in (0, 2**32 + 1):
        with pytest.raises(ValueError, match=rf"bound={bound} must lie in 1 \.\. 2\^32; above, remainders"):
            integers_below(bound, 0, "train", [0], 1)
    with pytest.raises(ValueError, match="count=5 different numbers below bound=4 do not exist; ask for fewer"):
        distinct_below(4, 0, "train", [0], 5)
