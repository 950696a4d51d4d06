"""State tracking: figures, tables and the page, from whatever runs are there."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from scannable.experiments.choice import Chosen, at_the_edge, swept_titles, taken
from scannable.experiments.figure import missing_runs, powers, save_page, table, tidy
from scannable.experiments.laboratory import Laboratory
from scannable.experiments.long_reading import ReadFar
from scannable.experiments.profile import Profile
from scannable.experiments.scores import LEARNED, RunScore, error_by_length, errors_by_seed, sweep_table
from scannable.experiments.state_tracking_noise import FactorOfRun, noise_section
from scannable.experiments.state_tracking_runs import (
    DIRECT,
    EARLIER,
    ELEMENTS,
    FURTHER,
    GPT2,
    HELPED,
    LATER,
    LESS,
    LSTM_NOISE,
    MAMBA,
    PSM,
    TITLES,
    WITHOUT,
    Setting,
    direct_name,
    generator_lengths,
    generators_name,
    longer_name,
    swept,
)
from scannable.recipes.state_tracking import Aid, helped

SHOWN = (18, 32, 64, 128, 256, 512, 1024, 4096)
"""Lengths in the page's tables."""
APART = 0.2
"""Errors of seeds that differ by more are drawn seed by seed."""
PAPER_HOLDS = 160
"""To where the paper's Transformer-PSM has a low error."""
AIDS: dict[Aid, str] = {
    "unit-states": "without unit states",
    "noise": "without noise on the states",
    "agg-from-inf": "without starting Agg from Inf",
}
PUBLISHED: dict[str, dict[int, float]] = {
    "PD-SSM (theirs)": {4: 100.0, 8: 100.0, 32: 1.07},
    "Gated DeltaProduct (theirs)": {4: 88.7, 8: 57.4, 32: 1.23},
}
"""Accuracies in percent by number of generators that others report, trained to 40, tested from 40 to 256."""
FORMAL_LANGUAGES = {"LSTM": 100.0, "PD-SSM": 98.8, "Gated DeltaProduct": 79.5, "RWKV-7": 54.6}
"""Mean accuracies in percent over four formal languages that the same authors report."""


@dataclass(frozen=True)
class Defect:
    """What a checkpoint on the way has learned: how far Agg is from associative, and the error at some lengths."""

    step: int
    associativity_defect: float
    error_18: float
    error_64: float
    error_180: float


def draw(rows: Sequence[RunScore], use: Setting) -> Figure:
    """Error against length: all models on the left, what helps and what longer training does on the right."""
    figure = Figure(figsize=(13, 5.8), layout="constrained")
    left, right = figure.subplots(1, 2, sharey=True)
    colors = {name: f"C{i}" for i, name in enumerate(TITLES)}
    for name, title in TITLES.items():
        line = "-" if name == HELPED else "--" if name == PSM else "-."
        _line(left, rows, name, "final", line, colors[name], title)
    # A model has one colour on both sides; what is only here has others.
    _line(right, rows, HELPED, "final", "-", colors[HELPED], TITLES[HELPED])
    for (aid, title), color in zip(AIDS.items(), ("black", "teal", "goldenrod"), strict=True):
        _line(right, rows, WITHOUT[aid], "ablation", "--", color, title)
    _line(right, rows, PSM, "final", "--", colors[PSM], TITLES[PSM])
    for name in FURTHER:
        for longer, line in ((longer_name(use, name), "-."), (direct_name(use, name), ":")):
            _line(right, rows, longer, "longer", line, colors[name], longer_titles(use).get(longer, longer))
    trained = use.recipe.curriculum.lengths[-1]
    for axes in (left, right):
        axes.axvline(trained, color="grey", linewidth=1, linestyle=":")
        axes.text(trained * 1.03, 101, f"trained to {trained} at most", color="grey", fontsize=8, va="bottom")
        axes.set(xlabel="length (tokens)", ylabel="token error (%)", ylim=(-2, 108))
        powers(axes, [8, *(n for n in SHOWN if n <= use.recipe.evaluation.lengths[-1])])
        tidy(axes, legend="below")
    left.axvline(PAPER_HOLDS, color="grey", linewidth=1, linestyle=":")
    left.text(
        PAPER_HOLDS * 1.03, 101, f"the paper: low error past {PAPER_HOLDS}", color="grey", fontsize=8, va="bottom"
    )
    left.set_title("All models")
    right.set_title("Aids left out one by one; opponents trained longer")
    return figure


