"""Fig. "state tracking": products in S5, trained to length 18, tested at lengths far beyond."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from statistics import fmean
from typing import Any

import torch
from matplotlib.figure import Figure

import scannable.training.checkpoint as checkpoints
from scannable.experiments.figure import powers, save_figure, save_page, save_rows, table, tidy
from scannable.experiments.laboratory import Laboratory, Trained, at_rate
from scannable.experiments.profile import Profile
from scannable.experiments.scores import RunScore, best_rate, error_by_length, run_scores, sweep_table
from scannable.models.layer_options import AttentionOptions
from scannable.models.lm_config import GPT2_INIT_STD, LMConfig
from scannable.models.transformer_psm_config import TransformerPSMConfig
from scannable.recipes.state_tracking import TEST_LENGTHS, helped, s5_plain
from scannable.spd import associativity_defect
from scannable.storage.model_file import build_model
from scannable.tasks import GroupTask
from scannable.training.evaluation import evaluate
from scannable.training.recipe import Curriculum, Evaluation, Optimizer, Recipe

PSM, HELPED, GPT2, WITHOUT_POSITIONS, MAMBA = "psm-plain", "psm-helped", "gpt2", "gpt2-no-positions", "mamba"
TITLES = {
    HELPED: "Transformer-PSM, helped",
    PSM: "Transformer-PSM, plain",
    GPT2: "GPT-2",
    WITHOUT_POSITIONS: "GPT-2 without positions",
    MAMBA: "Mamba",
}
ELEMENTS = 120
SHOWN = (18, 32, 64, 128, 180, 256, 512, 1024, 2048, 4096)
"""Lengths in the page's table."""


@dataclass(frozen=True)
class Setting:
    """One profile."""

    recipe: Recipe[Any, Any]
    """Of Transformer-PSM without what helps; the others have it too, but for the model and the learning rate."""
    gpt2: LMConfig
    mamba: LMConfig
    rates: tuple[float, ...]
    """Of the baselines; the best one is trained to the end."""
    sweep_steps: int
    seeds: tuple[int, ...]


def setting(profile: Profile) -> Setting:
    """What each profile trains."""
    if profile == "paper":
        # 20 epochs of 100,000 sequences for each length, at most; patience of 3 epochs.
        epoch = 100_000 // 32
        return Setting(
            Recipe(
                TransformerPSMConfig(
                    ELEMENTS, width=768, chunk_length=1, agg_layers=1, inf_layers=1, heads=1, dropout=0.1
                ),
                GroupTask("S5"),
                steps=15 * 20 * epoch,
                batch_samples=32,
                optimizer=Optimizer(1e-4, (0.9, 0.999), weight_decay=0.01, schedule="constant", warmup=0),
                curriculum=Curriculum(tuple(range(4, 19)), steps=20 * epoch, patience=3, fresh_optimizer=True),
                evaluation=Evaluation(every=epoch, samples=3000, lengths=TEST_LENGTHS, patience=3),
                checkpoint_every=epoch,
            ),
            LMConfig(
                ELEMENTS,
                ("attention",) * 12,
                width=768,
                heads=12,
                norm="layer",
                positions=TEST_LENGTHS[-1],
                tie_weights=True,
                dropout=0.1,
                init_std=GPT2_INIT_STD,
            ),
            LMConfig(ELEMENTS, ("mamba",) * 48, width=1024, tie_weights=True, dropout=0.1),
            rates=(3e-5, 1e-4, 3e-4),
            sweep_steps=3 * 20 * epoch,
            seeds=(0, 1, 2),
        )
    recipe = s5_plain()
    if profile == "smoke":
        recipe = replace(
            recipe,
            model=replace(recipe.model, width=32),
            steps=20,
            batch_tokens=256,
            optimizer=replace(recipe.optimizer, warmup=10),
            curriculum=replace(recipe.curriculum, steps=3),
            evaluation=Evaluation(every=10, samples=16, lengths=tuple(n for n in TEST_LENGTHS if n <= 64)),
            ema=0.5,
            checkpoint_every=10,
        )
    width, longest = recipe.model.width, recipe.evaluation.lengths[-1]
    return Setting(
        recipe,
        # Like those of Transformer-PSM its weights start with the fan-in: 0.02 is for widths of 768 and more.
        LMConfig(
            ELEMENTS,
            ("attention",) * 4,
            width,
            norm="layer",
            positions=longest,
            tie_weights=True,
            init_std=width**-0.5,
        ),
        LMConfig(ELEMENTS, ("mamba",) * 2, width=width, tie_weights=True),
        rates=(3e-4, 1e-3, 3e-3, 1e-2),
        sweep_steps=20 if profile == "smoke" else 1500,
        seeds=(0,),
    )


