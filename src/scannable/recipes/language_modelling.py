"""Language modelling over Python's standard library: three models of `scannable reproduce wikitext`."""

from typing import Any, TypeVar

from scannable.models.layer_options import PSMOptions
from scannable.models.lm_config import LMConfig
from scannable.models.transformer_psm_config import TransformerPSMConfig
from scannable.recipes.catalogue import recipe
from scannable.tasks.text import TextTask
from scannable.training.recipe import Curriculum, Evaluation, Optimizer, Recipe

M = TypeVar("M")
VOCABULARY = 1024
"""Tokens of a byte-level BPE: few enough that the embedding is not most of a small model."""
WIDTH, HEADS = 96, 3
BLOCKS: dict[str, Any] = {"positions": "rotary", "norm": "rms", "qk_norm": True, "convolution": 4}
"""Blocks that small models learn soon with, for Transformer-PSM and attention alike. The paper's have learned positions
and LayerNorm."""


@recipe
def stdlib() -> Recipe[TransformerPSMConfig, TextTask]:
    """Language modelling over the source of Python's standard library, a BPE of 1,024 tokens; chunks of 128."""
    # Of six layers one is in Agg, as in the paper, where it is one of twelve.
    model = TransformerPSMConfig(
        VOCABULARY, WIDTH, HEADS, chunk_length=128, agg_layers=1, inf_layers=5, tie_weights=True, **BLOCKS
    )
    return on_the_standard_library(model, 3.2e-2)


@recipe
def stdlib_mamba() -> Recipe[LMConfig, TextTask]:
    """The same with a Mamba of about as many parameters."""
    return on_the_standard_library(LMConfig(VOCABULARY, ("mamba",) * 9, WIDTH, HEADS, tie_weights=True), 1.6e-2)


@recipe
def stdlib_hybrid() -> Recipe[LMConfig, TextTask]:
    """The same with three layers of Transformer-PSM (c = 128, recent = 1, prefix as memory) among five of Mamba."""
    psm = PSMOptions(chunk_length=128, agg_layers=1, inf_layers=1, prefix="memory", recent=1, **BLOCKS)
    layers = (psm, "mamba", "mamba", psm, "mamba", "mamba", psm, "mamba")
    return on_the_standard_library(LMConfig(VOCABULARY, layers, WIDTH, HEADS, tie_weights=True), 1.6e-2)


def on_the_standard_library(model: M, rate: float) -> Recipe[M, TextTask]:
    """What all of them have, at the learning rate that a sweep gave each."""
    return Recipe(
        model,
        TextTask("stdlib", "bpe", VOCABULARY),
        steps=1000,
        batch_tokens=2048,
        optimizer=Optimizer(rate, weight_decay=0.1, algorithm="muon"),
        curriculum=Curriculum((512,)),
        evaluation=Evaluation(every=250, samples=64),
        checkpoint_every=250,
    )