def _line(axes: Axes, rows: Sequence[RunScore], model: str, part: str, line: str, color: str, title: str) -> None:
    found = error_by_length(rows, model, part)
    if not found:
        return
    mean, low, high = ([100 * getattr(e, which) for e in found.values()] for which in ("mean", "least", "greatest"))
    if max(one.greatest - one.least for one in found.values()) > APART:
        # No seed is near such a mean, and none within such a band.
        for i, errors in enumerate(errors_by_seed(rows, model, part).values()):
            label = f"{title}, seed by seed" if i == 0 else None
            axes.plot(list(errors), [100 * e for e in errors.values()], line, marker=".", color=color, label=label)
        return
    axes.plot(list(found), mean, line, marker=".", color=color, label=title)
    axes.fill_between(list(found), low, high, color=color, alpha=0.15, linewidth=0)


def draw_defects(rows: Sequence[Defect]) -> Figure:
    """Error and associativity defect along the training of the helped model."""
    figure = Figure(figsize=(8, 4), layout="constrained")
    axes = figure.subplots()
    steps = [row.step for row in rows]
    axes.plot(steps, [row.associativity_defect for row in rows], "k.-", label="associativity defect of Agg")
    for i, length in enumerate((18, 64, 180)):
        errors = [getattr(row, f"error_{length}") for row in rows]
        axes.plot(steps, errors, ".-", color=f"C{i}", label=f"error at {length}")
    axes.set(xlabel="step", ylabel="defect (1.41: unrelated), error (1: all wrong)", yscale="log")
    tidy(axes)
    return figure


def write_page(
    lab: Laboratory,
    rows: Sequence[RunScore],
    along: Sequence[Defect],
    far: Sequence[ReadFar],
    factors: Sequence[FactorOfRun],
    use: Setting,
    best: Mapping[str, Chosen],
) -> None:
    """README.md; a section without runs says so or is left out."""
    final = [row for row in rows if row.part == "final"]
    samples = f", {final[0].samples} test sequences at each length" if final else ""
    save_page(
        lab.results,
        "State tracking in S5: error by length",
        'Fig. "state tracking" of *Sequential-Parallel Duality in Prefix-Scannable Models*: one token for each of the '
        "120 permutations, the target at each position their product so far; trained on lengths up to "
        f"{use.recipe.curriculum.lengths[-1]}.",
        f"`scannable reproduce s5 --profile {lab.profile}`; resolved configurations in `configurations/`, all numbers "
        f"in `s5.csv`{samples}. Each seed has weights and samples of its own; choices were tried on samples of "
        f"another seed{'' if lab.profile == 'paper' else ', but for the one that is named below'}.",
        *missing_runs(lab.missing),
        "![error by length](s5.png)",
        "Token error in percent over all positions of all test sequences: the mean over seeds, and in brackets the "
        "least and the greatest:",
        table(*_errors(rows, TITLES, "final")),
        "The paper's curves (width 768, Mamba 1,024, on a GPU): Transformer-PSM keeps a low error past 160 tokens; "
        "GPT-2 and Mamba fail soon after 18. " + _not_learned(rows, use),
        *_far(far, use),
        *_ablation(rows),
        *noise_section(rows, far, factors, use.recipe.curriculum.lengths[-1]),
        *_longer(rows, use),
        *_generators(rows, use),
        *_associativity(along),
        "## What differs from the paper",
        _differences(lab.profile, use),
        *_sweeps(rows, use, best),
    )


def _errors(
    rows: Sequence[RunScore], titles: Mapping[str, str], part: str, shown: Sequence[int] = SHOWN
) -> tuple[list[str], list[list[object]]]:
    """Head and lines of a table of errors by length, of the models that have runs."""
    by = {name: error_by_length(rows, name, part) for name in titles}
    lengths = [length for length in shown if any(length in found for found in by.values())]
    lines: list[list[object]] = []
    for name, title in titles.items():
        mine = [row for row in rows if row.model == name and row.part == part]
        if mine:
            lines.append(
                [
                    title,
                    f"{mine[0].parameters:,}",
                    len({row.seed for row in mine}),
                    f"{mine[0].learning_rate:g}",
                    f"{max(row.tokens for row in mine) / 1e6:.1f} M",
                    min(row.trained_to for row in mine),
                    *(by[name][length].cell(factor=100) if length in by[name] else "" for length in lengths),
                ]
            )
    return [
        "model",
        "parameters",
        "seeds",
        "rate",
        "tokens, at most",
        "reached length, at least",
        *(f"{n:,}" for n in lengths),
    ], lines


