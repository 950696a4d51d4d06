"""Language modelling: which models are trained, with which blocks, and in which order."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

from scannable.experiments.choice import ADAMW, Chosen
from scannable.experiments.laboratory import Laboratory
from scannable.experiments.language_profiles import LONGER, SIZES, Sizes, text_task
from scannable.experiments.profile import Profile
from scannable.models.layer_options import AttentionOptions, ConvolvedMLPOptions, PSMOptions
from scannable.models.lm_config import GPT2_INIT_STD, LMConfig
from scannable.models.transformer_psm_config import TransformerPSMConfig
from scannable.recipes.language_modelling import BLOCKS, stdlib
from scannable.training.recipe import Curriculum, Evaluation, Optimizer, Recipe

Family = Literal["modern", "paper"]
Part = Literal["modern", "further", "paper", "longer"]

GPT, MAMBA, HYBRID, PAPER_GPT2 = "gpt", "mamba", "hybrid", "paper-gpt2"
ALTERNATING = "alternating"
"""The hybrid with as many layers of Transformer-PSM as of Mamba."""
DEEP = "deep-hybrid"
"""The same with more layers of Mamba: about as many operations as GPT has."""
HYBRIDS = (HYBRID, ALTERNATING, DEEP)
WIDE_HYBRID = "wide-hybrid"
"""With about as many operations as GPT has over the longer window, where attention is most of them."""


@dataclass(frozen=True)
class Model:
    """One line of the page."""

    title: str
    config: Any
    family: Family
    part: Part
    rate_of: str
    """The model whose sweep gives it its learning rate."""
    context: int


def psm_name(chunk_length: int, family: Family = "modern") -> str:
    return f"psm-{chunk_length}" if family == "modern" else f"paper-psm-{chunk_length}"


def longer_name(name: str, use: Sizes) -> str:
    return f"{name}-at-{LONGER * use.context}"


def models(profile: Profile, vocab_size: int) -> dict[str, Model]:
    """All models, in the order in which they are trained; at the paper's size, its own blocks and Mamba alone."""
    use = SIZES[profile]
    modern, paper = _modern(use, vocab_size), _paper(profile, use, vocab_size)
    if profile == "paper":
        return paper | {MAMBA: modern[MAMBA]} | _longer(paper, use, (psm_name(use.chunks[-1], "paper"),))
    main = {name: model for name, model in modern.items() if model.part == "modern"}
    further = {name: model for name, model in modern.items() if name not in main}
    names = (psm_name(use.middle), GPT, ALTERNATING, WIDE_HYBRID)
    return main | further | paper | _longer(modern | {WIDE_HYBRID: _wide_hybrid(use, vocab_size)}, use, names)


