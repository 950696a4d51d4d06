"""Associative recall: which models are trained, family by family, each at several sizes of its state."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from itertools import zip_longest
from typing import Any, Literal

from scannable.experiments.as_printed_config import as_printed
from scannable.experiments.laboratory import at_rate
from scannable.experiments.profile import Profile
from scannable.models.layer_options import AttentionOptions, ConvolvedMLPOptions, LayerOptions, Mamba2Options
from scannable.models.lm_config import GPT2_INIT_STD, LMConfig
from scannable.models.transformer_psm_config import TransformerPSMConfig
from scannable.recipes.recall import BLOCKS, mqar
from scannable.recipes.seeds import for_trials, with_seed
from scannable.tasks import MQARTask
from scannable.training.recipe import Curriculum, Evaluation, Optimizer, Recipe

Kind = Literal["psm", "switch", "attention", "recurrent"]
"""`switch`: a Transformer-PSM with a departure of PAPER.md undone, beside the one that has it."""

WIDER = ("deltanet", "gla")
"""Rows that recall well with small states, once more with states about as large as those of Transformer-PSM."""


@dataclass(frozen=True)
class Family:
    """Models that differ in the size of their state."""

    title: str
    kind: Kind
    models: Mapping[str, Any]
    """Configurations by name, those with smaller states first."""
    labels: Mapping[str, str]
    """What is different in each."""
    swept: str
    """The one whose learning rate these have: one of them, or of a family with the same blocks."""
    rates: tuple[float, ...]


@dataclass(frozen=True)
class Setting:
    """One profile."""

    recipe: Recipe[Any, Any]
    """On the samples of trials; of all models but for the model and the learning rate."""
    families: Mapping[str, Family]
    sweep_steps: int
    seeds: tuple[int, ...]
    shortest: tuple[str, ...] = ()
    """Models with the shortest chunks, which are trained on fewer pairs as well."""
    fewer: tuple[int, ...] = ()
    """How many: to see whether places in their states are what they lack."""

    @property
    def models(self) -> dict[str, Any]:
        """The configurations of all families, by name."""
        return {name: config for family in self.families.values() for name, config in family.models.items()}


def setting(profile: Profile) -> Setting:
    """What each profile trains."""
    if profile == "paper":
        whole = for_trials(paper())
        return Setting(whole, paper_families(whole), whole.steps, seeds=(0, 1, 2))
    recipe = for_trials(smoke() if profile == "smoke" else mqar())
    if profile == "smoke":
        families = small_families(recipe, chunks=(8, 16), widths=(8, 16), windows=(8,), full=(16,))
        return Setting(recipe, families, recipe.steps, seeds=(0,), shortest=("psm-projection-8",), fewer=(4,))
    families = small_families(
        recipe, chunks=(4, 8, 16, 32), widths=(16, 32, 64), windows=(8, 16, 32), full=(32, 64), wider=(128,)
    )
    shortest = ("psm-projection-4", "psm-projection-8")
    return Setting(recipe, families, sweep_steps=1000, seeds=(0, 1, 2), shortest=shortest, fewer=(4, 8))


def smoke() -> Recipe[TransformerPSMConfig, MQARTask]:
    """The laptop's, smaller still."""
    whole, lengths = mqar(), (32, 48)
    return replace(
        whole,
        model=replace(whole.model, width=16),
        task=replace(whole.task, pairs=8),
        steps=4,
        batch_tokens=128,
        optimizer=replace(whole.optimizer, warmup=2),
        curriculum=replace(whole.curriculum, lengths=lengths, steps=2),
        evaluation=replace(whole.evaluation, every=4, samples=8, lengths=lengths),
        checkpoint_every=4,
    )


def paper() -> Recipe[TransformerPSMConfig, MQARTask]:
    """The paper's."""
    lengths, epoch = (128, 256, 512), 100_000 // 32
    return Recipe(
        TransformerPSMConfig(8192, 256, 1, chunk_length=64, agg_layers=2, inf_layers=2, compress="projection"),
        MQARTask(8192),
        steps=64 * epoch,
        batch_samples=32,
        optimizer=Optimizer(1e-4, (0.9, 0.999), weight_decay=0.01, warmup=1000, final=0.0),
        curriculum=Curriculum(lengths, steps=10_000, revisit=2 / 3),
        evaluation=Evaluation(every=epoch, samples=3000, lengths=lengths, stop_below=1e-4),
        checkpoint_every=epoch,
    )


def psm_families(model: TransformerPSMConfig, chunks: tuple[int, ...], rates: tuple[float, ...]) -> dict[str, Family]:
    """Transformer-PSM at several chunk lengths, with both ways of compressing two chunks to one."""
    found: dict[str, Family] = {}
    swept = f"psm-projection-{chunks[len(chunks) // 2]}"
    for short, compress, title in (
        ("projection", "projection", "Transformer-PSM, projecting Agg"),
        ("right", "right_half", "Transformer-PSM, right half"),
    ):
        way: Any = compress
        names = {c: f"psm-{short}-{c}" for c in chunks}
        found[f"psm-{short}"] = Family(
            title,
            "psm",
            {name: replace(model, chunk_length=c, compress=way) for c, name in names.items()},
            {name: f"c = {c}" for c, name in names.items()},
            swept,
            rates,
        )
    return found