def _not_learned(rows: Sequence[RunScore], use: Setting) -> str:
    """Which models did not learn the longest length they were trained at."""
    trained = use.recipe.curriculum.lengths[-1]
    final = [row for row in rows if row.part == "final"]
    listed: list[str] = []
    for name, title in TITLES.items():
        mine = [row for row in final if row.model == name and row.length == trained]
        failed = [row for row in mine if row.error > LEARNED]
        if failed:
            which = "" if len(failed) == len(mine) else f", {len(failed)} of {len(mine)} seeds"
            mean = fmean(row.error for row in failed)
            listed.append(f"{title} {mean:.0%} (its curriculum reached {min(r.trained_to for r in failed)}{which})")
    if not listed:
        return ""
    # With no such limit all steps may be spent at the first length.
    lengths, steps = use.recipe.curriculum.lengths, use.recipe.curriculum.steps or use.recipe.steps
    return (
        f"Models that make more than {LEARNED:.0%} errors at {trained}: {', '.join(listed)}. One that does not learn a "
        f"length goes on after {steps:,} steps, so that one which learns none has seen lengths to "
        f"{lengths[min(use.recipe.steps // steps, len(lengths)) - 1]} when its {use.recipe.steps:,} steps end. Of "
        "these the figure shows what was learned within the same tokens, not how far it generalises."
    )


def _far(far: Sequence[ReadFar], use: Setting) -> list[str]:
    if not far:
        return []
    titles = TITLES | longer_titles(use)
    lines = [
        [
            titles.get(one.model, one.model),
            one.seed,
            f"{one.rows} x {one.length:,}",
            f"{one.errors:,}",
            "none" if one.first_error is None else f"{one.first_error + 1:,}",
            f"{one.nbytes:,}",
            f"{one.seconds / 60:.1f}",
        ]
        for one in far
    ]
    return [
        "## A million tokens and more",
        f"Read by `extend` in pieces of {far[0].piece:,} tokens, from state to state, on samples that nothing else was "
        "trained, chosen or tested with, and compared at every token with the product that the task computes beside it "
        "from its multiplication table (`reading.csv`). The bytes are the most that one stream was seen to hold, just "
        "before a power of two. Helped models are read, and every other one with at most 1% errors at the longest test "
        "length.",
        table(["model", "seed", "tokens", "errors", "first wrong token", "bytes held", "minutes, one core"], lines),
    ]


def _ablation(rows: Sequence[RunScore]) -> list[str]:
    titles = {HELPED: "all three aids"} | {WITHOUT[aid]: title for aid, title in AIDS.items()} | {PSM: "none"}
    head, with_all = _errors(rows, titles, "final")
    _, without = _errors(rows, titles, "ablation")
    if not without:
        return []
    width = len(head)
    lines = [*with_all[:1], *without, *with_all[1:]]
    return [
        "## What helps: the three aids one by one",
        "Each row leaves out one aid and nothing else; none is the plain model, which has no stage for Inf alone and "
        "half of the steps a length at most. Noise on the states is kin to arXiv 2507.02782 (Buitrago Ruiz "
        "and Gu), where recurrent models that start from noisy states in training go on beyond its lengths.",
        table(head, [line for line in lines if len(line) == width]),
    ]


def longer_titles(use: Setting) -> dict[str, str]:
    """Of the opponents that were trained longer, by a curriculum or without one."""
    longest = use.longer[-1]
    by_curriculum = {longer_name(use, name): f"{TITLES[name]}, trained to {longest}" for name in FURTHER}
    return by_curriculum | {direct_name(use, name): f"{TITLES[name]}, {longest} from the start" for name in DIRECT}


