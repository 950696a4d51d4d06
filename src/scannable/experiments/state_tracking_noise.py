"""State tracking: what an LSTM does with noise on its states, the one aid of Transformer-PSM that it can have."""

from collections.abc import Sequence
from itertools import permutations

from scannable.experiments.common_factor import InCommon
from scannable.experiments.long_reading import ReadFar
from scannable.experiments.scores import LEARNED, RunScore, error_by_length
from scannable.experiments.state_tracking_runs import LSTM, NOISY_LSTM, WITHOUT

NEARLY_ALL = 0.99
"""A share of the wrong answers that have something in common."""


def noise_section(rows: Sequence[RunScore], far: Sequence[ReadFar], common: Sequence[InCommon]) -> list[str]:
    """Whether the noise alone makes its state hold, and with how many seeds."""
    noisy, plain = (error_by_length(rows, name) for name in (NOISY_LSTM, LSTM))
    if not noisy or not plain:
        return []
    longest = max(noisy)
    errors = {row.seed: row.error for row in rows if (row.model, row.length) == (NOISY_LSTM, longest)}
    listed = " / ".join(f"{error:.2%}" for error in errors.values())
    each = ", seed by seed," if len(errors) > 1 else ""
    read = "".join(
        f" In {one.rows} x {one.length:,} tokens that seed {one.seed} read on it made {one.errors:,} errors."
        for one in far
        if one.model == NOISY_LSTM
    )
    return [
        "### The noise alone, in an LSTM",
        f"With noise on its states, and nothing else changed, the LSTM of the first table makes{each} {listed} errors "
        f"at {longest:,} tokens, without it {plain[longest].mean:.2%}.{read}"
        f"{_verdict(rows, errors, plain[longest].mean)}",
        *_cosets(rows, common),
    ]


def _verdict(rows: Sequence[RunScore], errors: dict[int, float], plain: float) -> str:
    """What the noise is enough for, if it is at all."""
    holding = [seed for seed, error in errors.items() if error <= LEARNED]
    if not holding or plain <= LEARNED:
        return ""
    said = " In the LSTM the noise is enough to make its state hold, and it needs no tree for that"
    if len(holding) < len(errors):
        said = (
            f" With {len(holding)} of {len(errors)} seeds the noise is enough to make the state of the LSTM hold, "
            "and it needs no tree for that"
        )
    longest = max(row.length for row in rows if row.model == NOISY_LSTM)
    without = [error_by_length(rows, WITHOUT[aid], "ablation").get(longest) for aid in ("noise", "unit-states")]
    if all(found and found.mean > LEARNED for found in without):
        said += "; Transformer-PSM needs the noise and unit states as well"
    return (
        f"{said}. What the tree is for is another thing: an LSTM is trained token by token, a prefix scan level by "
        "level."
    )


def _cosets(rows: Sequence[RunScore], common: Sequence[InCommon]) -> list[str]:
    """Which seeds hold products up to a single element, and lose the rest."""
    elements = list(permutations(range(5)))
    shortest = min(row.length for row in rows if row.model == NOISY_LSTM)
    at_first = {row.seed: row.error for row in rows if (row.model, row.length) == (NOISY_LSTM, shortest)}
    said = [
        f"Of the {one.errors:,} wrong answers of seed {one.seed} among {one.asked:,} (`factors.csv`), "
        f"{one.explained / one.errors:.2%} are one and the same permutation, "
        f"{' '.join(map(str, elements[one.factor]))}, times the right one: up to that, "
        f"{(one.errors - one.explained) / one.asked:.2%} of its answers are wrong. At {shortest} tokens "
        f"{at_first[one.seed]:.2%} of all answers are."
        for one in common
        if one.errors and one.explained >= NEARLY_ALL * one.errors
    ]
    if not said:
        return []
    return [
        " ".join(said) + " Such a state holds all but one bit, which of two permutations that differ by this one it "
        "is, and loses that: reading on moves both alike."
    ]
