"""Language modelling: figures, tables and the page, from whatever runs are there."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from math import exp
from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from scannable.experiments.by_window import BLOCK
from scannable.experiments.choice import Chosen, at_the_edge, swept_titles, taken
from scannable.experiments.figure import missing_runs, powers, save_page, table, tidy
from scannable.experiments.laboratory import Laboratory
from scannable.experiments.language_profiles import DATA, LONGER, SIZES, Sizes
from scannable.experiments.language_runs import (
    ALTERNATING,
    DEEP,
    GPT,
    HYBRID,
    HYBRIDS,
    MAMBA,
    PAPER_GPT2,
    Family,
    Model,
    Plan,
    longer_name,
    psm_name,
    readings,
    swept,
)
from scannable.experiments.scores import RunScore, Spread, sweep_table
from scannable.training.recipe import Recipe

PAPER = {psm_name(32, "paper"): 24.12, psm_name(256, "paper"): 22.45, PAPER_GPT2: 22.28, MAMBA: 24.7}
"""Perplexities on WikiText-103 that the paper gives in numbers."""


@dataclass(frozen=True)
class StreamedPart:
    """A run over some positions of its streams."""

    model: str
    seed: int
    trained_at: int
    begin: int
    end: int
    asked: int
    loss: float


@dataclass(frozen=True)
class ByWindow:
    """A hybrid beside GPT on the same windows."""

    hybrid: str
    gpt: str
    seed: int
    split: str
    length: int
    mean: float
    error: float
    windows: int
    better: int


def perplexity(rows: Sequence[RunScore], model: str) -> Spread | None:
    """Over the seeds of a model; None if it has no run."""
    mine = [row.perplexity for row in rows if row.model == model and row.part != "sweep"]
    return Spread.of(mine) if mine else None


def draw(rows: Sequence[RunScore], use: Sizes, titles: Mapping[str, str]) -> Figure:
    """Perplexity against c: our blocks on the left, the paper's on the right; what has no c is a line across."""
    figure = Figure(figsize=(13, 5.8), layout="constrained")
    left, right = figure.subplots(1, 2)
    _chunks(left, rows, use, "modern")
    for name, color, line in (
        (GPT, "C2", "-."),
        (MAMBA, "C4", ":"),
        (HYBRID, "C3", "--"),
        (ALTERNATING, "C6", "-"),
        (DEEP, "C8", "-"),
    ):
        _across(left, rows, name, color, line, titles)
    for name, chunk, color, marker in (
        (f"{psm_name(use.chunks[0])}-recent", use.chunks[0], "C1", "^"),
        (f"{psm_name(use.chunks[1])}-memory", use.chunks[1], "C5", "s"),
        (longer_name(psm_name(use.middle), use), use.middle, "C0", "*"),
    ):
        _point(left, rows, name, chunk, color, marker, titles)
    _chunks(right, rows, use, "paper")
    _across(right, rows, PAPER_GPT2, "C2", "-.", titles)
    longest = use.chunks[-1]
    _point(right, rows, longer_name(psm_name(longest, "paper"), use), longest, "C0", "*", titles)
    left.set_title("Rotary, short convolutions, Muon")
    right.set_title("The paper's blocks, AdamW")
    for axes in (left, right):
        axes.set(xlabel="chunk length c (tokens)", ylabel="test perplexity per token")
        powers(axes, use.chunks)
        tidy(axes, legend="below")
        if not axes.has_data():
            axes.text(0.5, 0.5, "no runs yet", color="grey", ha="center", transform=axes.transAxes)
            axes.set(xlim=(use.chunks[0], use.chunks[-1]), yticks=[])
    return figure


