"""What is said of an LSTM with noise is what its seeds show; what wrong answers have in common is found."""

from typing import Any

import pytest
import torch
from torch import Tensor, nn

from outcomes import outcome
from scannable.experiments.common_factor import CommonFactor, InCommon, common_factor, keep_factor, kept_factor
from scannable.experiments.long_reading import ReadFar
from scannable.experiments.state_tracking_noise import noise_section
from scannable.tasks import GroupTask
from scannable.tasks.groups import multiplication_table

TABLE = torch.from_numpy(multiplication_table("S5").copy())


class Mistaken(nn.Module):
    """Multiplies without fail, and puts `factor` in front of every second product."""

    def __init__(self, factor: int, *, behind: bool = False) -> None:
        super().__init__()
        self.unused = nn.Parameter(torch.zeros(1))
        self.factor, self.behind = factor, behind

    def forward(self, tokens: Tensor) -> Tensor:
        products = tokens.clone()
        for t in range(1, tokens.shape[1]):
            products[:, t] = TABLE[products[:, t - 1], tokens[:, t]]
        odd = products[:, 1::2]
        odd.copy_(TABLE[odd, self.factor] if self.behind else TABLE[self.factor, odd])
        return nn.functional.one_hot(products, 120).float()


@pytest.mark.parametrize("factor", [2, 17, 119])
def test_a_factor_in_front_of_the_product_is_found(factor: int) -> None:
    found = common_factor(Mistaken(factor), GroupTask("S5"), 9, 6)
    assert found == CommonFactor(9, 54, 24, factor, 24)


def test_a_factor_behind_the_product_is_none_in_front_of_it() -> None:
    found = common_factor(Mistaken(2, behind=True), GroupTask("S5"), 9, 6)
    assert found.errors == 24 and found.explained < 12


def test_where_nothing_is_wrong_the_factor_is_the_identity(tmp_path: Any) -> None:
    found = common_factor(Mistaken(0), GroupTask("S5"), 9, 6)
    assert found == CommonFactor(9, 54, 0, 0, 0)
    assert kept_factor(tmp_path, 9) is None
    keep_factor(tmp_path, found)
    assert kept_factor(tmp_path, 9) == found


def noisy(errors: tuple[float, ...], plain: float, without: float) -> list[Any]:
    rows = [outcome("lstm-noise", 4096, error, seed=seed) for seed, error in enumerate(errors)]
    rows += [outcome("lstm-noise", 18, 0.3, seed=seed) for seed in range(len(errors))]
    rows.append(outcome("lstm", 4096, plain))
    return rows + [outcome(f"psm-without-{aid}", 4096, without, part="ablation") for aid in ("noise", "unit-states")]


@pytest.mark.parametrize(
    ("errors", "plain", "without", "said"),
    [
        ((0.0,), 0.7, 0.8, "is enough to make its state hold, and it needs no tree for that; Transformer-PSM needs"),
        ((0.0, 0.01), 0.7, 0.01, "is enough to make its state hold, and it needs no tree for that. What"),
        ((0.0, 0.5, 0.5), 0.7, 0.8, "With 1 of 3 seeds the noise is enough to make the state of the LSTM hold, and it"),
        ((0.6,), 0.7, 0.8, None),
        ((0.0,), 0.01, 0.8, None),
    ],
)
def test_what_noise_is_enough_for_is_said_only_where_it_was_seen(
    errors: tuple[float, ...], plain: float, without: float, said: str | None
) -> None:
    rows = noisy(errors, plain, without)
    read = ReadFar("lstm-noise", 0, 1000, 4, 100, 4000, 3, 17, 64, 1.0)
    _, text = noise_section(rows, [read], [])
    listed = " / ".join(f"{error:.2%}" for error in errors)
    assert f"{listed} errors at 4,096 tokens, without it {plain:.2%}. In 4 x 1,000 tokens that seed 0 read" in text
    assert "it made 3 errors." in text
    assert (said in text) if said else ("tree" not in text)
    assert noise_section(rows[-3:], [], []) == [] == noise_section(rows[:1], [], [])


def test_a_seed_that_lacks_one_bit_is_told_from_one_that_forgets() -> None:
    rows = noisy((0.0, 0.5, 0.5), 0.7, 0.8)
    one, other = (InCommon(4096, 1000, 500, 2, explained, "lstm-noise", 1) for explained in (499, 400))
    *_, said = noise_section(rows, [], [one, other])
    assert said.startswith(
        "Of the 500 wrong answers of seed 1 among 1,000 (`factors.csv`), 99.80% are one and the same permutation, "
        "0 1 3 2 4, times the right one: up to that, 0.10% of its answers are wrong. "
        "At 18 tokens 30.00% of all answers are. Such a state holds all but one bit"
    )
    assert len(noise_section(rows, [], [other])) == 2
