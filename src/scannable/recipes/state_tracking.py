"""State tracking in S5: the Transformer-PSMs of `scannable reproduce s5`."""

from dataclasses import replace
from typing import Literal

from scannable.models.transformer_psm_config import TransformerPSMConfig
from scannable.recipes.aids import AggFromInf, GrowingStateNoise
from scannable.recipes.catalogue import recipe
from scannable.tasks import GroupTask
from scannable.training.recipe import Curriculum, Evaluation, Optimizer, Recipe

TEST_LENGTHS = (8, 12, 18, 24, 32, 48, 64, 96, 128, 180, 256, 512, 1024, 2048, 4096)


@recipe
def s5() -> Recipe[TransformerPSMConfig, GroupTask]:
    """The paper's state tracking over S5 at a small width, with all that helps: a quarter of an hour of one core."""
    return helped(shared())


@recipe
def s5_plain() -> Recipe[TransformerPSMConfig, GroupTask]:
    """The same without what helps: lengths 3 to 18 one after the other, and no more."""
    return shared()


def shared() -> Recipe[TransformerPSMConfig, GroupTask]:
    """What all models of the experiment have in common, with the plain Transformer-PSM."""
    return Recipe(
        # Answers are elements like those that are read: what Agg returns can be what it reads.
        TransformerPSMConfig(120, width=128, chunk_length=1, agg_layers=1, inf_layers=1, heads=1, tie_weights=True),
        # Seed 0 of the task belongs to trials (`recipes.seeds`).
        GroupTask("S5", seed=1),
        steps=10_000,
        batch_tokens=1024,
        # With Muon the table of products is learned in half the steps that AdamW needs, and by every seed tried; at
        # twice this rate one seed never began.
        optimizer=Optimizer(3e-3, weight_decay=0.01, schedule="late", final=0.02, algorithm="muon"),
        curriculum=Curriculum((3, 4, 6, 8, 12, 18), below=(0.05,), steps=2500, revisit=0.1),
        evaluation=Evaluation(every=250, samples=256, lengths=TEST_LENGTHS),
        ema=0.995,
        checkpoint_every=500,
    )


Aid = Literal["unit-states", "noise", "agg-from-inf"]
"""What `helped` adds, one by one."""


NOISE = GrowingStateNoise(over=0.5)
"""Noise that grows to the end of the run, to 0.6, makes models that are right to 4,096 tokens and err soon after: what
is to hold over a million has to be trained for a while at its full noise."""


def helped(
    recipe: Recipe[TransformerPSMConfig, GroupTask],
    *,
    without: Aid | None = None,
    noise: GrowingStateNoise = NOISE,
    size: float = 1.0,
) -> Recipe[TransformerPSMConfig, GroupTask]:
    """The same with an Agg that starts from Inf's weights, and states of unit size with noise on them.

    A first stage ends when the second position is learned, at which no Agg takes part; Inf is copied after it. Where
    noise on the states comes from: `nn/state_noise.py`.

    Args:
        without: leave this aid out, and all else as it is.
        noise: when it grows.
        size: to how much of the size of the states.
    """
    curriculum = recipe.curriculum
    start = () if without == "agg-from-inf" else (AggFromInf(),)
    noises = () if without == "noise" else (noise,)
    return replace(
        recipe,
        model=replace(recipe.model, unit_states=without != "unit-states", state_noise=size if noises else 0.0),
        callbacks=(*start, *noises),
        curriculum=replace(
            curriculum,
            lengths=(curriculum.lengths[0], *curriculum.lengths),
            below=(1.01 - 2 / curriculum.lengths[0], *(0.05 for _ in curriculum.lengths)),
            # Inf alone takes long; Agg, which starts from it, does not.
            steps=2 * (curriculum.steps or recipe.steps),
        ),
        # Places on the way to look at afterwards.
        keep_every=recipe.checkpoint_every * max(1, recipe.steps // recipe.checkpoint_every // 20),
    )