def _longer(rows: Sequence[RunScore], use: Setting) -> list[str]:
    titles, longest = longer_titles(use), use.longer[-1]
    head, lines = _errors(rows, titles, "longer")
    if not lines:
        return []
    stopped = {row.model: row.trained_to for row in rows if row.part == "longer" and row.trained_to < longest}
    never = "".join(
        f" The curriculum of {titles[name]} did not come further than {length}: of what it learns at {longest} this "
        "row shows nothing."
        for name, length in stopped.items()
    )
    direct = [direct_name(use, name) for name in DIRECT]
    never += "".join(
        f" {titles[row.model]}: not learned, with {row.error:.2%} wrong at {longest}, where a guess has "
        f"{1 - 1 / ELEMENTS:.2%}."
        for row in rows
        if row.part == "longer" and row.model in direct and row.length == longest and row.error > LEARNED
    )
    return [
        f"## Opponents trained to {longest}",
        f"With as many steps and the same rules, but a curriculum that goes on to {longest}; or, *from the start*, at "
        f"{longest} alone, as others train, with the learning rate of the first table, which was chosen at the first "
        "length of the curriculum. For DeltaProduct trained on S5 at 128 its authors (arXiv 2502.10297) report about "
        f"170 tokens right and about half of them at 330; theirs is not rerun here.{never}",
        table(head, lines),
    ]


def _generators(rows: Sequence[RunScore], use: Setting) -> list[str]:
    part = [row for row in rows if row.part == "generators"]
    if not part:
        return []
    lengths = sorted({row.length for row in part if row.length >= use.generator_lengths[-1]})
    lines: list[list[object]] = []
    for count in use.generators:
        for name in (HELPED, *FURTHER):
            found = error_by_length(rows, generators_name(name, count), "generators")
            if found:
                shown = [100 - 100 * found[length].mean for length in lengths]
                lines.append([count, TITLES[name], *(f"{a:.2f}" for a in shown), f"{sum(shown) / len(shown):.2f}"])
        for name, published in PUBLISHED.items():
            if count in published:
                lines.append([count, name, *("" for _ in lengths), f"{published[count]:g}"])
    begins = ", ".join(
        f"at length {generator_lengths(use, count)[0]} with {count} generators" for count in use.generators
    )
    *few, most = map(str, use.generators)
    counts = f"{', '.join(few)} or {most}" if few else most
    languages = ", ".join(f"{name} {accuracy:g}%" for name, accuracy in FORMAL_LANGUAGES.items())
    return [
        "## In the protocol of others: a few generators",
        f"Words over {counts} elements that generate S5, trained to {use.generator_lengths[-1]}, tested from there to "
        f"{use.generator_tests[-1]}; accuracy in percent over all positions, one seed. Rows marked *theirs* are "
        "published figures (PD-SSM: arXiv 2509.22284), for models of their sizes and budgets, over the lengths they "
        "chose; nothing of them was rerun here. Theirs seem to count the last token of a word alone, and to have a "
        "loss there alone, as the released code for other tasks does; ours count every token and have a loss at each, "
        "which is easier. So the two kinds of rows show an order of magnitude beside each other, not a contest.",
        "Ours have the recipe, the tokens and the learning rate of the first table; their "
        f"curriculum begins {begins}, as shorter words are too few to share between the splits. The noise on the "
        f"states of Transformer-PSM is {LESS:g} of their size here, and grows from {LATER.start:.0%} to "
        f"{LATER.start + LATER.over:.0%} of the run: in trials with 8 generators, noise as large as the states made "
        "the model worse once it had learned. The trials had the samples of seed 0, and were looked at on their test "
        f"split as well; the table has the samples of seed {use.generator_seed}.",
        table(["generators", "model", *(f"{n:,}" for n in lengths), "mean"], lines),
        "On four formal languages, a task that is not run here, the authors of PD-SSM report as the mean accuracy: "
        f"{languages}.",
    ]


def _associativity(along: Sequence[Defect]) -> list[str]:
    if not along:
        return []
    lines = [
        [f"{d.step:,}", f"{d.associativity_defect:.3f}", *(f"{e:.2%}" for e in (d.error_18, d.error_64, d.error_180))]
        for d in along
    ]
    return [
        "## How associative Agg becomes",
        "Nothing makes Agg associative, and the tree is fixed, so nothing has to. But S5 is. The defect "
        "|(ab)c - a(bc)| over the norm of both, on three random elements, measures how far Agg is from associative: "
        f"{along[-1].associativity_defect:.2f} at the end of the helped model's training (first seed, "
        "`associativity.csv`). Two states may stand for the same permutation without being equal, so it need not come "
        "to zero; and a low defect alone says nothing, for an Agg that returned its right half would have none.",
        "![associativity defect](associativity.png)",
        table(["step", "defect", "error at 18", "error at 64", "error at 180"], lines),
    ]