def _chunks(axes: Axes, rows: Sequence[RunScore], use: Sizes, family: Family) -> None:
    found = {c: spread for c in use.chunks if (spread := perplexity(rows, psm_name(c, family)))}
    if not found:
        return
    label = f"Transformer-PSM, trained at {use.context}"
    axes.plot(list(found), [s.mean for s in found.values()], "o-", color="C0", label=label)
    low, high = [s.least for s in found.values()], [s.greatest for s in found.values()]
    axes.fill_between(list(found), low, high, color="C0", alpha=0.15, linewidth=0)


def _across(axes: Axes, rows: Sequence[RunScore], name: str, color: str, line: str, titles: Mapping[str, str]) -> None:
    if found := perplexity(rows, name):
        axes.axhline(found.mean, color=color, linestyle=line, label=titles[name])
        axes.axhspan(found.least, found.greatest, color=color, alpha=0.1, linewidth=0)


def _point(
    axes: Axes,
    rows: Sequence[RunScore],
    name: str,
    chunk: int,
    color: str,
    marker: str,
    titles: Mapping[str, str],
) -> None:
    if found := perplexity(rows, name):
        axes.plot([chunk], [found.mean], marker, color=color, markersize=9, linestyle="", label=titles[name])


def by_position(parts: Sequence[StreamedPart], model: str) -> dict[tuple[int, int], Spread]:
    """The perplexity of a model from one position to another, over its seeds."""
    mine = [part for part in parts if part.model == model]
    return {
        span: Spread.of([exp(part.loss) for part in mine if (part.begin, part.end) == span])
        for span in sorted({(part.begin, part.end) for part in mine})
    }


def draw_streams(parts: Sequence[StreamedPart], titles: Mapping[str, str]) -> Figure:
    """Perplexity by position, each stretch of positions at its middle."""
    figure = Figure(figsize=(11, 6), layout="constrained")
    axes = figure.subplots()
    lengths = {part.model: part.trained_at for part in parts}
    # What is the same model but for its windows has the same colour.
    alike = {name: name.replace(f"-at-{length}", "") for name, length in lengths.items()}
    colors = {model: f"C{i}" for i, model in enumerate(dict.fromkeys(alike.values()))}
    for name, trained_at in lengths.items():
        found, color = by_position(parts, name), colors[alike[name]]
        line = "-" if trained_at == min(lengths.values()) else "--"
        middles = [(begin + end) / 2 for begin, end in found]
        mean, low, high = ([getattr(one, which) for one in found.values()] for which in ("mean", "least", "greatest"))
        axes.plot(middles, mean, line, marker=".", color=color, label=titles[name])
        axes.fill_between(middles, low, high, color=color, alpha=0.15, linewidth=0)
    for length in sorted(set(lengths.values())):
        axes.axvline(length, color="grey", linewidth=1, linestyle=":")
        axes.text(length * 1.02, 0.02, f"trained at {length:,}", color="grey", fontsize=8, va="bottom",
                  transform=axes.get_xaxis_transform())  # fmt: skip
    axes.set(xlabel="position in the stream (tokens)", ylabel="perplexity per token", ylim=(0, None))
    powers(axes, sorted({part.end for part in parts}))
    tidy(axes, legend="below")
    return figure