def small_families(
    recipe: Recipe[Any, Any], *, chunks: tuple[int, ...], widths: tuple[int, ...], windows: tuple[int, ...],
    full: tuple[int, ...], wider: tuple[int, ...] = (),
) -> dict[str, Family]:  # fmt: skip
    """Two layers each, one head, answers that share their vectors with tokens."""
    vocabulary, width = recipe.model.vocab_size, recipe.model.width
    short = BLOCKS["convolution"]
    # With this MLP a block is one of Transformer-PSM.
    attention = AttentionOptions(positions="rotary", qk_norm=True, convolution=short, with_mlp=False)
    mlp = ConvolvedMLPOptions(convolution=short)
    slow, fast = (1e-3, 2e-3, 4e-3), (4e-3, 8e-3, 1.6e-2)

    def stack(width: int, *layers: str | LayerOptions) -> LMConfig:
        return LMConfig(vocabulary, layers * 2, width, heads=1, tie_weights=True)

    found = psm_families(recipe.model, chunks, slow)
    projecting = found["psm-projection"]
    found["psm-random"] = Family(
        "Transformer-PSM, projecting Agg started at random",
        "switch",
        {"psm-random": as_printed(projecting.models[projecting.swept], random_projection=True)},
        {"psm-random": projecting.labels[projecting.swept]},
        projecting.swept,
        slow,
    )
    found["attention"] = Family(
        "full attention",
        "attention",
        {f"attention-{d}": stack(d, attention, mlp) for d in full},
        {f"attention-{d}": f"width {d}" for d in full},
        f"attention-{full[-1]}",
        slow,
    )
    found["window"] = Family(
        "sliding window",
        "attention",
        {f"window-{n}": stack(width, replace(attention, window=n), mlp) for n in windows},
        {f"window-{n}": f"window {n}" for n in windows},
        f"attention-{full[-1]}",
        slow,
    )
    # Rows without a short convolution of their own have this MLP in front of them, which brings some: a value must have
    # met its key before they take it in.
    rows: dict[str, tuple[str, tuple[str | LayerOptions, ...], tuple[float, ...]]] = {
        "gated_deltanet": ("Gated DeltaNet", ("gated_deltanet",), slow),
        "mamba2": ("Mamba-2", (Mamba2Options(state_size=32),), fast),
        "deltanet": ("DeltaNet", ("deltanet",), slow),
        "mamba": ("Mamba", ("mamba",), fast),
        "gla": ("GLA", (mlp, "gla"), slow),
        "log_linear": ("log-linear attention", (mlp, "log_linear"), slow),
    }
    for name, (title, layers, rates) in rows.items():
        names = {d: f"{name}-{d}" for d in (*widths, *(wider if name in WIDER else ()))}
        found[name] = Family(
            title,
            "recurrent",
            {names[d]: stack(d, *layers) for d in names},
            {names[d]: f"width {d}" for d in names},
            names[widths[len(widths) // 2]],
            rates,
        )
    return found


def paper_families(recipe: Recipe[Any, Any]) -> dict[str, Family]:
    """The paper's models: Transformer-PSM, windows as long as its chunks, Mamba, full attention."""
    model: TransformerPSMConfig = recipe.model
    chunks, context, rates = (32, 64), recipe.curriculum.lengths[-1], (1e-4, 3e-4, 1e-3)
    full = LMConfig(
        model.vocab_size, ("attention",) * 2, model.width, heads=1, norm="layer", positions=context,
        init_std=GPT2_INIT_STD,
    )  # fmt: skip
    windows = {f"window-{n}": replace(full, layers=(AttentionOptions(window=n),) * 4, init_std=None) for n in chunks}
    mamba = LMConfig(model.vocab_size, ("mamba",) * 2, width=model.width)
    width = f"width {model.width}"
    return {
        **psm_families(model, chunks, rates),
        "window": Family(
            "sliding window", "attention", windows, {f"window-{n}": f"window {n}" for n in chunks}, "window-64", rates
        ),
        "mamba": Family("Mamba", "recurrent", {"mamba-256": mamba}, {"mamba-256": width}, "mamba-256", rates),
        "attention": Family(
            "full attention", "attention", {"attention-256": full}, {"attention-256": width}, "attention-256", rates
        ),
    }


def swept(use: Setting) -> tuple[dict[str, Callable[[float], Recipe[Any, Any]]], dict[str, tuple[float, ...]]]:
    """The models that are swept, each as a function of its learning rate, and the rates."""
    short = replace(use.recipe, steps=use.sweep_steps)
    makers = {family.swept: at_rate(short, use.models[family.swept]) for family in use.families.values()}
    return makers, {family.swept: family.rates for family in use.families.values()}


def final_recipes(use: Setting, rates: Mapping[str, float], seeds: tuple[int, ...]) -> dict[str, Recipe[Any, Any]]:
    """The runs of the page, by name and seed, of the families whose rate is known; seeds in turn, and in each the
    largest state of every family first.
    """
    known = [[(family, name) for name in reversed(list(one.models))] for family, one in use.families.items()]
    in_turn = [one for of_a_size in zip_longest(*known) for one in of_a_size if one is not None]
    return {
        f"{name}-{seed}": with_seed(at_rate(use.recipe, use.models[name])(rates[family]), seed)
        for seed in seeds
        for family, name in in_turn
        if family in rates
    }


def fewer_name(name: str, pairs: int) -> str:
    return f"{name}-with-{pairs}-pairs"


def fewer_recipes(use: Setting, rates: Mapping[str, float]) -> dict[str, Recipe[Any, Any]]:
    """The shortest chunks on fewer pairs, with the rate that they have on all, the first seed."""
    family_of = {name: family for family, one in use.families.items() for name in one.models}
    seed = use.seeds[0]

    def on(name: str, pairs: int) -> Recipe[Any, Any]:
        whole = at_rate(use.recipe, use.models[name])(rates[family_of[name]])
        return with_seed(replace(whole, task=replace(whole.task, pairs=pairs)), seed)

    return {
        f"{fewer_name(name, pairs)}-{seed}": on(name, pairs)
        for name in use.shortest
        for pairs in use.fewer
        if family_of.get(name) in rates
    }
