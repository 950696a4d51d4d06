"""What helps a Transformer-PSM with S5: three aids, each of which can be left out, and nothing else changes."""

from dataclasses import replace

import pytest

from scannable.recipes import s5, s5_plain
from scannable.recipes.aids import AggFromInf, GrowingStateNoise
from scannable.recipes.state_tracking import Aid, helped, shared

PLAIN = replace(s5_plain(), steps=9000, checkpoint_every=100)
ALL = helped(PLAIN)


def test_plain_is_what_all_models_have() -> None:
    assert s5_plain() == shared() and not shared().callbacks


def test_all_three_are_there() -> None:
    assert s5() == helped(shared())
    assert ALL.model == replace(PLAIN.model, unit_states=True, state_noise=1.0)
    assert ALL.callbacks == (AggFromInf(), GrowingStateNoise(over=0.5))
    assert (ALL.task, ALL.optimizer, ALL.steps) == (PLAIN.task, PLAIN.optimizer, PLAIN.steps)


def test_inf_alone_has_a_stage_that_ends_when_two_of_three_tokens_are_right() -> None:
    lengths = PLAIN.curriculum.lengths
    assert ALL.curriculum.lengths == (lengths[0], *lengths) and lengths[0] == 3
    # An error of one in three, and a little more; afterwards each length is learned.
    assert ALL.curriculum.below == pytest.approx((1 / 3 + 0.01, *(0.05 for _ in lengths)))
    assert ALL.curriculum.steps == 2 * 2500
    endless = replace(PLAIN, curriculum=replace(PLAIN.curriculum, steps=None))
    assert helped(endless).curriculum.steps == 2 * 9000


@pytest.mark.parametrize(("steps", "kept"), [(9000, 400), (500, 100), (2000, 100), (4100, 200)])
def test_about_twenty_checkpoints_are_kept(steps: int, kept: int) -> None:
    assert helped(replace(PLAIN, steps=steps)).keep_every == kept


@pytest.mark.parametrize("aid", ["unit-states", "noise", "agg-from-inf"])
def test_one_is_left_out_and_nothing_else(aid: Aid) -> None:
    without = helped(PLAIN, without=aid)
    back = {
        "unit-states": replace(without, model=replace(without.model, unit_states=True)),
        "noise": replace(
            without,
            model=replace(without.model, state_noise=1.0),
            callbacks=(*without.callbacks, GrowingStateNoise(over=0.5)),
        ),
        "agg-from-inf": replace(without, callbacks=(AggFromInf(), *without.callbacks)),
    }
    assert without != ALL and back[aid] == ALL
