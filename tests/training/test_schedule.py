"""Learning rates, decay, and stages of a curriculum, by hand."""

import math

import pytest
from torch import nn

from scannable.training.curriculum import Stage
from scannable.training.recipe import Curriculum, Evaluation, Optimizer
from scannable.training.schedule import adamw, learning_rate


def test_the_rate_rises_and_then_falls_to_its_last() -> None:
    for schedule, middle in (("constant", 1.0), ("linear", 0.55), ("cosine", 0.55)):
        optimizer = Optimizer(learning_rate=2.0, warmup=10, schedule=schedule, final=0.1)  # pyright: ignore[reportArgumentType]
        rates = [learning_rate(optimizer, step, 111) for step in range(111)]
        assert rates[:10] == pytest.approx([0.2 * (step + 1) for step in range(10)])
        assert rates[10] == pytest.approx(2.0) and rates[60] == pytest.approx(2.0 * middle)
        assert rates[-1] == pytest.approx(2.0 if schedule == "constant" else 0.2)
    quarter = learning_rate(Optimizer(learning_rate=1.0, warmup=0, final=0.0), 25, 101)
    assert quarter == pytest.approx(0.5 * (1 + math.cos(math.pi / 4)))


def test_a_late_fall_begins_after_two_thirds() -> None:
    optimizer = Optimizer(learning_rate=2.0, warmup=5, schedule="late", final=0.1)
    rates = [learning_rate(optimizer, step, 91) for step in range(91)]
    assert rates[5:61] == [2.0] * 56
    assert rates[75] == pytest.approx(0.5 * (2.0 + 0.2))
    assert rates[-1] == pytest.approx(0.2)


def test_only_matrices_decay() -> None:
    model = nn.Sequential(nn.Linear(3, 4), nn.LayerNorm(4))
    decaying, still = adamw(model, Optimizer(weight_decay=0.3)).param_groups
    assert [p.shape for p in decaying["params"]] == [(4, 3)] and decaying["weight_decay"] == 0.3
    assert len(still["params"]) == 3 and still["weight_decay"] == 0.0


def test_a_stage_ends_by_error_or_by_steps() -> None:
    by_error, by_steps = Curriculum((2, 4), below=(0.1,)), Curriculum((2, 4), steps=2)
    assert Stage().after_evaluation(by_error, 3.0, 0.2) == Stage(0, 0, 3.0)
    assert Stage(0, 5).after_evaluation(by_error, 3.0, 0.05) == Stage(1)
    assert Stage(1, 5).after_evaluation(by_error, 3.0, 0.05) == Stage(1, 5, 3.0)
    assert Stage(0, 9).after_step() == Stage(0, 10)
    assert Stage(0, 10).when_time_is_up(by_error) == Stage(0, 10)
    assert [Stage(0, n).when_time_is_up(by_steps) for n in (1, 2, 3)] == [Stage(0, 1), Stage(1), Stage(1)]
    assert Stage(1, 9).when_time_is_up(by_steps) == Stage(1, 9)
    assert Stage(1).length(by_steps) == 4


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: Optimizer(learning_rate=0.0), "learning_rate=0.0 must be above 0"),
        (lambda: Optimizer(betas=(0.9, 1.0)), r"betas=\(0.9, 1.0\) must lie in \[0, 1\)"),
        (lambda: Optimizer(clip=-1.0), "clip=-1.0 must be 0 or above"),
        (lambda: Optimizer(warmup=-1), "warmup=-1 must be 0 or more steps"),
        (lambda: Curriculum(()), "lengths is empty"),
        (lambda: Curriculum((2, 3)), "needs `below`, `steps` or `patience`"),
        (lambda: Curriculum((0,)), "lengths=0 must be above 0"),
        (lambda: Curriculum((2,), revisit=1.0), r"revisit=1.0 must lie in \[0, 1\)"),
        (lambda: Evaluation(every=0), "every=0 must be above 0"),
    ],
)
def test_what_makes_no_sense_is_refused(make: object, message: str) -> None:
    assert callable(make)
    with pytest.raises(ValueError, match=message):
        make()


def test_a_length_that_does_not_get_better_is_left() -> None:
    curriculum = Curriculum((2, 4), patience=2)
    stage = Stage()
    for loss in (3.0, 2.0, 2.5):
        stage = stage.after_evaluation(curriculum, loss, 0.9)
        assert stage.index == 0
    assert stage.after_evaluation(curriculum, 1.9, 0.9) == Stage(0, 0, 1.9, 0)
    assert stage.after_evaluation(curriculum, 2.0, 0.9) == Stage(1)


def test_thresholds_and_rates_may_differ_between_lengths() -> None:
    curriculum = Curriculum((2, 4, 8), below=(0.5, 0.1, 0.1), rates=(1.0, 0.5, 0.25))
    assert Stage(0).after_evaluation(curriculum, 1.0, 0.4) == Stage(1)
    assert Stage(1).after_evaluation(curriculum, 1.0, 0.4).index == 1
    assert [Stage(i).rate(curriculum) for i in range(3)] == [1.0, 0.5, 0.25]
    assert Stage(2).rate(Curriculum((2, 4, 8), below=(0.1,), rates=(0.5,))) == 0.5
    with pytest.raises(ValueError, match="one for each of 3 stages"):
        Curriculum((2, 4, 8), below=(0.5, 0.1))