def write_page(
    lab: Laboratory,
    rows: Sequence[RunScore],
    known: Mapping[str, Model],
    work: Mapping[str, float],
    streams: Sequence[StreamedPart],
    compared: Sequence[ByWindow],
    chosen: Mapping[str, Chosen],
    common: Plan,
) -> None:
    """README.md; a section without runs is left out."""
    use = SIZES[lab.profile]
    other = f" --data {lab.data}" if lab.data is not None else ""
    other += f" --tokenizer {lab.tokenizer}" if lab.tokenizer else ""
    modern = {name: model.title for name, model in known.items() if model.family == "modern" and model.part != "longer"}
    paper = {name: model.title for name, model in known.items() if model.family == "paper" and model.part != "longer"}
    longer = {name: model.title for name, model in known.items() if model.part == "longer"}
    reference, same = GPT if GPT in known else PAPER_GPT2, longer_name(GPT, use)
    save_page(
        lab.results,
        "Language modelling: perplexity against the chunk length",
        'Fig. "wikitext chunk" of *Sequential-Parallel Duality in Prefix-Scannable Models*.',
        f"`scannable reproduce wikitext --profile {lab.profile}{other}`; "
        "resolved configurations in `configurations/`, all numbers in `wikitext.csv`. Every token of the test split is "
        "scored once, the same tokens for every model, in windows of the length the model was trained at. "
        "Perplexities are the mean over seeds, and in brackets the least and the greatest. *Validation* is the best "
        f"evaluation in training, on the first {common.whole.evaluation.samples} windows of another split: other text "
        "in longer windows, so that it compares within a table only.",
        *missing_runs(lab.missing),
        "![perplexity against c](wikitext.png)",
        *_family("## Blocks that small models learn with", rows, modern, work, reference),
        *_findings(rows, use, known, "modern", GPT, work),
        *_family("## The paper's blocks", rows, paper, work, PAPER_GPT2),
        *_findings(rows, use, known, "paper", PAPER_GPT2, work),
        *_family(f"## Trained at {LONGER * use.context:,}", rows, longer, work, same),
        *_longer_findings(rows, known, work, same, common.whole),
        *_by_window(compared, known),
        *_streams(streams, known, use),
        "## What differs from the paper",
        _differences(lab, use, known, common),
        *_sweeps(lab, rows, known, chosen, common),
    )


def _family(
    heading: str, rows: Sequence[RunScore], titles: Mapping[str, str], work: Mapping[str, float], reference: str
) -> list[str]:
    against = perplexity(rows, reference)
    lines: list[list[object]] = []
    for name, title in titles.items():
        found = perplexity(rows, name)
        if found is None:
            continue
        mine = [row for row in rows if row.model == name and row.part != "sweep"]
        bits = [row.bits_per_byte for row in mine if row.bits_per_byte is not None]
        lines.append(
            [
                title,
                f"{mine[0].parameters:,}",
                found.count,
                f"{mine[0].learning_rate:g}",
                f"{work[name] / 1e6:.2f} M",
                f"{mine[0].tokens / 1e6:.2f} M",
                found.cell(3),
                "" if against is None else f"{found.mean / against.mean - 1:+.2%}",
                Spread.of(bits).cell(4) if bits else "",
                Spread.of([exp(row.validation_loss) for row in mine]).cell(3),
            ]
        )
    if not lines:
        return []
    head = ["model", "parameters", "seeds", "rate", "operations a token", "tokens", "perplexity"]
    gpt = "against GPT-2" if reference == PAPER_GPT2 else "against GPT"
    return [heading, table([*head, gpt, "bits per byte", "validation"], lines)]


