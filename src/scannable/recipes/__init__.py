"""Recipes: functions that return a whole configuration, to be run as they are or changed field by field."""

from collections.abc import Callable
from typing import Any

from scannable.models.lm_config import ZooConfig
from scannable.models.transformer_psm_config import TransformerPSMConfig
from scannable.storage.configuration import ConfigurationError, nearest
from scannable.tasks import GroupTask, MQARTask
from scannable.tasks.text import TextTask
from scannable.training.recipe import Curriculum, Evaluation, Optimizer, Recipe

RECIPES: dict[str, Callable[[], Recipe[Any, Any]]] = {}


def recipe(function: Callable[[], Recipe[Any, Any]]) -> Callable[[], Recipe[Any, Any]]:
    """Put a recipe on the list, under its name with dashes."""
    RECIPES[function.__name__.replace("_", "-")] = function
    return function


def recipe_named(name: str) -> Recipe[Any, Any]:
    """The recipe of that name."""
    if name not in RECIPES:
        raise ConfigurationError(f"there is no recipe {name!r}{nearest(name, RECIPES)}")
    return RECIPES[name]()


@recipe
def demo() -> Recipe[TransformerPSMConfig, GroupTask]:
    """Sums modulo five with a tiny Transformer-PSM, c = 1: learned in about a minute on one core."""
    return Recipe(
        TransformerPSMConfig(5, width=64, chunk_length=1, agg_layers=1, inf_layers=1, heads=1, state_noise=0.5),
        GroupTask("Z5"),
        steps=800,
        batch_tokens=1024,
        optimizer=Optimizer(learning_rate=2e-3, weight_decay=0.0, warmup=50, schedule="constant"),
        curriculum=Curriculum((4, 8, 16), below=(0.02,)),
        evaluation=Evaluation(every=100, lengths=(32, 64)),
        ema=0.98,
    )


@recipe
def s5() -> Recipe[TransformerPSMConfig, GroupTask]:
    """The paper's state tracking over S5 at a small width, with all that helps: less than an hour of one core."""
    return Recipe(
        TransformerPSMConfig(
            120,
            width=128,
            chunk_length=1,
            agg_layers=1,
            inf_layers=1,
            heads=1,
            tie_weights=True,
            agg_from_inf=True,
            unit_states=True,
            state_noise=0.6,
            state_noise_over=1.0,
        ),
        GroupTask("S5"),
        steps=20_000,
        batch_tokens=1024,
        optimizer=Optimizer(schedule="late", final=0.02),
        # Length 3 twice: first until Inf can multiply two elements, then with an Agg that starts from it.
        curriculum=Curriculum(
            (3, 3, 4, 6, 8, 12, 18), below=(0.34, 0.05, 0.05, 0.05, 0.05, 0.05, 0.05), steps=5000, revisit=0.1
        ),
        evaluation=Evaluation(every=250, lengths=(32, 64, 128, 180, 256, 512, 1024)),
        ema=0.995,
    )


@recipe
def mqar() -> Recipe[TransformerPSMConfig, MQARTask]:
    """Multi-query associative recall, 8 pairs in 64 tokens of a vocabulary of 64, with the projecting Agg."""
    return Recipe(
        TransformerPSMConfig(
            64,
            width=64,
            chunk_length=32,
            agg_layers=2,
            inf_layers=2,
            heads=1,
            compress="projection",
            tie_weights=True,
            sinusoids=True,
        ),
        MQARTask(vocab_size=64),
        steps=1500,
        batch_tokens=4096,
        optimizer=Optimizer(2e-3, schedule="late"),
        curriculum=Curriculum((64,)),
        evaluation=Evaluation(every=100, stop_below=0.001),
    )


@recipe
def stdlib() -> Recipe[TransformerPSMConfig, TextTask]:
    """Language modelling, byte by byte, over the source of Python's standard library."""
    return Recipe(
        TransformerPSMConfig(257, width=128, chunk_length=64, agg_layers=1, inf_layers=2, heads=4),
        TextTask("stdlib"),
        steps=2000,
        batch_tokens=4096,
        curriculum=Curriculum((512,)),
        evaluation=Evaluation(every=250, samples=64),
    )


@recipe
def stdlib_mamba() -> Recipe[ZooConfig, TextTask]:
    """The same with a Mamba, somewhat smaller."""
    return Recipe(
        ZooConfig(257, "mamba", layers=4, width=128, tie_weights=True),
        TextTask("stdlib"),
        steps=2000,
        batch_tokens=4096,
        curriculum=Curriculum((512,)),
        evaluation=Evaluation(every=250, samples=64),
    )
