"""Fig. "wikitext chunk": perplexity of language models against the chunk length, every token scored."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import pairwise
from typing import Any

import torch
from matplotlib.figure import Figure

from scannable.experiments.figure import powers, save_figure, save_page, save_rows, table, tidy
from scannable.experiments.laboratory import Laboratory, at_rate
from scannable.experiments.language_profiles import DATA, LONGER, SIZES, Sizes, text_task
from scannable.experiments.profile import Profile
from scannable.experiments.scores import RunScore, Spread, best_rate, run_scores, sweep_table
from scannable.models.lm_config import GPT2_INIT_STD, LMConfig
from scannable.recipes.language_modelling import stdlib
from scannable.spd.counters import CountedWork
from scannable.storage.model_file import build_model
from scannable.training.recipe import Curriculum, Evaluation, Optimizer, Recipe

GPT2, MAMBA, PSM_LONGER = "gpt2", "mamba", "psm-longer"
PAPER = {32: 24.12, 256: 22.45, GPT2: 22.28, MAMBA: 24.7}
"""Perplexities on WikiText-103 that the paper gives in numbers."""


def psm_name(chunk_length: int) -> str:
    return f"psm-{chunk_length}"


def models(profile: Profile, vocab_size: int) -> dict[str, Any]:
    """The configurations of all models, of about equal size."""
    use = SIZES[profile]
    sinusoids = profile != "paper"
    psm = replace(
        stdlib().model,
        vocab_size=vocab_size,
        width=use.width,
        inf_layers=use.layers - 1,
        heads=use.heads,
        dropout=use.dropout,
        sinusoids=sinusoids,
    )
    # Like all others here a narrow GPT-2 starts with the fan-in; its own 0.02 is for widths of 768 and more.
    init_std = GPT2_INIT_STD if use.width >= 768 else use.width**-0.5
    return {
        **{psm_name(c): replace(psm, chunk_length=c) for c in use.chunks},
        GPT2: LMConfig(
            vocab_size,
            ("attention",) * use.layers,
            use.width,
            use.heads,
            norm="layer",
            positions=use.context,
            sinusoids=sinusoids,
            tie_weights=True,
            dropout=use.dropout,
            init_std=init_std,
        ),
        MAMBA: LMConfig(vocab_size, ("mamba",) * use.mamba_layers, use.width, tie_weights=True),
    }


def recipe(lab: Laboratory) -> tuple[Recipe[Any, Any], tuple[float, ...], int]:
    """The recipe of all models, the learning rates of the sweep, and the steps of its short runs."""
    use, task = SIZES[lab.profile], text_task(lab.profile, lab.data, lab.tokenizer)
    gpt2 = models(lab.profile, task.vocab_size)[GPT2]
    if lab.profile == "paper":
        epoch = max(1, task.counts("train").tokens // (64 * use.context))
        whole = Recipe(
            gpt2,
            task,
            steps=20 * epoch,
            batch_samples=64,
            optimizer=Optimizer(1e-4, (0.9, 0.999), weight_decay=0.01, warmup=1000, final=0.0),
            curriculum=Curriculum((use.context,)),
            evaluation=Evaluation(every=epoch, samples=500),
            checkpoint_every=epoch,
        )
        return whole, (1e-4, 3e-4, 1e-3), 2 * epoch
    rates = (2e-3, 4e-3, 8e-3, 1.6e-2)
    whole = replace(stdlib(), model=gpt2, task=task)
    if lab.profile == "laptop":
        return whole, rates, 400
    whole = replace(
        whole,
        steps=20,
        batch_tokens=512,
        optimizer=replace(whole.optimizer, warmup=5),
        curriculum=Curriculum((use.context,)),
        evaluation=Evaluation(every=10, samples=8),
        checkpoint_every=10,
    )
    return whole, rates, 10


@torch.no_grad()
def work_per_token(model: Any, length: int) -> float:
    """Floating-point operations of the forward pass over one window, for each of its tokens."""
    built = build_model(model).eval()
    with CountedWork() as work:
        built(torch.zeros(1, length, dtype=torch.long))
    return work.operations / length


def longer(recipe: Recipe[Any, Any]) -> Recipe[Any, Any]:
    """The same in windows four times as long, with as many tokens a step, in as many steps as cost the same."""
    (length,) = recipe.curriculum.lengths
    ratio = work_per_token(recipe.model, length) / work_per_token(recipe.model, LONGER * length)
    samples = recipe.batch_samples and recipe.batch_samples // LONGER
    steps = round(ratio * recipe.steps)
    return replace(recipe, curriculum=Curriculum((LONGER * length,)), batch_samples=samples, steps=steps)


def final_recipes(whole: Recipe[Any, Any], profile: Profile, best: Mapping[str, float]) -> dict[str, Recipe[Any, Any]]:
    """The runs of the figure, but for the one with longer windows; chunk lengths share the rate of the middle one."""
    return {
        name: at_rate(whole, model)(best.get(name, best[middle_psm(profile)]))
        for name, model in models(profile, whole.task.vocab_size).items()
    }


def middle_psm(profile: Profile) -> str:
    chunks = SIZES[profile].chunks
    return psm_name(chunks[len(chunks) // 2])


def run(lab: Laboratory) -> None:
    """Sweep the learning rates, train every model on the same tokens, score every token of the test split."""
    whole, rates, sweep_steps = recipe(lab)
    configurations = models(lab.profile, whole.task.vocab_size)
    use = SIZES[lab.profile]
    swept = lab.sweep(
        {
            name: at_rate(replace(whole, steps=sweep_steps), configurations[name])
            for name in (middle_psm(lab.profile), GPT2, MAMBA)
        },
        rates,
    )
    best = {name: best_rate(runs) for name, runs in swept.items()}
    final = final_recipes(whole, lab.profile, best)
    final[PSM_LONGER] = longer(final[psm_name(use.chunks[-1])])
    trained = lab.train(final)
    rows = [row for name, runs in swept.items() for one in runs.values() for row in run_scores(one, name, "sweep")]
    rows += [row for name in final for row in run_scores(trained[name], name, "final")]
    save_rows(rows, lab.results / "wikitext.csv")
    save_figure(draw(rows, use), lab.results, "wikitext")
    work = {name: work_per_token(one.model, one.curriculum.lengths[-1]) for name, one in final.items()}
    _page(lab, rows, use, rates, work, trained[GPT2].result["tokens"] / whole.task.counts("train").tokens)


def perplexity(rows: list[RunScore], model: str) -> float:
    return Spread.of([row.perplexity for row in rows if row.model == model and row.part == "final"]).mean


def draw(rows: list[RunScore], use: Sizes) -> Figure:
    """Perplexity against c, with GPT-2 and Mamba as lines."""
    figure = Figure(figsize=(7, 4.5), layout="constrained")
    axes = figure.subplots()
    found = [perplexity(rows, psm_name(c)) for c in use.chunks]
    axes.plot(use.chunks, found, "o-", color="C0", label=f"Transformer-PSM, trained at {use.context}")
    axes.plot(
        [use.chunks[-1]], [perplexity(rows, PSM_LONGER)], "*", color="C0", markersize=12,
        label=f"the same at {LONGER * use.context:,} for the same compute",
    )  # fmt: skip
    axes.axhline(perplexity(rows, GPT2), color="C2", linestyle="-.", label=f"GPT-2, context {use.context}")
    axes.axhline(perplexity(rows, MAMBA), color="C4", linestyle=":", label="Mamba")
    axes.set(xlabel="chunk length c (tokens)", ylabel="test perplexity per token")
    powers(axes, use.chunks)
    tidy(axes)
    return figure


def _page(
    lab: Laboratory,
    rows: list[RunScore],
    use: Sizes,
    rates: Sequence[float],
    work: dict[str, float],
    passes: float,
) -> None:
    final = {row.model: row for row in rows if row.part == "final"}
    reference = final[GPT2].perplexity
    titles = {psm_name(c): f"Transformer-PSM, c = {c}" for c in use.chunks}
    titles |= {PSM_LONGER: f"Transformer-PSM, c = {use.chunks[-1]}, context {LONGER * use.context:,}"}
    titles |= {GPT2: f"GPT-2, context {use.context}", MAMBA: "Mamba"}
    paper = {psm_name(c): PAPER.get(c, "") for c in use.chunks} | {GPT2: PAPER[GPT2], MAMBA: PAPER[MAMBA]}
    lines = [
        [
            title,
            f"{final[name].parameters:,}",
            f"{final[name].learning_rate:g}",
            f"{work[name] / 1e6:.2f} M",
            f"{final[name].tokens / 1e6:.2f} M",
            f"{final[name].perplexity:.4f}",
            f"{final[name].perplexity / reference - 1:+.2%}",
            f"{final[name].bits_per_byte:.4f}",
            paper.get(name, ""),
        ]
        for name, title in titles.items()
    ]
    measured = [final[psm_name(c)].perplexity for c in use.chunks]
    falls = all(later < earlier for earlier, later in pairwise(measured))
    gap = measured[-1] / reference - 1
    other = f" --data {lab.data}" if lab.data is not None else ""
    other += f" --tokenizer {lab.tokenizer}" if lab.tokenizer else ""
    save_page(
        lab.results,
        "Language modelling: perplexity against the chunk length",
        'Fig. "wikitext chunk" of *Sequential-Parallel Duality in Prefix-Scannable Models*.',
        f"`scannable reproduce wikitext --profile {lab.profile}{other}`; "
        "resolved configurations in `configurations/`, all numbers in `wikitext.csv`. Every token of the test split is "
        "scored once, the same tokens for every model, in windows of the length the model was trained at.",
        "![perplexity against c](wikitext.png)",
        table(
            [
                "model",
                "parameters",
                "rate",
                "operations a token",
                "tokens",
                "perplexity",
                "against GPT-2",
                "bits per byte",
                "the paper's",
            ],
            lines,
        ),
        f"Perplexity {'falls' if falls else 'does NOT fall'} monotonically with c; at c = {use.chunks[-1]} it is "
        f"{gap:+.2%} from GPT-2's (the paper's: {PAPER[256] / PAPER[GPT2] - 1:+.2%}). Trained at "
        f"{LONGER * use.context:,} tokens, with fewer steps so that the operations are as many, Transformer-PSM is "
        f"{final[PSM_LONGER].perplexity / reference - 1:+.2%} from GPT-2. Operations are those of the forward pass, "
        "counted; Inf reads a prefix beside every chunk, which is why Transformer-PSM needs more of them than GPT-2.",
        "## What differs from the paper",
        _differences(lab, use, passes),
        "## Learning rates",
        "Short runs with the same recipe; the lowest validation loss was taken. All chunk lengths use the learning "
        "rate of the one that was swept.",
        table(["model", "learning rate", "length", "validation loss"], sweep_table(rows, titles, rates)),
    )


def _differences(lab: Laboratory, use: Sizes, passes: float) -> str:
    if lab.profile == "paper":
        return (
            "Every token is scored, also the first of each chunk; the tokenizer is trained on the text unless given; "
            "learning rates are swept; Mamba has as many epochs as the others, where the paper's has half of them."
        )
    text, chunks = lab.data or DATA[lab.profile], use.context // use.chunks[-1]
    return (
        f"- The text is `{text}`, byte by byte unless a tokenizer is given, instead of WikiText-103; perplexities "
        "are per token and cannot be compared with the paper's, their order can.\n"
        f"- Small models on a CPU: width {use.width}, {use.layers} layers, {passes:.2g} times the tokens of the "
        "training text, one seed.\n"
        "- Learned positions, of Transformer-PSM and of GPT-2, start as sinusoids. In one trial of 200 steps each, of "
        "models of width 96 and 6 layers at 4e-3, that took the validation loss from 2.43 to 2.22 (c = 128) and from "
        "2.40 to 2.26 (GPT-2).\n"
        "- Every token is scored; the paper's code leaves out the first token of each chunk.\n"
        f"- As in the paper a window of {use.context} has {chunks} chunks of {use.chunks[-1]}: the second one's prefix "
        "is the first chunk itself, so that Agg takes no part, and this Transformer-PSM is a GPT-2 with one layer less "
        f"and no cut in sight. In windows of {LONGER * use.context:,} Agg works.\n"
        "- Mamba is this library's, which equals that of `transformers` number for number."
    )
