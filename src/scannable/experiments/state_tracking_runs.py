"""State tracking: which models are trained on what, in the order of how much depends on them."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any, get_args

from scannable.experiments.choice import ADAMW, Chosen
from scannable.experiments.laboratory import at_rate
from scannable.experiments.profile import Profile
from scannable.models.layer_options import (
    AttentionOptions,
    DeltaNetOptions,
    DeltaProductOptions,
    LayerOptions,
    LSTMOptions,
)
from scannable.models.lm_config import GPT2_INIT_STD, LMConfig
from scannable.models.transformer_psm_config import TransformerPSMConfig
from scannable.recipes.aids import GrowingStateNoise
from scannable.recipes.seeds import for_trials, with_seed
from scannable.recipes.state_tracking import TEST_LENGTHS, Aid, helped, shared
from scannable.tasks import GroupTask
from scannable.training.recipe import Curriculum, Evaluation, Optimizer, Recipe

HELPED, PSM = "psm-helped", "psm-plain"
GPT2, WITHOUT_POSITIONS, MAMBA = "gpt2", "gpt2-no-positions", "mamba"
LSTM, DELTA_PRODUCT, DELTA_NET, RWKV7 = "lstm", "deltaproduct", "deltanet", "rwkv7"
NOISY_LSTM = "lstm-noise"
TITLES = {
    HELPED: "Transformer-PSM, helped",
    PSM: "Transformer-PSM, plain",
    LSTM: "LSTM",
    NOISY_LSTM: "LSTM, noise on its states",
    DELTA_PRODUCT: "DeltaProduct, 4 reflections a token",
    DELTA_NET: "DeltaNet, negative eigenvalues",
    RWKV7: "RWKV-7",
    MAMBA: "Mamba",
    GPT2: "GPT-2",
    WITHOUT_POSITIONS: "GPT-2 without positions",
}
ELEMENTS = 120
WITHOUT: dict[Aid, str] = {aid: f"psm-without-{aid}" for aid in get_args(Aid)}
MANY = 50_000
"""Words of a length, at least. Splits share none, so that of few words those of training are learned by heart, and the
others stay unknown for ever: with 4 generators the helped Transformer-PSM spent half of its steps so at length 3."""
LATER, LESS = GrowingStateNoise(over=0.3, start=0.4), 0.5
"""Noise for words over generators. Inf, from which Agg starts, has met the products of two generators and no others, so
that Agg has more to learn, and learns it from afar."""
EARLIER, LSTM_NOISE = GrowingStateNoise(over=0.35), 0.35
"""Noise for the LSTM, chosen in trials by the validation error; with two of three seeds it does not learn 18."""
FURTHER = (LSTM, DELTA_PRODUCT)
"""Opponents that are known to track states: longer training lengths, and words over generators."""
DIRECT = (DELTA_PRODUCT,)
"""Opponents that the curriculum may hold up: once more without one, as others train them."""


@dataclass(frozen=True)
class Setting:
    """One profile."""

    recipe: Recipe[Any, Any]
    """What all models have, but for the model, the learning rate and the optimizer."""
    opponents: Mapping[str, LMConfig]
    """In the order in which they are trained."""
    rates: Mapping[str, tuple[float, ...]]
    """Of the opponents; the best one is trained to the end."""
    sweep_steps: int
    helped_seeds: tuple[int, ...]
    plain_seeds: tuple[int, ...]
    opponent_seed: int
    noisy_seeds: tuple[int, ...]
    """Of the LSTM with noise, one seed of which goes furthest of the opponents."""
    longer: tuple[int, ...]
    """Lengths of the curriculum of those that are trained longer than the others."""
    generators: tuple[int, ...]
    """Numbers of generators in the protocol of others."""
    generator_seed: int
    generator_lengths: tuple[int, ...]
    """Of its curriculum, for as many generators as make MANY words of the length."""
    generator_tests: tuple[int, ...]
    readings: tuple[tuple[int, int], ...]
    """Tokens and rows that the helped models read in pieces; the longest is for the first seed alone."""


def setting(profile: Profile) -> Setting:
    """What each profile trains."""
    recipe = for_trials(paper() if profile == "paper" else smoke() if profile == "smoke" else shared())
    opponents = paper_opponents() if profile == "paper" else small_opponents(recipe)
    attention, others = ((3e-5, 1e-4, 3e-4), (1e-4, 3e-4, 1e-3)) if profile == "paper" else (
        (3e-4, 1e-3, 3e-3),
        (1e-3, 3e-3, 1e-2),
    )  # fmt: skip
    smoky = profile == "smoke"
    return Setting(
        recipe,
        opponents,
        {name: attention if name in (GPT2, WITHOUT_POSITIONS) else others for name in opponents},
        sweep_steps=4 if smoky else 600 if profile == "laptop" else 3 * 20 * recipe.evaluation.every,
        helped_seeds=(0, 1) if smoky else (0, 1, 2, 3, 4),
        plain_seeds=(0,) if smoky else (0, 1, 2),
        opponent_seed=0,
        noisy_seeds=(0, 1) if smoky else (0, 1, 2),
        longer=(3, 8) if smoky else (3, 4, 6, 8, 12, 18, 32, 64, 128),
        generators=(4,) if smoky else (4, 8, 32),
        # Those of the first seed were used up: runs with more noise, on which the choice was made, were tested on them.
        generator_seed=1,
        generator_lengths=(4, 6) if smoky else (3, 4, 6, 8, 12, 18, 28, 40),
        generator_tests=(12,) if smoky else (40, 64, 96, 128, 192, 256),
        readings=((300, 2), (600, 1)) if smoky else ((1_000_000, 4), (10_000_000, 1)),
    )


def smoke() -> Recipe[TransformerPSMConfig, GroupTask]:
    """The laptop's, smaller still."""
    whole = shared()
    return replace(
        whole,
        model=replace(whole.model, width=16),
        steps=20,
        batch_tokens=128,
        optimizer=replace(whole.optimizer, warmup=10),
        curriculum=replace(whole.curriculum, steps=3),
        evaluation=Evaluation(every=20, samples=8, lengths=(8, 18, 32)),
        ema=0.5,
        checkpoint_every=20,
    )