def _findings(
    rows: Sequence[RunScore],
    use: Sizes,
    known: Mapping[str, Model],
    family: Family,
    reference: str,
    work: Mapping[str, float],
) -> list[str]:
    """What the numbers say about the paper's claim, and about ours."""
    said: list[str] = []
    measured = [perplexity(rows, psm_name(c, family)) for c in use.chunks]
    against = perplexity(rows, reference)
    if all(measured):
        means = [spread.mean for spread in measured if spread]
        changes = [later < earlier for earlier, later in pairwise(means)]
        course = "falls" if all(changes) else "neither falls nor rises" if any(changes) else "rises"
        said.append(f"Perplexity {course} monotonically with c from {use.chunks[0]} to {use.chunks[-1]}.")
        if against:
            said.append(
                f"At c = {use.chunks[-1]} it is {means[-1] / against.mean - 1:+.2%} from full attention's (the "
                f"paper's: {PAPER[psm_name(256, 'paper')] / PAPER[PAPER_GPT2] - 1:+.2%})."
            )
            widest = measured[-1]
            if widest and against.least <= widest.greatest and widest.least <= against.greatest and against.count > 1:
                said.append("The seeds of the two overlap, so that this does not tell them apart.")
    for name in HYBRIDS if family == "modern" else ():
        others = {"GPT": (GPT, against), "Mamba": (MAMBA, perplexity(rows, MAMBA))}
        if hybrid := perplexity(rows, name):
            compared = [
                f"{hybrid.mean / one.mean - 1:+.2%} from {title}'s, with {work[name] / work[other]:.2f} times its "
                "operations"
                for title, (other, one) in others.items()
                if one
            ]
            if compared:
                said.append(f"The {known[name].title}: {'; '.join(compared)}.")
    if said and family == "paper":
        given = "; ".join(f"{known[name].title}: {value:g}" for name, value in PAPER.items() if name in known)
        said.append(f"The paper's own, on another text with another tokenizer. {given}.")
    ratios = [work[name] / work[reference] for c in use.chunks if against and (name := psm_name(c, family)) in work]
    if said and ratios:
        said.append(
            "Operations are those of the forward pass, counted; with its prefix carried through Inf beside every "
            f"chunk, Transformer-PSM without recent chunks has {min(ratios):.2f} to {max(ratios):.2f} times those of "
            "full attention over the same window."
        )
    return [" ".join(said)] if said else []


def _longer_findings(
    rows: Sequence[RunScore], known: Mapping[str, Model], work: Mapping[str, float], gpt: str, recipe: Recipe[Any, Any]
) -> list[str]:
    """Those that are trained at the longer length beside GPT."""
    against = perplexity(rows, gpt)
    compared = [
        f"{found.mean / against.mean - 1:+.2%} with {work[name] / work[gpt]:.2f} times its operations ({model.title})"
        for name, model in known.items()
        if model.part == "longer" and name != gpt and against and (found := perplexity(rows, name))
    ]
    if not compared:
        return []
    model = known[gpt]
    short = perplexity(rows, GPT)
    worse = (
        f" GPT itself is {against.mean / short.mean - 1:+.2%} from what it has in windows of {known[GPT].context:,}: "
        "so short a training in long windows shows who learns sooner, not what each comes to."
        if short and against
        else ""
    )
    return [
        f"As many tokens a step as in shorter windows ({recipe.samples(model.context)} of these windows), and the "
        f"learning rates that were chosen there.{worse} Perplexity against GPT's at this length: {'; '.join(compared)}."
    ]


def _by_window(compared: Sequence[ByWindow], known: Mapping[str, Model]) -> list[str]:
    if not compared:
        return []
    lines = [
        [
            f"{known[one.hybrid].title}, against {known[one.gpt].title}",
            one.split,
            one.windows,
            f"{exp(one.mean) - 1:+.2%}",
            f"{exp(one.mean - 2 * one.error) - 1:+.2%} to {exp(one.mean + 2 * one.error) - 1:+.2%}",
            f"{one.better / one.windows:.0%}",
        ]
        for one in compared
    ]
    return [
        "## Window by window",
        "The hybrids that come nearest to GPT, the last seed of each, on every whole window of both splits: how far "
        "their perplexity is from GPT's, and two standard errors of that around it, by blocks of "
        f"{BLOCK:,} tokens (`windows.csv`). Where zero lies between, it cannot be told who is ahead. Another seed may "
        "move all of it.",
        table(["models", "split", "windows", "perplexity", "two standard errors", "windows where it is ahead"], lines),
    ]