def plain_recipes(use: Setting, *, short: bool = False) -> dict[str, Callable[[float], Recipe[Any, Any]]]:
    """Every model as a function of its learning rate, under the same recipe."""
    recipe = use.recipe
    if short:
        recipe = replace(recipe, steps=use.sweep_steps, evaluation=replace(recipe.evaluation, lengths=()))
    models = {
        PSM: recipe.model,
        GPT2: use.gpt2,
        WITHOUT_POSITIONS: replace(
            use.gpt2, positions=0, layers=tuple(AttentionOptions(positions="none") for _ in use.gpt2.layers)
        ),
        MAMBA: use.mamba,
    }
    return {name: at_rate(recipe, model) for name, model in models.items()}


def final_recipes(use: Setting, rates: Mapping[str, float]) -> dict[str, Recipe[Any, Any]]:
    """The runs of the figure, by name and seed, each model at its learning rate; the helped model first."""
    plain = {
        f"{name}-{seed}": replace(make(rates[name]), seed=seed)
        for name, make in plain_recipes(use).items()
        for seed in use.seeds
    }
    return {f"{HELPED}-{seed}": helped(plain[f"{PSM}-{seed}"]) for seed in use.seeds} | plain


@dataclass(frozen=True)
class Defect:
    """What a checkpoint on the way has learned: how far Agg is from associative, and the error at some lengths."""

    step: int
    associativity_defect: float
    error_18: float
    error_64: float
    error_180: float


def milestones(run: Trained) -> list[int]:
    """The steps whose checkpoints were kept."""
    every = run.recipe.keep_every or 1
    return [step for step in checkpoints.steps(run.folder / "checkpoints") if step % every == 0]


def model_at(run: Trained, step: int, device: str) -> Any:
    """The model as it was at that step, with its averaged weights."""
    checkpoint = checkpoints.read(checkpoints.path_of(run.folder / "checkpoints", step))
    model = build_model(run.recipe.model)
    model.load_state_dict(checkpoint.model)
    model.load_state_dict(checkpoint.average, strict=False)
    return model.to(device).eval()


def defects(run: Trained, device: str = "cpu") -> list[Defect]:
    """Along the run."""
    task = run.recipe.task
    rows: list[Defect] = []
    for step in milestones(run):
        model, tokens = model_at(run, step, device), task.batch("test", range(1024), 3).tokens.to(device)
        with torch.no_grad():
            a, b, c = (model.enc(part) for part in tokens[:, :, None].unbind(1))
        found = [
            evaluate(model, task, "test", length, 128, batch_tokens=4096, precision="float32").error
            for length in (18, 64, 180)
        ]
        rows.append(Defect(step, associativity_defect(model.agg, a, b, c), *found))
    return rows


def run(lab: Laboratory) -> None:
    """Train what the figure needs, and leave table, figures and page."""
    use = setting(lab.profile)
    short = plain_recipes(use, short=True)
    swept = lab.sweep({name: make for name, make in short.items() if name != PSM}, use.rates)
    best = {name: best_rate(runs) for name, runs in swept.items()}
    best[PSM] = use.recipe.optimizer.learning_rate
    trained = lab.train(final_recipes(use, best))

    rows = [row for name, runs in swept.items() for one in runs.values() for row in run_scores(one, name, "sweep")]
    for name in (HELPED, *plain_recipes(use)):
        for seed in use.seeds:
            rows += run_scores(trained[f"{name}-{seed}"], name, "final")
    save_rows(rows, lab.results / "s5.csv")
    along = defects(trained[f"{HELPED}-{use.seeds[0]}"], lab.device)
    save_rows(along, lab.results / "associativity.csv")
    save_figure(draw(rows), lab.results, "s5")
    save_figure(draw_defects(along), lab.results, "associativity")
    _page(lab, rows, along, use)


