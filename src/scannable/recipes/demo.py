"""What `scannable demo` trains."""

from scannable.models.transformer_psm_config import TransformerPSMConfig
from scannable.recipes.aids import GrowingStateNoise
from scannable.recipes.catalogue import recipe
from scannable.tasks import GroupTask
from scannable.training.recipe import Curriculum, Evaluation, Optimizer, Recipe


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
        callbacks=(GrowingStateNoise(over=0.5),),
    )