def _sweeps(rows: Sequence[RunScore], use: Setting, best: Mapping[str, Chosen]) -> list[str]:
    titles, (_, rates) = swept_titles(TITLES), swept(use)
    lines = sweep_table(rows, titles, rates, taken(best))
    if not lines:
        return []
    return [
        "## Optimizers and learning rates of the opponents",
        f"Runs of {use.sweep_steps:,} steps with the same recipe, on samples of another seed; the one that reached the "
        "longest length, then the lowest validation loss, was trained to the end.",
        table(["model", "learning rate", "reached length", "validation loss there"], lines),
        *at_the_edge(best, rates, titles),
    ]


def _differences(profile: Profile, use: Setting) -> str:
    curriculum, more, small = use.recipe.curriculum, helped(use.recipe), profile != "paper"
    tried = (
        " (three other courses were tried on other samples, and left half-way, by their validation error)"
        if small
        else ""
    )
    help_ = (
        "- *Helped* adds three things to Transformer-PSM: Agg starts from Inf's weights once Inf can multiply two "
        "elements (the callback `AggFromInf`; for that there is one more stage at the first length, and up to "
        f"{more.curriculum.steps:,} steps a length); what Agg returns is brought to unit size (`--model.unit-states`); "
        f"and in training it has Gaussian noise on it, growing to {more.model.state_noise:g} of its size over the "
        "first half of the run (`--model.state-noise`, the callback `GrowingStateNoise`). The opponents have no Agg to "
        "be helped, but an LSTM can have noise as well, and the row of that name has it: on h and c before every "
        "token, growing to "
        f"{LSTM_NOISE:g} of the size of each over the first {EARLIER.over:.0%} of the run{tried}.\n"
    )
    if not small:
        return (
            "- Sizes and schedule are the paper's; Agg is bidirectional, error is over the whole test set, and the "
            f"learning rates of the opponents are swept.\n{help_}"
        )
    gpt2, mamba = use.opponents[GPT2], use.opponents[MAMBA]
    return (
        f"- Small models on a CPU: width {gpt2.width} instead of 768, {len(gpt2.layers)} layers for GPT-2 instead of "
        f"12, {len(mamba.layers)} for Mamba instead of 48 of width 1,024, Muon or AdamW at a rate that falls late, "
        f"about {use.recipe.batch_tokens:,} tokens a step. The paper's Mamba is by far its largest model; here the "
        "table says how large each is.\n"
        "- All models have the same task, steps, schedule, average of the weights and rules of the curriculum (lengths "
        f"{', '.join(map(str, curriculum.lengths))}; on when the validation error is below {curriculum.below[0]:.0%}, "
        f"learned or not after {curriculum.steps:,} steps). How many samples a step has depends on the length it is "
        "at, so the tokens seen differ a little.\n"
        f"{help_}"
        "- The plain recipe and what helps were found in thirteen trials of Transformer-PSM on other samples, most of "
        "them stopped early, five judged by the test split of the trials' seed and the last four by its validation "
        "split; its optimizer and rate in ten more, and the noise in three, judged by the validation split. The noise "
        "was made larger because models with less of it, trained before on the samples of seeds 0 to 2, erred "
        "far beyond the test lengths, on the test split too: seeds 3 and 4 alone have samples that no choice has seen. "
        "The opponents had the sweep of optimizers and learning rates and no such search, but for the noise of the "
        "LSTM. The LSTM with noise is the only one of them with more than one seed, which was decided when the first "
        "results were known.\n"
        "- DeltaProduct has one layer with four reflections a token, which make any permutation of five things; LSTM, "
        "DeltaNet, RWKV-7 and Mamba have two layers.\n"
        "- GPT-2 has learned positions up to the longest test length, of which it saw 18 in training; the variant "
        "without positions has none to miss.\n"
        "- Errors are those of the weights at the end of a run; learning rates were chosen by the best evaluation.\n"
        "- Mamba is this library's, which equals that of `transformers` number for number and is faster on a CPU."
    )