def _modern(use: Sizes, vocab_size: int) -> dict[str, Model]:
    """Rotary positions, short convolutions, normed queries and keys, and Muon: what small models learn with."""
    d, h, n = use.width, use.heads, use.context
    psm = TransformerPSMConfig(vocab_size, d, h, agg_layers=1, inf_layers=use.layers - 1, tie_weights=True, **BLOCKS)
    middle = psm_name(use.middle)
    small, second = use.chunks[0], use.chunks[1]
    short = BLOCKS["convolution"]
    # Both together are a block of Transformer-PSM: what differs is the chunks.
    attention = AttentionOptions(positions="rotary", qk_norm=True, convolution=short, with_mlp=False)
    mlp = ConvolvedMLPOptions(convolution=short)
    layer = PSMOptions(chunk_length=second, agg_layers=1, inf_layers=1, prefix="memory", **BLOCKS)
    third, pairs = max(1, use.mamba_layers // 3), max(1, use.layers // 2)

    def stack(*layers: Any) -> LMConfig:
        return LMConfig(vocab_size, layers, d, h, tie_weights=True, dropout=use.dropout)

    def model(title: str, config: Any, rate_of: str, part: Part = "modern") -> Model:
        return Model(title, config, "modern", part, rate_of, n)

    def chunks(length: int) -> Model:
        return model(f"Transformer-PSM, c = {length}", replace(psm, chunk_length=length), middle)

    found = {psm_name(c): chunks(c) for c in use.chunks}
    found[GPT] = model(f"GPT, context {n}", stack(*(attention, mlp) * use.layers), GPT)
    found[HYBRID] = model(
        f"hybrid: Mamba x {third}, PSM with c = {second}, Mamba x {third}",
        stack(*("mamba",) * third, layer, *("mamba",) * third),
        HYBRID,
    )
    near = replace(layer, chunk_length=use.middle, recent=1)
    found[ALTERNATING] = model(
        f"hybrid: (PSM with c = {use.middle}, recent = 1, Mamba) x {pairs}",
        stack(*(near, "mamba") * pairs),
        ALTERNATING,
    )
    found[DEEP] = model(
        # All but the last of (PSM, Mamba, Mamba) over and over.
        f"hybrid: PSM x {pairs} with c = {use.middle}, recent = 1; Mamba x {2 * pairs - 1}",
        stack(*((near, "mamba", "mamba") * pairs)[:-1]),
        ALTERNATING,
        "further",
    )
    found[MAMBA] = model("Mamba", stack(*("mamba",) * use.mamba_layers), MAMBA)
    found[f"{psm_name(small)}-recent"] = model(
        f"Transformer-PSM, c = {small}, recent = 1", replace(psm, chunk_length=small, recent=1), middle, "further"
    )
    found[f"{psm_name(second)}-memory"] = model(
        f"Transformer-PSM, c = {second}, prefix as memory",
        replace(psm, chunk_length=second, prefix="memory"),
        middle,
        "further",
    )
    return found


def _wide_hybrid(use: Sizes, vocab_size: int) -> Model:
    """For the longer window, with the learning rate of the narrow one."""
    heads, chunk, pairs = use.heads + 1, use.chunks[-1], max(1, use.layers // 2)
    width = use.width // use.heads * heads
    layer = PSMOptions(chunk_length=chunk, agg_layers=1, inf_layers=1, prefix="memory", recent=1, **BLOCKS)
    config = LMConfig(vocab_size, ("mamba", layer) * pairs, width, heads, tie_weights=True, dropout=use.dropout)
    title = f"hybrid: (Mamba, PSM with c = {chunk}, recent = 1) x {pairs}, width {width}"
    return Model(title, config, "modern", "longer", HYBRID, use.context)


def _paper(profile: Profile, use: Sizes, vocab_size: int) -> dict[str, Model]:
    """The paper's blocks: learned positions, LayerNorm, AdamW."""
    # Runs on a laptop are short, and with sinusoids tokens find the one before them much sooner.
    sinusoids = profile != "paper"
    psm = TransformerPSMConfig(
        vocab_size,
        use.width,
        use.heads,
        agg_layers=1,
        inf_layers=use.layers - 1,
        tie_weights=True,
        dropout=use.dropout,
        sinusoids=sinusoids,
    )
    gpt2 = LMConfig(
        vocab_size,
        ("attention",) * use.layers,
        use.width,
        use.heads,
        norm="layer",
        positions=use.context,
        sinusoids=sinusoids,
        tie_weights=True,
        dropout=use.dropout,
        # Like all others here a narrow GPT-2 starts with the fan-in; its own 0.02 is for widths of 768 and more.
        init_std=GPT2_INIT_STD if use.width >= 768 else use.width**-0.5,
    )
    middle = psm_name(use.middle, "paper")
    found = {
        psm_name(c, "paper"): Model(
            f"Transformer-PSM, c = {c}", replace(psm, chunk_length=c), "paper", "paper", middle, use.context
        )
        for c in use.chunks
    }
    found[PAPER_GPT2] = Model(f"GPT-2, context {use.context}", gpt2, "paper", "paper", PAPER_GPT2, use.context)
    return found


def _longer(known: Mapping[str, Model], use: Sizes, names: tuple[str, ...]) -> dict[str, Model]:
    """Some of them in windows four times as long, with as many tokens."""
    context = LONGER * use.context
    return {
        longer_name(name, use): replace(
            known[name],
            title=f"{known[name].title.partition(', context')[0]}, trained at {context:,}",
            part="longer",
            context=context,
        )
        for name in names
    }


@dataclass(frozen=True)
class Plan:
    """What the recipes of all models have in common, and how rates are chosen."""

    whole: Recipe[Any, Any]
    rates: tuple[float, ...]
    """Of AdamW; with Muon twice as much is tried as well."""
    sweep_steps: int


def plan(lab: Laboratory) -> Plan:
    """Of a profile."""
    use, task = SIZES[lab.profile], text_task(lab.profile, lab.data, lab.tokenizer)
    model = models(lab.profile, task.vocab_size)[PAPER_GPT2].config
    if lab.profile == "paper":
        epoch = max(1, task.counts("train").tokens // (64 * use.context))
        whole = Recipe(
            model,
            task,
            steps=20 * epoch,
            batch_samples=64,
            optimizer=Optimizer(1e-4, (0.9, 0.999), weight_decay=0.01, warmup=1000, final=0.0),
            curriculum=Curriculum((use.context,)),
            evaluation=Evaluation(every=epoch, samples=500),
            checkpoint_every=epoch,
        )
        return Plan(whole, (1e-4, 3e-4, 1e-3), 2 * epoch)
    whole = replace(stdlib(), model=model, task=task)
    rates = (4e-3, 8e-3, 1.6e-2)
    if lab.profile == "laptop":
        return Plan(whole, rates, 200)
    whole = replace(
        whole,
        steps=6,
        batch_tokens=256,
        optimizer=replace(whole.optimizer, warmup=2),
        curriculum=Curriculum((use.context,)),
        evaluation=Evaluation(every=6, samples=4),
        checkpoint_every=6,
    )
    return Plan(whole, rates, 3)


def recipe_of(common: Plan, profile: Profile, model: Model, algorithm: str | None = None) -> Callable[[float], Any]:
    """A model's recipe as a function of its learning rate."""
    whole = common.whole
    family: Literal["adamw", "muon"] = "muon" if model.family == "modern" and profile != "paper" else "adamw"
    samples = whole.batch_samples and max(1, whole.batch_samples * SIZES[profile].context // model.context)

    def at(rate: float) -> Recipe[Any, Any]:
        chosen: Any = algorithm or family
        return replace(
            whole,
            model=model.config,
            optimizer=replace(whole.optimizer, learning_rate=rate, algorithm=chosen),
            curriculum=Curriculum((model.context,)),
            batch_samples=samples,
        )

    return at


def swept(
    common: Plan, profile: Profile
) -> tuple[dict[str, Callable[[float], Recipe[Any, Any]]], dict[str, tuple[float, ...]]]:
    """The models whose learning rate is chosen, in short runs, and the rates; Mamba, which others train with AdamW, has
    both optimizers.
    """
    short = replace(common, whole=replace(common.whole, steps=common.sweep_steps))
    known = models(profile, common.whole.task.vocab_size)
    made: dict[str, Callable[[float], Recipe[Any, Any]]] = {}
    for name in dict.fromkeys(model.rate_of for model in known.values()):
        made[name] = recipe_of(short, profile, known[name])
        if name == MAMBA and profile != "paper":
            made[f"{name}-{ADAMW}"] = recipe_of(short, profile, known[name], ADAMW)
    more = (*common.rates, 2 * common.rates[-1])
    algorithms = {name: make(more[0]).optimizer.algorithm for name, make in made.items()}
    rates = {name: common.rates if algorithm == ADAMW else more for name, algorithm in algorithms.items()}
    if GPT in rates:
        # What the others are measured against is not to have its rate at the edge of what was tried.
        rates[GPT] = (*more, 2 * more[-1])
    return made, rates


def of_part(known: Mapping[str, Model], part: Part) -> list[str]:
    """The names of its models, in the order in which they are trained."""
    return [name for name, model in known.items() if model.part == part]


def with_more_seeds(known: Mapping[str, Model], use: Sizes) -> list[str]:
    """The models with more than one seed, what most is said of first."""
    near = (GPT, ALTERNATING, DEEP, longer_name(GPT, use), longer_name(ALTERNATING, use))
    names = (*near, *(psm_name(c) for c in reversed(use.chunks)), MAMBA)
    return [name for name in names if name in known]


@dataclass(frozen=True)
class Reading:
    """A line of the streams: a model, and which of its seeds read on."""

    model: str
    title: str
    seeds: tuple[int, ...]
    cache: int | None = None
    """How many positions attention keeps; None for all."""


def readings(known: Mapping[str, Model], use: Sizes) -> dict[str, Reading]:
    """Those without learned positions: models that were swept, and those in longer windows, with every seed; the hybrid
    with more layers of Mamba, and attention that keeps as much as it was trained at, with the last one alone.
    """
    found: dict[str, Reading] = {}
    with_rates = {model.rate_of for model in known.values()}
    for name, model in known.items():
        if getattr(model.config, "positions", 0) not in (0, "rotary"):
            continue
        if name in with_rates or model.part == "longer":
            found[name] = Reading(name, model.title, use.seeds)
        elif name == DEEP:
            found[name] = Reading(name, model.title, use.seeds[-1:])
        if name in (GPT, longer_name(GPT, use)):
            title = f"{model.title}, keeping {model.context:,}"
            found[f"{name}-cache"] = Reading(name, title, use.seeds[-1:], model.context)
    return found


def pairs_by_window(known: Mapping[str, Model], use: Sizes) -> list[tuple[str, str]]:
    """The hybrid that comes nearest to GPT in windows of each length, and that GPT."""
    found = [(DEEP, GPT), (longer_name(ALTERNATING, use), longer_name(GPT, use))]
    return [(one, other) for one, other in found if one in known and other in known]


def final_recipes(
    common: Plan, profile: Profile, chosen: Mapping[str, Chosen], names: Sequence[str], seeds: tuple[int, ...]
) -> dict[str, Recipe[Any, Any]]:
    """The runs of these models, by name and seed, as far as their learning rate is known."""
    known = models(profile, common.whole.task.vocab_size)
    return {
        f"{name}-{seed}": replace(
            recipe_of(common, profile, model, chosen[model.rate_of].algorithm)(chosen[model.rate_of].rate), seed=seed
        )
        for seed in seeds
        for name in names
        if (model := known[name]).rate_of in chosen
    }
