"""Fig. "mqar": multi-query associative recall, error by length, all lengths in training."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

from matplotlib.figure import Figure

from scannable.experiments.figure import powers, save_figure, save_page, save_rows, table, tidy
from scannable.experiments.laboratory import Laboratory, at_rate
from scannable.experiments.profile import Profile
from scannable.experiments.scores import RunScore, best_rate, run_scores, sweep_table
from scannable.models.layer_options import AttentionOptions
from scannable.models.lm_config import GPT2_INIT_STD, LMConfig
from scannable.models.transformer_psm_config import TransformerPSMConfig
from scannable.recipes.recall import mqar
from scannable.tasks import MQARTask
from scannable.training.recipe import Curriculum, Evaluation, Optimizer, Recipe

SWEPT = ("swt-large", "mamba", "full")
"""Baselines whose learning rate is swept."""
SAME_RATE = {"swt-small": "swt-large"}
"""And who has the rate of another."""


@dataclass(frozen=True)
class Setting:
    """One profile."""

    recipe: Recipe[Any, Any]
    models: dict[str, Any]
    """Configurations by name."""
    titles: dict[str, str]
    rates: tuple[float, ...]
    """Of the baselines; the best run of each is the one of the figure. Transformer-PSM has the recipe's own rate."""
    seeds: tuple[int, ...]