def paper() -> Recipe[TransformerPSMConfig, GroupTask]:
    """20 epochs of 100,000 sequences for each length, at most; patience of 3 epochs."""
    epoch = 100_000 // 32
    return Recipe(
        TransformerPSMConfig(ELEMENTS, width=768, chunk_length=1, agg_layers=1, inf_layers=1, heads=1, dropout=0.1),
        GroupTask("S5"),
        steps=15 * 20 * epoch,
        batch_samples=32,
        optimizer=Optimizer(1e-4, (0.9, 0.999), weight_decay=0.01, schedule="constant", warmup=0),
        curriculum=Curriculum(tuple(range(4, 19)), steps=20 * epoch, patience=3, fresh_optimizer=True),
        evaluation=Evaluation(every=epoch, samples=3000, lengths=TEST_LENGTHS, patience=3),
        checkpoint_every=epoch,
    )


def small_opponents(recipe: Recipe[Any, Any]) -> dict[str, LMConfig]:
    """As wide as the Transformer-PSM, with about as many parameters; answers share their vectors with tokens, too."""
    width, longest = recipe.model.width, recipe.evaluation.lengths[-1]

    def stack(*layers: str | LayerOptions) -> LMConfig:
        return LMConfig(ELEMENTS, layers, width, tie_weights=True)

    # Like those of Transformer-PSM its weights start with the fan-in: 0.02 is for widths of 768 and more.
    gpt2 = replace(stack(*("attention",) * 4), norm="layer", positions=longest, init_std=width**-0.5)
    return {
        LSTM: stack("lstm", "lstm"),
        # Four reflections make any permutation of five things: one layer is enough.
        DELTA_PRODUCT: stack(DeltaProductOptions(steps_per_token=4, negative_eigenvalues=True)),
        MAMBA: stack("mamba", "mamba"),
        GPT2: gpt2,
        WITHOUT_POSITIONS: without_positions(gpt2),
        DELTA_NET: stack(*(DeltaNetOptions(negative_eigenvalues=True),) * 2),
        RWKV7: stack("rwkv7", "rwkv7"),
    }


