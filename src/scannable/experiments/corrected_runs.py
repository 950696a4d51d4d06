"""What `scannable reproduce corrected` trains: one small language model and one that tracks states, each as it should
be and with one switch at a time turned back.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from scannable.experiments.as_printed_config import AsPrintedConfig
from scannable.experiments.profile import Profile
from scannable.recipes.aids import GrowingStateNoise
from scannable.tasks import GroupTask
from scannable.tasks.text import TextTask
from scannable.training.recipe import Curriculum, Evaluation, Optimizer, Recipe

RIGHT = "right"
TEXT_SWITCHES: dict[str, dict[str, Any]] = {
    RIGHT: {},
    "causal": {"agg_causal": True},
    "literal": {"literal_identity": True},
    "leaking": {"prefix_of": "own"},
    "late": {"prefix_of": "late"},
    "absolute": {"positions": "none", "sinusoids": False},
    "init": {"init_std": 0.02},
}
"""What each run of the language model changes."""
STATE_SWITCHES: dict[str, dict[str, Any]] = {
    RIGHT: {},
    "literal": {"literal_identity": True},
    "late": {"prefix_of": "late"},
    "absolute": {"positions": "none"},
    "init": {"init_std": 0.02},
    "swapped": {"tree": "swapped"},
    "forgetful": {"tree": "forgetful"},
}
"""And of the one that tracks states. At c = 1 a causal Agg is a bidirectional one, and nothing of the future is in a
chunk that Inf reads anyway: neither has a run.
"""


@dataclass(frozen=True)
class Sizes:
    """What a profile scales."""

    width: int
    chunk_length: int
    context: int
    longer: int
    text_steps: int
    state_steps: int
    lengths: tuple[int, ...]
    """Of state tracking, in training."""
    beyond: tuple[int, ...]
    seeds: tuple[int, ...]
    data: str = "stdlib"


SIZES: dict[Profile, Sizes] = {
    "smoke": Sizes(16, 8, 32, 64, 4, 4, (4, 8), (16,), (0,)),
    "laptop": Sizes(64, 32, 256, 1024, 300, 1200, (4, 8, 16), (64, 256), (0, 1)),
    "paper": Sizes(256, 64, 512, 2048, 5000, 4000, (4, 8, 16), (64, 256, 1024), (0, 1, 2)),
}


def text_recipe(use: Sizes, data: str | None, tokenizer: str | None) -> Recipe[AsPrintedConfig, Any]:
    """Bytes of Python's standard library, unless another text is given."""
    task = TextTask(data or use.data, tokenizer or "bytes")
    model = AsPrintedConfig(
        task.vocab_size,
        use.width,
        2,
        chunk_length=use.chunk_length,
        agg_layers=1,
        inf_layers=2,
        tie_weights=True,
        sinusoids=True,
    )
    return Recipe(
        model,
        task,
        steps=use.text_steps,
        batch_tokens=8 * use.context,
        optimizer=Optimizer(8e-3, weight_decay=0.1, warmup=min(100, use.text_steps // 4)),
        curriculum=Curriculum((use.context,)),
        evaluation=Evaluation(every=max(2, use.text_steps // 3), samples=32),
    )


def state_recipe(use: Sizes) -> Recipe[AsPrintedConfig, Any]:
    """The demo's recipe with S3, the smallest group whose order of operands matters."""
    model = AsPrintedConfig(
        6, use.width, 1, chunk_length=1, agg_layers=1, inf_layers=1, state_noise=0.5, tie_weights=True
    )
    return Recipe(
        model,
        GroupTask("S3"),
        steps=use.state_steps,
        batch_tokens=1024,
        optimizer=Optimizer(2e-3, weight_decay=0.0, warmup=min(50, use.state_steps // 4), schedule="constant"),
        # No length before the one before it is learned: what cannot be learned stays where it is.
        curriculum=Curriculum(use.lengths, below=(0.02,)),
        evaluation=Evaluation(every=max(2, use.state_steps // 8), lengths=use.beyond),
        ema=0.98,
        callbacks=(GrowingStateNoise(over=0.5),),
    )


def recipes(use: Sizes, data: str | None = None, tokenizer: str | None = None) -> dict[str, Recipe[Any, Any]]:
    """All runs, by task, switch and seed."""
    text, states = text_recipe(use, data, tokenizer), state_recipe(use)
    found: dict[str, Recipe[Any, Any]] = {}
    for seed in use.seeds:
        runs = _runs("text", text, TEXT_SWITCHES, use.longer, seed)
        # Only positions have anything to do with a length that was not trained.
        for name in (RIGHT, "absolute"):
            run = runs[f"text-{name}-{seed}"]
            runs[f"text-{name}-{seed}"] = replace(run, evaluation=replace(run.evaluation, lengths=(use.longer,)))
        found |= runs
        found |= _runs("states", states, STATE_SWITCHES, use.beyond[-1], seed)
    return found


def _runs(
    task: str, recipe: Recipe[Any, Any], switches: Mapping[str, dict[str, Any]], longest: int, seed: int
) -> dict[str, Recipe[Any, Any]]:
    runs: dict[str, Recipe[Any, Any]] = {}
    for name, changed in switches.items():
        # As many positions as the longest test has; those beyond the training length stay as they start.
        more = {"absolute": longest} if name == "absolute" else {}
        runs[f"{task}-{name}-{seed}"] = replace(recipe, seed=seed, model=replace(recipe.model, **changed, **more))
    return runs