def setting(profile: Profile) -> Setting:
    """The paper's sizes, or all of them scaled down together: as many chunks, but shorter ones."""
    recipe, paper = RECIPES[profile](), profile == "paper"
    large: TransformerPSMConfig = recipe.model
    vocab_size, width, context = large.vocab_size, large.width, recipe.curriculum.lengths[-1]
    c = large.chunk_length
    full = LMConfig(
        vocab_size,
        ("attention",) * 2,
        width,
        heads=1,
        norm="layer",
        positions=context,
        sinusoids=not paper,
        tie_weights=not paper,
        init_std=GPT2_INIT_STD if paper else width**-0.5,
    )
    window = replace(full, layers=(AttentionOptions(window=c),) * 4, init_std=None)
    models: dict[str, Any] = {
        "psm-large": large,
        "psm-small": replace(large, chunk_length=c // 2),
        "swt-large": window,
        "swt-small": replace(window, layers=(AttentionOptions(window=c // 2),) * 4),
        "mamba": LMConfig(vocab_size, ("mamba",) * 2, width=width, tie_weights=not paper),
        "full": full,
    }
    titles = {
        "psm-large": f"Transformer-PSM, c = {c}",
        "psm-small": f"Transformer-PSM, c = {c // 2}",
        "swt-large": f"sliding window, {c}",
        "swt-small": f"sliding window, {c // 2}",
        "mamba": "Mamba",
        "full": "full attention",
    }
    rates = (1e-4, 3e-4, 1e-3) if paper else (1e-3, 2e-3, 4e-3, 8e-3, 1.6e-2)
    return Setting(recipe, models, titles, rates, seeds=(0,) if profile == "smoke" else (0, 1, 2))


def smoke() -> Recipe[TransformerPSMConfig, MQARTask]:
    """The laptop's, smaller still."""
    whole, lengths = mqar(), (32, 48)
    return replace(
        whole,
        model=replace(whole.model, width=16),
        steps=30,
        batch_tokens=512,
        optimizer=replace(whole.optimizer, warmup=10),
        curriculum=replace(whole.curriculum, lengths=lengths, steps=10),
        evaluation=replace(whole.evaluation, every=10, samples=16, lengths=lengths),
        checkpoint_every=10,
    )


def paper() -> Recipe[TransformerPSMConfig, MQARTask]:
    """The paper's."""
    lengths, epoch = (128, 256, 512), 100_000 // 32
    return Recipe(
        TransformerPSMConfig(8192, 256, chunk_length=64, agg_layers=2, inf_layers=2, heads=1, compress="projection"),
        MQARTask(8192),
        steps=64 * epoch,
        batch_samples=32,
        optimizer=Optimizer(1e-4, (0.9, 0.999), weight_decay=0.01, warmup=1000, final=0.0),
        curriculum=Curriculum(lengths, steps=10_000, revisit=2 / 3),
        evaluation=Evaluation(every=epoch, samples=3000, lengths=lengths, stop_below=1e-4),
        checkpoint_every=epoch,
    )


RECIPES: dict[Profile, Callable[[], Recipe[TransformerPSMConfig, MQARTask]]] = {
    "smoke": smoke,
    "laptop": mqar,
    "paper": paper,
}
"""Of the Transformer-PSM with the larger chunks; the others have it too, but for model and learning rate."""


def final_recipe(use: Setting, name: str, rate: float, seed: int) -> Recipe[Any, Any]:
    """A run of the figure; each seed has samples of its own, too."""
    whole = at_rate(use.recipe, use.models[name])(rate)
    return replace(whole, seed=seed, task=replace(use.recipe.task, seed=seed))


def run(lab: Laboratory) -> None:
    """Sweep the learning rates of the baselines, train every model with every seed; table, figure and page."""
    use = setting(lab.profile)
    makers = {name: at_rate(use.recipe, model) for name, model in use.models.items()}
    swept = lab.sweep({name: make for name, make in makers.items() if name in SWEPT}, use.rates)
    best = {name: best_rate(runs) for name, runs in swept.items()}
    own = use.recipe.optimizer.learning_rate
    best |= {name: best.get(SAME_RATE.get(name, name), own) for name in makers}
    # A run of the sweep is as long as any other: the best one is the first seed's.
    missing = [(name, seed) for name in makers for seed in use.seeds if name not in swept or seed != use.seeds[0]]
    trained = lab.train({f"{name}-{seed}": final_recipe(use, name, best[name], seed) for name, seed in missing})
    rows = [row for name, runs in swept.items() for one in runs.values() for row in run_scores(one, name, "sweep")]
    for name in makers:
        for seed in use.seeds:
            one = trained[f"{name}-{seed}"] if (name, seed) in missing else swept[name][best[name]]
            rows += run_scores(one, name, "final")
    save_rows(rows, lab.results / "mqar.csv")
    save_figure(draw(rows, use.titles), lab.results, "mqar")
    _page(lab, rows, use)


def by_seed(rows: list[RunScore], model: str) -> dict[int, dict[int, float]]:
    """Errors of the final runs of a model, by seed and length."""
    found: dict[int, dict[int, float]] = {}
    for row in rows:
        if row.model == model and row.part == "final":
            found.setdefault(row.seed, {})[row.length] = row.error
    return found


def draw(rows: list[RunScore], titles: dict[str, str]) -> Figure:
    """Error against length: a line for each run, since some seeds learn and others do not."""
    figure = Figure(figsize=(7, 4.5), layout="constrained")
    axes = figure.subplots()
    lines = {"psm": "-", "swt": "--", "mamba": "-.", "full": ":"}
    for i, (name, title) in enumerate(titles.items()):
        line = lines[name.split("-")[0]]
        # Where two are at zero, the larger, hollow marker shows around the smaller one.
        size, fill = (9, "none") if name == "full" else (5, "full")
        for number, errors in enumerate(by_seed(rows, name).values()):
            axes.plot(
                list(errors), [100 * error for error in errors.values()], line, marker="o", markersize=size,
                fillstyle=fill, color=f"C{i}", zorder=3 - i / 10, label=None if number else title,
            )  # fmt: skip
    lengths = sorted({row.length for row in rows})
    axes.set(xlabel="length (tokens)", ylabel="error at the queries (%)", ylim=(-2, 102))
    powers(axes, lengths)
    tidy(axes)
    return figure


def _page(lab: Laboratory, rows: list[RunScore], use: Setting) -> None:
    final = [row for row in rows if row.part == "final"]
    lengths = sorted({row.length for row in final})
    lines: list[list[object]] = []
    for name, title in use.titles.items():
        mine = [row for row in final if row.model == name]
        lines.append(
            [
                title,
                f"{mine[0].parameters:,}",
                f"{mine[0].learning_rate:g}",
                f"{max(row.tokens for row in mine) / 1e6:.1f} M",
                *(
                    " / ".join(f"{100 * errors[length]:.2f}" for errors in by_seed(rows, name).values())
                    for length in lengths
                ),
            ]
        )
    task: MQARTask = use.recipe.task
    save_page(
        lab.results,
        "Multi-query associative recall: error by length",
        'Fig. "mqar" of *Sequential-Parallel Duality in Prefix-Scannable Models*: '
        f"{task.pairs} pairs of a vocabulary of {task.vocab_size:,}, every key asked for once, at a uniformly random "
        "place.",
        f"`scannable reproduce mqar --profile {lab.profile}`; resolved configurations in `configurations/`, all "
        f"numbers in `mqar.csv`, {len({row.seed for row in final})} seeds, {final[0].samples} test sequences at each "
        "length.",
        "![error by length](mqar.png)",
        "Error at the queries in percent, one number for each seed; all lengths are in training:",
        table(["model", "parameters", "learning rate", "tokens, at most", *map(str, lengths)], lines),
        "The paper at 512 tokens: Transformer-PSM with c = 64 perfect, with c = 32 degraded, Mamba fails, full "
        "attention perfect; of its sliding windows the text says nothing.",
        "## What differs from the paper",
        _differences(lab.profile, use),
        "## Learning rates of the baselines",
        "Runs like any other; the one with the best validation loss was taken, and repeated with other seeds. The "
        "smaller window has the rate of the larger.",
        table(
            ["model", "learning rate", "reached length", "validation loss there"],
            sweep_table(rows, use.titles, use.rates),
        ),
    )


def _differences(profile: Profile, use: Setting) -> str:
    if profile == "paper":
        return "The learning rate of the baselines is swept; Transformer-PSM has 1e-4, the paper's."
    lengths, recipe = use.recipe.curriculum.lengths, use.recipe
    return (
        f"- Everything is scaled down together: lengths {', '.join(map(str, lengths))} instead of 128, 256, 512, "
        f"chunks and windows a quarter as long, width {recipe.model.width} instead of 256, vocabulary "
        f"{recipe.task.vocab_size} instead of 8,192. Pairs and the uniform queries are the paper's.\n"
        f"- At most {recipe.steps:,} steps of {recipe.batch_tokens:,} tokens; on to the next length when the "
        f"validation error is below 5%, at the latest after {recipe.curriculum.steps:,} steps; a run ends when its "
        "error at the longest length is zero.\n"
        "- Embedding and output layer share their weights, and learned positions start as sinusoids, in every model "
        "that has them; Agg's projection starts as the sum of both halves. Without the first two small models guess "
        "among the values of the sequence for thousands of steps, without the third nothing comes through Agg for as "
        "long. This was found in about forty-five short trials, somewhat more of Transformer-PSM than of full "
        "attention, judged by their losses in training or validation; the other models had none.\n"
        "- Errors are those of the weights at the end of a run; learning rates were chosen by the best evaluation.\n"
        "- Mamba is this library's, which equals that of `transformers` number for number."
    )