def _streams(parts: Sequence[StreamedPart], known: Mapping[str, Model], use: Sizes) -> list[str]:
    if not parts:
        return []
    spans = sorted({(part.begin, part.end) for part in parts})
    lines: list[list[object]] = []
    for label, reading in readings(known, use).items():
        found, seeds = by_position(parts, label), len({part.seed for part in parts if part.model == label})
        if found:
            lines.append([reading.title, seeds, *(found[span].cell(3) if span in found else "" for span in spans)])
    one = (parts[0].model, parts[0].seed)
    count, left = divmod(sum(part.asked for part in parts if (part.model, part.seed) == one), use.stream)
    return [
        f"## Streams of {use.stream:,} tokens",
        f"The test split as {count} streams of {use.stream:,} tokens and one of the {left:,} that are left, read from "
        "state to state without a window: perplexity by position (`streams.csv`). Each column is other text, so that "
        "numbers compare within a column only. The positions of Transformer-PSM are those within a chunk and its "
        "prefix, at any place of the stream the same; those of attention go on, beyond all that it was trained at. "
        "*Keeping* so many: the same weights, each layer with a cache of as many positions as it was trained at.",
        "![perplexity by position](streams.png)",
        table(["model", "seeds", *(f"{begin:,} to {end:,}" for begin, end in spans)], lines),
    ]


def _differences(lab: Laboratory, use: Sizes, known: Mapping[str, Model], common: Plan) -> str:
    if lab.profile == "paper":
        return (
            "Every token is scored, also the first of each chunk; the tokenizer is trained on the text unless given; "
            "learning rates are swept; Mamba has as many epochs as the others, where the paper's has half of them."
        )
    task, chunks = common.whole.task, use.context // use.chunks[-1]
    passes = common.whole.steps * common.whole.batch_tokens / task.counts("train").tokens
    tokens = f"a byte-level BPE of {task.vocab_size:,} tokens" if task.tokenizer == "bpe" else f"`{task.tokenizer}`"
    return (
        f"- The text is `{lab.data or DATA[lab.profile]}`, as {tokens}, instead of WikiText-103; perplexities are per "
        "token and cannot be compared with the paper's, their order can.\n"
        f"- Small models on a CPU: width {use.width}, {use.layers} layers, of which Transformer-PSM has one in Agg; "
        f"Mamba has {use.mamba_layers}; {passes:.2g} times the tokens of the training text.\n"
        "- Two families. The first has rotary positions, RMSNorm, normed queries and keys and short convolutions of "
        "four tokens, and Muon as optimizer; the second the paper's learned positions (which start as sinusoids), "
        "LayerNorm and AdamW. In each, attention and Transformer-PSM have the same blocks. Mamba was swept with both "
        "optimizers, and has the one that the sweep took.\n"
        "- Every token is scored; the paper's code leaves out the first token of each chunk.\n"
        f"- As in the paper a window of {use.context} has {chunks} chunks of {use.chunks[-1]}: the second one's prefix "
        "is the first chunk itself, so that Agg takes no part, and this Transformer-PSM is attention with one layer "
        f"less, and sees the whole window. In windows of {LONGER * use.context:,} Agg works.\n"
        "- Mamba is this library's, which equals that of `transformers` number for number."
    )


def _sweeps(
    lab: Laboratory,
    rows: Sequence[RunScore],
    known: Mapping[str, Model],
    chosen: Mapping[str, Chosen],
    common: Plan,
) -> list[str]:
    titles = {
        name: f"{model.title}, the paper's blocks" if model.family == "paper" else model.title
        for name, model in known.items()
    }
    titles, (_, rates) = swept_titles(titles), swept(common, lab.profile)
    lines = sweep_table(rows, titles, rates, taken(chosen))
    if not lines:
        return []
    borrowed = "".join(
        f"; {known[name].title} has that of {known[known[name].rate_of].title}"
        for name in known
        if known[name].rate_of in (HYBRID, ALTERNATING) and known[name].rate_of != name and "-at-" not in name
    )
    return [
        "## Learning rates",
        f"Runs of {common.sweep_steps:,} steps with the same recipe; the lowest validation loss was taken. All chunk "
        f"lengths of a family, and their variants, use the learning rate of the one that was swept{borrowed}.",
        table(["model", "learning rate", "length", "validation loss"], lines),
        *at_the_edge(chosen, rates, titles),
    ]