def paper_opponents() -> dict[str, LMConfig]:
    """The paper's GPT-2 and Mamba, and opponents of GPT-2's width."""
    gpt2 = LMConfig(
        ELEMENTS,
        ("attention",) * 12,
        width=768,
        heads=12,
        norm="layer",
        positions=TEST_LENGTHS[-1],
        tie_weights=True,
        dropout=0.1,
        init_std=GPT2_INIT_STD,
    )

    def stack(*layers: str | LayerOptions) -> LMConfig:
        return LMConfig(ELEMENTS, layers, 768, heads=12, tie_weights=True, dropout=0.1)

    return {
        LSTM: stack("lstm", "lstm"),
        DELTA_PRODUCT: stack(*(DeltaProductOptions(steps_per_token=4, negative_eigenvalues=True),) * 2),
        MAMBA: LMConfig(ELEMENTS, ("mamba",) * 48, width=1024, tie_weights=True, dropout=0.1),
        GPT2: gpt2,
        WITHOUT_POSITIONS: without_positions(gpt2),
        DELTA_NET: stack(*(DeltaNetOptions(negative_eigenvalues=True),) * 12),
        RWKV7: stack(*("rwkv7",) * 12),
    }


def without_positions(gpt2: LMConfig) -> LMConfig:
    """The same with nothing but the causal mask to tell places apart."""
    return replace(gpt2, positions=0, layers=tuple(AttentionOptions(positions="none") for _ in gpt2.layers))


def swept(use: Setting) -> tuple[dict[str, Callable[[float], Recipe[Any, Any]]], dict[str, tuple[float, ...]]]:
    """Short runs of every opponent as functions of its learning rate, and the rates; where Transformer-PSM has Muon,
    with AdamW too.
    """
    whole = use.recipe
    recipe = replace(whole, steps=use.sweep_steps, evaluation=replace(whole.evaluation, lengths=()))
    ways = (None,) if whole.optimizer.algorithm == ADAMW else (None, ADAMW)
    makers, rates = dict[str, Callable[[float], Recipe[Any, Any]]](), dict[str, tuple[float, ...]]()
    for name, model in use.opponents.items():
        for way in ways:
            label = f"{name}-{way}" if way else name
            makers[label], rates[label] = at_rate(recipe, model, way), use.rates[name]
    return makers, rates


def opponent(use: Setting, name: str, chosen: Chosen) -> Recipe[Any, Any]:
    """An opponent under the recipe of Transformer-PSM, with the learning rate and the optimizer that it learns best
    with.
    """
    return at_rate(use.recipe, use.opponents[name], chosen.algorithm)(chosen.rate)


def psm_recipes(use: Setting) -> dict[str, Recipe[Any, Any]]:
    """Transformer-PSM, helped and plain."""
    many = {f"{HELPED}-{seed}": with_seed(helped(use.recipe), seed) for seed in use.helped_seeds}
    return many | {f"{PSM}-{seed}": with_seed(use.recipe, seed) for seed in use.plain_seeds}


def ablations(use: Setting) -> dict[str, Recipe[Any, Any]]:
    """The helped model without one of its aids, the first seed."""
    seed = use.helped_seeds[0]
    return {f"{name}-{seed}": with_seed(helped(use.recipe, without=aid), seed) for aid, name in WITHOUT.items()}


def opponent_recipes(use: Setting, best: Mapping[str, Chosen]) -> dict[str, Recipe[Any, Any]]:
    """The opponents whose rate is known."""
    seed = use.opponent_seed
    return {
        f"{name}-{seed}": with_seed(opponent(use, name, best[name]), seed) for name in use.opponents if name in best
    }


