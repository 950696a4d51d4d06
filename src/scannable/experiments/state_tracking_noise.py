"""State tracking: what an LSTM does with noise on its states, the one aid of Transformer-PSM that it can have."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations, permutations

from scannable.experiments.figure import table
from scannable.experiments.long_reading import ReadFar
from scannable.experiments.scores import LEARNED, RunScore, error_by_length, errors_by_seed
from scannable.experiments.state_tracking_runs import LSTM, NOISY_LSTM, WITHOUT

NEARLY_ALL, HALF = 0.99, (0.4, 0.6)
"""The share of the wrong answers that one factor has to explain, and the share of all that are wrong then."""
ELEMENTS = tuple(permutations(range(5)))
"""Of S5, by their numbers."""
Errors = Mapping[int, Mapping[int, float]]
"""By seed and length."""


@dataclass(frozen=True)
class FactorOfRun:
    """By what the wrong answers of a run differ from the right ones, as `LeftFactor` has it."""

    model: str
    seed: int
    rows: int
    length: int
    asked: int
    errors: int
    factor: int
    explained: int


def noise_section(
    rows: Sequence[RunScore], far: Sequence[ReadFar], factors: Sequence[FactorOfRun], trained: int
) -> list[str]:
    """What each seed of the LSTM does with noise, and without; `trained` is the longest length in training."""
    noisy, plain = (errors_by_seed(rows, name) for name in (NOISY_LSTM, LSTM))
    if not noisy or not plain:
        return []
    known = sorted({length for found in noisy.values() for length in found})
    lengths = sorted({known[0], known[-1], *(n for n in (trained, 64, 128, 256, 1024) if n in known)})
    named = [(f"noise, seed {seed}", found) for seed, found in noisy.items()]
    named += [(f"none, seed {seed}", found) for seed, found in plain.items()]
    read = [
        f"Seed {one.seed} read on {one.rows} x {one.length:,} tokens, with {one.errors:,} errors."
        for one in far
        if one.model == NOISY_LSTM
    ]
    return [
        "### The noise in an LSTM",
        "The LSTM of the first table with noise on its states, and nothing else changed: error in percent, seed by "
        "seed.",
        table(
            ["noise", *(f"{n:,}" for n in lengths)],
            [[label, *(f"{100 * found[n]:.2f}" for n in lengths)] for label, found in named],
        ),
        *([" ".join(said)] if (said := [*read, *_verdict(rows, noisy, plain, trained)]) else []),
        *_pairs(factors),
    ]


def _verdict(rows: Sequence[RunScore], noisy: Errors, plain: Errors, trained: int) -> list[str]:
    """With how many seeds the noise makes the state hold, and what becomes of the others."""
    longest = max(max(found) for found in noisy.values())
    holding = [seed for seed, found in noisy.items() if found[longest] <= LEARNED]
    said: list[str] = []
    if holding and min(found[longest] for found in plain.values()) > LEARNED:
        said.append(f"With {len(holding)} of {len(noisy)} seeds the state of the LSTM holds, and it has no tree.")
        without = [error_by_length(rows, WITHOUT[aid], "ablation").get(longest) for aid in ("noise", "unit-states")]
        if all(found and found.mean > LEARNED for found in without):
            said.append(
                "Transformer-PSM holds with the noise and unit states, and did not without either of them (one seed "
                "each)."
            )
        said.append("The tree is there for training: an LSTM is trained token by token, a prefix scan level by level.")
    failed = [seed for seed, found in noisy.items() if found.get(trained, 0) > LEARNED]
    if failed and max(found.get(trained, 1) for found in plain.values()) <= LEARNED:
        said.append(
            f"With {len(failed)} of {len(noisy)} seeds it does not learn length {trained}, which it does without noise "
            f"(seeds: {len(plain)})."
        )
    return said


def _pairs(factors: Sequence[FactorOfRun]) -> list[str]:
    """Which seeds hold pairs of elements instead of elements."""
    found = [one for one in factors if _holds_pairs(one)]
    if not found:
        return []
    each = "; ".join(
        f"seed {one.seed} has {one.errors:,} of {one.asked:,} wrong, and {one.explained:,} of these are h p where p is "
        f"right, with h = {' '.join(map(str, ELEMENTS[one.factor]))}"
        for one in found
    )
    bit = ": whether the permutation is even or odd" if all(_is_odd(ELEMENTS[one.factor]) for one in found) else ""
    return [
        f"Of the answers to the first {found[0].rows} test sequences of {found[0].length:,} tokens (`factors.csv`), "
        f"{each}. Such a state holds the pair of p and h p, and has lost which of the two it is{bit}. Multiplying on "
        "keeps the pair, (h p) x = h (p x), so that it never finds out again."
    ]


def _holds_pairs(one: FactorOfRun) -> bool:
    """Whether half of the answers are wrong, nearly all of these by one factor of order two."""
    h = ELEMENTS[one.factor]
    of_order_two = one.factor != 0 and all(h[h[i]] == i for i in range(len(h)))
    half = HALF[0] * one.asked <= one.errors <= HALF[1] * one.asked
    return of_order_two and half and one.explained >= NEARLY_ALL * one.errors


def _is_odd(h: Sequence[int]) -> bool:
    return sum(a > b for a, b in combinations(h, 2)) % 2 == 1
