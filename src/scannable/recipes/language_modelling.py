"""Language modelling over Python's standard library: two models of `scannable reproduce wikitext`.

Their learning rates are those that its sweep took.
"""

from typing import TypeVar

from scannable.models.lm_config import LMConfig
from scannable.models.transformer_psm_config import TransformerPSMConfig
from scannable.recipes.catalogue import recipe
from scannable.tasks.text import TextTask
from scannable.training.recipe import Curriculum, Evaluation, Optimizer, Recipe

M = TypeVar("M")
BYTES = 257
"""And the end of a document."""


@recipe
def stdlib() -> Recipe[TransformerPSMConfig, TextTask]:
    """Language modelling, byte by byte, over the source of Python's standard library; chunks of 128."""
    # Runs are short, and with sinusoids tokens find the one before them much sooner.
    model = TransformerPSMConfig(
        BYTES, 64, chunk_length=128, agg_layers=1, inf_layers=3, heads=2, tie_weights=True, sinusoids=True
    )
    return _on_the_standard_library(model, 1.6e-2)


@recipe
def stdlib_mamba() -> Recipe[LMConfig, TextTask]:
    """The same with a Mamba of about as many parameters."""
    return _on_the_standard_library(LMConfig(BYTES, ("mamba",) * 7, width=64, tie_weights=True), 8e-3)


def _on_the_standard_library(model: M, learning_rate: float) -> Recipe[M, TextTask]:
    return Recipe(
        model,
        TextTask("stdlib"),
        steps=2400,
        batch_tokens=2048,
        optimizer=Optimizer(learning_rate, weight_decay=0.1),
        curriculum=Curriculum((512,)),
        evaluation=Evaluation(every=400, samples=128),
        checkpoint_every=400,
    )
