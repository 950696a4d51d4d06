"""Associative recall: a Transformer-PSM of `scannable reproduce mqar`."""

from typing import Any

from scannable.models.transformer_psm_config import TransformerPSMConfig
from scannable.recipes.catalogue import recipe
from scannable.tasks import MQARTask
from scannable.training.recipe import Curriculum, Evaluation, Optimizer, Recipe

LENGTHS = (64, 128, 256)
VOCABULARY, PAIRS = 64, 16
BLOCKS: dict[str, Any] = {"positions": "rotary", "norm": "rms", "qk_norm": True, "convolution": 4}
"""Most recurrent rows have a short convolution, by which a value finds the key before it; here attention has it too."""


@recipe
def mqar() -> Recipe[TransformerPSMConfig, MQARTask]:
    """Multi-query associative recall, 16 pairs in up to 256 tokens, chunks of 16, with the projecting Agg."""
    return Recipe(
        TransformerPSMConfig(
            VOCABULARY,
            width=64,
            heads=1,
            chunk_length=16,
            agg_layers=1,
            inf_layers=2,
            compress="projection",
            tie_weights=True,
            **BLOCKS,
        ),
        # Seed 0 of the task belongs to trials (`recipes.seeds`).
        MQARTask(VOCABULARY, PAIRS, seed=1),
        steps=2500,
        batch_tokens=2048,
        optimizer=Optimizer(2e-3, weight_decay=0.01, schedule="late"),
        # Each length until it is learned, or for a while; then all of them, as often one as another.
        curriculum=Curriculum(LENGTHS, below=(0.05,), steps=1000, revisit=2 / 3),
        evaluation=Evaluation(every=100, samples=128, lengths=LENGTHS, stop_below=1e-4),
        checkpoint_every=500,
    )