def draw(rows: list[RunScore]) -> Figure:
    """Error against length, all models."""
    figure = Figure(figsize=(8, 4.5), layout="constrained")
    axes = figure.subplots()
    for i, (name, title) in enumerate(TITLES.items()):
        found = error_by_length(rows, name)
        color, line = f"C{i}", "-" if name == HELPED else "--" if name == PSM else "-."
        axes.plot(list(found), [100 * e.mean for e in found.values()], line, marker=".", color=color, label=title)
        low, high = [100 * e.least for e in found.values()], [100 * e.greatest for e in found.values()]
        axes.fill_between(list(found), low, high, color=color, alpha=0.15, linewidth=0)
    axes.axvline(18, color="grey", linewidth=1, linestyle=":")
    axes.text(18.5, 101, "trained to 18", color="grey", fontsize=8, va="bottom")
    axes.axvline(160, color="grey", linewidth=1, linestyle=":")
    axes.text(162, 101, "the paper: low error past 160", color="grey", fontsize=8, va="bottom")
    axes.set(xlabel="length (tokens)", ylabel="token error (%)", ylim=(-2, 108))
    powers(axes, [8, *SHOWN])
    tidy(axes)
    return figure


def draw_defects(rows: list[Defect]) -> Figure:
    """Error and associativity defect along the training of the helped model."""
    figure = Figure(figsize=(8, 4), layout="constrained")
    axes = figure.subplots()
    steps = [row.step for row in rows]
    axes.plot(steps, [row.associativity_defect for row in rows], "k.-", label="associativity defect of Agg")
    for i, length in enumerate((18, 64, 180)):
        axes.plot(
            steps, [getattr(row, f"error_{length}") for row in rows], ".-", color=f"C{i}", label=f"error at {length}"
        )
    axes.set(xlabel="step", ylabel="defect (1.41: unrelated), error (1: all wrong)", yscale="log")
    tidy(axes)
    return figure


def _page(lab: Laboratory, rows: list[RunScore], along: list[Defect], use: Setting) -> None:
    final = [row for row in rows if row.part == "final"]
    lengths = [length for length in error_by_length(rows, PSM) if length in SHOWN]
    lines: list[list[object]] = []
    for name, title in TITLES.items():
        mine, found = [row for row in final if row.model == name], error_by_length(rows, name)
        lines.append(
            [
                title,
                f"{mine[0].parameters:,}",
                f"{mine[0].learning_rate:g}",
                f"{fmean(row.tokens for row in mine) / 1e6:.1f} M",
                f"{min(row.trained_to for row in mine)}",
                *(f"{100 * found[length].mean:.2f}" for length in lengths),
            ]
        )
    head = ["model", "parameters", "learning rate", "tokens trained", "trained to length", *(f"{n:,}" for n in lengths)]
    seeds = sorted({row.seed for row in final})
    save_page(
        lab.results,
        "State tracking in S5: error by length",
        'Fig. "state tracking" of *Sequential-Parallel Duality in Prefix-Scannable Models*: one token for each of the '
        "120 permutations, the target at each position their product so far; trained on lengths up to 18.",
        f"`scannable reproduce s5 --profile {lab.profile}`; resolved configurations in `configurations/`, all numbers "
        f"in `s5.csv`, seeds {', '.join(map(str, seeds))}, {final[0].samples} test sequences at each length.",
        "![error by length](s5.png)",
        "Token error in percent, over all positions of all test sequences:",
        table(head, lines),
        "The paper's curves (width 768, Mamba 1,024, on a GPU): Transformer-PSM keeps a low error past 160 tokens; "
        "GPT-2 and Mamba fail soon after 18. " + _baselines_at_18(rows, lab.profile),
        "## What differs from the paper",
        _differences(lab.profile, use),
        "## How associative Agg becomes",
        "Nothing makes Agg associative, and the tree is fixed, so nothing has to. But S5 is. The defect "
        "|(ab)c - a(bc)| over the norm of both, on three random elements, measures how far Agg is from associative: "
        f"{along[-1].associativity_defect:.2f} at the end of the helped model's training (`associativity.csv`). Two "
        "states may stand for the same permutation without being equal, so it need not come to zero; and a low defect "
        "alone says nothing, for an Agg that returned its right half would have none.",
        "![associativity defect](associativity.png)",
        table(
            ["step", "defect", "error at 18", "error at 64", "error at 180"],
            [
                [
                    f"{d.step:,}",
                    f"{d.associativity_defect:.3f}",
                    *(f"{e:.2%}" for e in (d.error_18, d.error_64, d.error_180)),
                ]
                for d in along
            ],
        ),
        "## Learning rates of the baselines",
        "Short runs with the same recipe; the one that reached the longest length, then the lowest validation loss, "
        "was trained to the end.",
        table(
            ["model", "learning rate", "reached length", "validation loss there"], sweep_table(rows, TITLES, use.rates)
        ),
    )


