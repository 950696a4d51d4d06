"""Multi-query associative recall as its generator has it, checked on batches."""

from dataclasses import asdict
from typing import Any, get_args

import numpy as np
import pytest
import torch

from scannable.tasks import IGNORED, Batch, MQARTask, Split
from scannable.tasks.sample import in_split

TASKS = [
    (MQARTask(), 64),
    (MQARTask(vocab_size=8192, pairs=64), 512),
    (MQARTask(vocab_size=64, pairs=8, gap_exponent=0.01), 65),
    (MQARTask(vocab_size=18, pairs=8, random_fillers=False, seed=9), 32),
    (MQARTask(vocab_size=19, pairs=8, gap_exponent=2, random_fillers=False), 33),
    (MQARTask(vocab_size=5, pairs=1), 40),
]
each_task = pytest.mark.parametrize(("task", "length"), TASKS)


def parts(batch: Batch, pairs: int) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """Keys, values, tokens and targets."""
    tokens, targets = batch.tokens.numpy(), batch.targets.numpy()
    return tokens[:, 0 : 2 * pairs : 2], tokens[:, 1 : 2 * pairs : 2], tokens, targets


@each_task
def test_keys_are_different_and_of_the_lower_half_values_of_the_upper(task: MQARTask, length: int) -> None:
    keys, values, *_ = parts(task.batch("train", range(200), length), task.pairs)
    half = task.vocab_size // 2
    assert keys.min() >= 1 and keys.max() < half and values.min() >= half and values.max() < task.vocab_size
    for part in (keys, values):
        assert (np.diff(np.sort(part, axis=1), axis=1) > 0).all()


@each_task
def test_every_key_is_asked_once_at_an_even_offset_behind_the_pairs(task: MQARTask, length: int) -> None:
    keys, _, tokens, targets = parts(task.batch("validation", range(200), length), task.pairs)
    asked = targets != IGNORED
    assert (asked.sum(1) == task.pairs).all()
    assert not asked[:, : 2 * task.pairs].any() and not asked[:, 2 * task.pairs + 1 :: 2].any()
    queried = tokens[asked].reshape(keys.shape)
    assert (np.sort(queried, axis=1) == np.sort(keys, axis=1)).all()
    assert length % 2 == 0 or not asked[:, -1].any()


@each_task
def test_whoever_remembers_the_pairs_gets_every_target_right(task: MQARTask, length: int) -> None:
    batch = task.batch("test", range(100), length)
    for tokens, targets in zip(batch.tokens.tolist(), batch.targets.tolist(), strict=True):
        memory = dict(zip(tokens[0 : 2 * task.pairs : 2], tokens[1 : 2 * task.pairs : 2], strict=True))
        assert all(target in (IGNORED, memory.get(token)) for token, target in zip(tokens, targets, strict=True))


def test_fillers_are_zero_or_any_token() -> None:
    for random in (False, True):
        _, _, tokens, targets = parts(MQARTask(64, 4, random_fillers=random).batch("train", range(500), 80), 4)
        fillers = tokens[:, 8:][targets[:, 8:] == IGNORED]
        counts = np.bincount(fillers, minlength=64)
        if random:
            assert counts.size == 64 and (abs(counts - fillers.size / 64) < 5 * (fillers.size / 64) ** 0.5).all()
        else:
            assert counts[0] == fillers.size


def gaps(exponent: float, pairs: int, rows: int = 2000) -> np.ndarray:
    """The slots 1 .. 60 that were asked."""
    batch = MQARTask(1024, pairs, exponent).batch("train", range(rows), 2 * pairs + 120)
    return (np.nonzero(batch.targets.numpy() != IGNORED)[1] - 2 * pairs) // 2 + 1


def chi_square(found: np.ndarray, weights: np.ndarray) -> float:
    expected = found.size * weights / weights.sum()
    return float(((np.bincount(found, minlength=61)[1:] - expected) ** 2 / expected).sum())