def noisy_recipes(use: Setting, best: Mapping[str, Chosen], seeds: tuple[int, ...]) -> dict[str, Recipe[Any, Any]]:
    """The LSTM with that one of the aids which it can have, at the rate it has without."""
    if LSTM not in best:
        return {}
    whole = opponent(use, LSTM, best[LSTM])
    layers = tuple(LSTMOptions(state_noise=LSTM_NOISE) for _ in whole.model.layers)
    noisy = replace(whole, model=replace(whole.model, layers=layers), callbacks=(EARLIER,))
    return {f"{NOISY_LSTM}-{seed}": with_seed(noisy, seed) for seed in seeds}


def longer_name(use: Setting, name: str) -> str:
    return f"{name}-to-{use.longer[-1]}"


def longer_recipes(use: Setting, best: Mapping[str, Chosen]) -> dict[str, Recipe[Any, Any]]:
    """Opponents that are trained at lengths where others report them, with as many tokens as before."""
    usual = use.recipe.curriculum
    curriculum = replace(usual, lengths=use.longer, below=usual.below[:1])
    return _with_curriculum(use, best, {longer_name(use, name): name for name in FURTHER}, curriculum)


def direct_name(use: Setting, name: str) -> str:
    return f"{name}-at-{use.longer[-1]}"


def direct_recipes(use: Setting, best: Mapping[str, Chosen]) -> dict[str, Recipe[Any, Any]]:
    """Opponents that are trained at the longest of these lengths from the start, with as many steps as before."""
    return _with_curriculum(use, best, {direct_name(use, name): name for name in DIRECT}, Curriculum(use.longer[-1:]))


def _with_curriculum(
    use: Setting, best: Mapping[str, Chosen], names: Mapping[str, str], curriculum: Curriculum
) -> dict[str, Recipe[Any, Any]]:
    """Some opponents, by new names, with lengths of their own."""
    seed = use.opponent_seed
    return {
        f"{new}-{seed}": with_seed(replace(opponent(use, name, best[name]), curriculum=curriculum), seed)
        for new, name in names.items()
        if name in best
    }


def generators_name(name: str, count: int) -> str:
    return f"{name}-{count}-generators"


def generator_lengths(use: Setting, count: int) -> tuple[int, ...]:
    """Of the curriculum over so many generators: those that MANY words have, or else the longest alone."""
    return tuple(n for n in use.generator_lengths if count**n >= MANY) or use.generator_lengths[-1:]


def generator_recipes(use: Setting, best: Mapping[str, Chosen]) -> dict[str, Recipe[Any, Any]]:
    """In the protocol of others: words over a few generators, each model at the rate it has on all elements."""
    seed = use.generator_seed
    models = {HELPED: use.recipe} | {name: opponent(use, name, best[name]) for name in FURTHER if name in best}
    made: dict[str, Recipe[Any, Any]] = {}
    for count in use.generators:
        lengths = generator_lengths(use, count)
        for name, whole in models.items():
            recipe = replace(
                whole,
                task=replace(whole.task, generators=count),
                curriculum=replace(whole.curriculum, lengths=lengths, below=whole.curriculum.below[:1]),
                evaluation=replace(whole.evaluation, lengths=use.generator_tests),
            )
            recipe = helped(recipe, noise=LATER, size=LESS) if name == HELPED else recipe
            made[f"{generators_name(name, count)}-{seed}"] = with_seed(recipe, seed)
    return made


def further_names(use: Setting, name: str) -> list[str]:
    """The runs of an opponent beside those of the first table."""
    found: list[str] = []
    if name == LSTM:
        found += [f"{NOISY_LSTM}-{seed}" for seed in use.noisy_seeds]
    if name in FURTHER:
        found.append(f"{longer_name(use, name)}-{use.opponent_seed}")
        found += [f"{generators_name(name, count)}-{use.generator_seed}" for count in use.generators]
    if name in DIRECT:
        found.append(f"{direct_name(use, name)}-{use.opponent_seed}")
    return found
