"""Associative recall: the larger Transformer-PSM of `scannable reproduce mqar`."""

from scannable.models.transformer_psm_config import TransformerPSMConfig
from scannable.recipes.catalogue import recipe
from scannable.tasks import MQARTask
from scannable.training.recipe import Curriculum, Evaluation, Optimizer, Recipe

LENGTHS = (32, 64, 128)


@recipe
def mqar() -> Recipe[TransformerPSMConfig, MQARTask]:
    """Multi-query associative recall, 8 pairs in up to 128 tokens, chunks of 16, with the projecting Agg."""
    return Recipe(
        # What makes small models find the way from a key to its value within a thousand steps: answers are tokens like
        # those that are read, and the token before is found in the same way everywhere.
        TransformerPSMConfig(
            64,
            width=64,
            chunk_length=16,
            agg_layers=2,
            inf_layers=2,
            heads=1,
            compress="projection",
            tie_weights=True,
            sinusoids=True,
        ),
        MQARTask(vocab_size=64),
        steps=2000,
        batch_tokens=2048,
        optimizer=Optimizer(2e-3, weight_decay=0.01, schedule="late"),
        # Each length until it is learned, or for a while; then all of them, as often one as another.
        curriculum=Curriculum(LENGTHS, below=(0.05,), steps=600, revisit=2 / 3),
        evaluation=Evaluation(every=100, samples=512, lengths=LENGTHS, stop_below=1e-4),
        checkpoint_every=500,
    )