@pytest.mark.parametrize("exponent", [1.0, 0.01, 0.5, 2])
def test_a_query_falls_into_slot_g_in_proportion_to_its_power(exponent: float) -> None:
    found = gaps(exponent, pairs=1, rows=6000)
    weights = np.arange(1, 61) ** (exponent - 1.0)
    assert abs(chi_square(found, weights) - 59) < 5 * (2 * 59) ** 0.5


def test_all_queries_of_a_sample_are_spread_uniformly_at_exponent_1() -> None:
    # Without replacement counts scatter less than independent ones: only the upper side can fail.
    assert chi_square(gaps(1.0, pairs=12), np.ones(60)) < 59 + 5 * (2 * 59) ** 0.5


def test_a_power_law_asks_sooner() -> None:
    assert gaps(0.01, pairs=8).mean() < 0.7 * gaps(1.0, pairs=8).mean() < 0.9 * gaps(2, pairs=8).mean()


def test_weighted_slots_are_drawn_one_after_the_other_without_replacement() -> None:
    """Two slots of weights 1 and 1/2: the first pair is asked in the first with 2/3, the second in what is left."""
    batch = MQARTask(1024, 2, 0.0, False).batch("train", range(5000), 8)
    first = batch.tokens[:, 4] == batch.tokens[:, 0]
    assert first.double().mean().item() == pytest.approx(2 / 3, abs=5 * (2 / 9 / 5000) ** 0.5)
    assert torch.equal(first, batch.tokens[:, 6] == batch.tokens[:, 2])


def test_no_sequence_is_in_two_splits_whatever_their_seeds() -> None:
    seen = {
        name: {tuple(row) for s in (0, 1) for row in MQARTask(6, 1, seed=s).batch(name, range(2000), 4).tokens.tolist()}
        for name in get_args(Split)
    }
    # One of 2 keys, one of 3 values, one query and one filler of 6: there are 36 sequences.
    assert sum(map(len, seen.values())) == len(set.union(*seen.values())) == 36


def test_a_split_without_sequences_says_so() -> None:
    """One key, two values, one slot: there are two sequences for three splits."""
    task, everything = MQARTask(4, 1, random_fillers=False), np.array([[1, 2, 1, 0], [1, 3, 1, 0]])
    empty = next(name for name in get_args(Split) if not in_split(everything, name).any())
    with pytest.raises(ValueError, match=f"sample 5 of '{empty}': none of its 1,024 draws falls into that split"):
        task.batch(empty, [5], 4)


@pytest.mark.parametrize(
    ("knobs", "message"),
    [
        ({"pairs": 0}, "pairs=0 must be a whole number of at least 1"),
        ({"pairs": 2.0}, "pairs=2.0 must be a whole number of at least 1"),
        ({"vocab_size": 17}, r"vocab_size=17 must be a whole number from 18 to 2\^32, so that its lower half without 0 has a key for each of pairs=8"),
        ({"vocab_size": 2**33}, "vocab_size=8589934592 must be a whole number from 18"),
        ({"vocab_size": 8192.0}, "vocab_size=8192.0 must be a whole number from 18"),
        ({"gap_exponent": -0.1}, r"gap_exponent=-0\.1 must lie in \[0, 2\]; 1 is uniform, 0\.01 Zoology's power law"),
        ({"gap_exponent": float("nan")}, "gap_exponent=nan must lie in"),
        ({"gap_exponent": True}, "gap_exponent=True must lie in"),
        ({"random_fillers": 1}, "random_fillers=1 must be True or False"),
    ],
)  # fmt: skip
def test_a_bad_knob_is_named(knobs: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        MQARTask(**knobs)


def test_a_length_without_room_for_the_queries_is_named() -> None:
    message = "length=31 is too short for pairs=8: .* ask for at least 32 or for fewer pairs"
    with pytest.raises(ValueError, match=message):
        MQARTask().batch("train", [0], 31)
    assert (MQARTask().batch("train", [0], 32).targets[0, 16::2] != IGNORED).all()


def test_what_the_task_is_where_nothing_is_said() -> None:
    assert asdict(MQARTask()) == {
        "vocab_size": 8192, "pairs": 8, "gap_exponent": 1.0, "random_fillers": True, "seed": 0,
    }  # fmt: skip