def _baselines_at_18(rows: list[RunScore], profile: Profile) -> str:
    if profile == "paper":
        return ""
    errors = {TITLES[name]: error_by_length(rows, name)[18].mean for name in (GPT2, WITHOUT_POSITIONS, MAMBA)}
    listed = ", ".join(f"{title} {error:.0%}" for title, error in errors.items())
    return (
        f"Errors of ours, which are smaller and see fewer tokens, at 18: {listed}. What the figure compares "
        "is what each model learns within the same budget."
    )


def _differences(profile: Profile, use: Setting) -> str:
    curriculum, more = use.recipe.curriculum, helped(use.recipe)
    help_ = (
        "- *Helped* adds three things to Transformer-PSM: Agg starts from Inf's weights once Inf can multiply two "
        "elements (the callback `AggFromInf`; for that there is one more stage at the first length, and up to "
        f"{more.curriculum.steps:,} steps a length); what Agg returns is brought to unit size (`--model.unit-states`); "
        f"and in training it has Gaussian noise on it, growing to {more.model.state_noise:g} of its size over the run "
        "(`--model.state-noise`, the callback `GrowingStateNoise`). The baselines have no Agg to be helped.\n"
    )
    if profile == "paper":
        return (
            "- Sizes and schedule are the paper's; Agg is bidirectional, error is over the whole test set, and the "
            f"learning rates of the baselines are swept.\n{help_}"
        )
    return (
        f"- Small models on a CPU: width {use.gpt2.width} instead of 768, {use.gpt2.layers} layers for GPT-2 instead "
        f"of 12, {use.mamba.layers} for Mamba instead of 48 of width 1,024, AdamW at a rate that falls late, about "
        f"{use.recipe.batch_tokens:,} tokens a step. The paper's Mamba is by far its largest model; here it is the "
        "smallest.\n"
        "- All models have the same task, steps, schedule, average of the weights and rules of the curriculum (lengths "
        f"{', '.join(map(str, curriculum.lengths))}; on when the validation error is below {curriculum.below[0]:.0%}, "
        f"learned or not after {curriculum.steps:,} steps). How many samples a step has depends on the length it is "
        "at, so the tokens seen differ a little.\n"
        f"{help_}"
        "- The plain recipe and what helps were found in thirteen trials of Transformer-PSM, most of them stopped "
        "early, five judged by errors on sequences of the test split and the last four by the validation split; the "
        "baselines had the sweep of learning rates below and no such search.\n"
        "- GPT-2 has learned positions up to the longest test length, of which it saw 18 in training; the variant "
        "without positions has none to miss.\n"
        "- Errors are those of the weights at the end of a run; learning rates were chosen by the best evaluation.\n"
        "- Mamba is this library's, which equals that of `transformers` number for number and is faster on a CPU."
    )
