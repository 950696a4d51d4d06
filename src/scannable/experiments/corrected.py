"""The corrected paper: every departure of PAPER.md as a switch, and what each is worth; and the errata."""

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from statistics import fmean

from matplotlib.figure import Figure

from scannable.experiments.as_printed_config import AsPrintedConfig
from scannable.experiments.corrected_runs import RIGHT, SIZES, Sizes, recipes
from scannable.experiments.departures import Difference, calls, in_states, in_text, seconds, values
from scannable.experiments.errata import ERRATA
from scannable.experiments.figure import powers, save_figure, save_json, save_page, save_rows, table, tidy
from scannable.experiments.laboratory import Laboratory, Trained
from scannable.training.run_folder import TrainingError

SWITCHES: dict[str, tuple[str, str, str]] = {
    "causal": (
        "Agg is bidirectional; released code: causal",
        "bidirectional",
        "`agg_causal=True`",
    ),
    "literal": ("Alg. 1 and 2 call Agg(e, x)", "Agg(e, x) is x", "`literal_identity=True`, `scan(literal=True)`"),
    "refolding": (
        "Alg. 2 folds all roots at every emission",
        "the fold of each level is kept",
        "`scan.reference.refolding_counter`",
    ),
    "leaking": ("Alg. 4: Inf gets the state with its own chunk", "the state before it", "`prefix_of='own'`"),
    "late": ("Alg. 3: s_(i-1) of the exclusive scan", "s_i", "`prefix_of='late'`"),
    "scoring": (
        "released code: no first token of a chunk is scored",
        "every token is",
        "`experiments.corrected.perplexity_of`",
    ),
    "absolute": (
        "released code: learned positions from the start of the sequence",
        "positions of the 2c window",
        "`absolute=N, positions='none'`",
    ),
    "init": ("GPT-2's start, N(0, 0.02)", "N(0, 1/fan_in), elements of unit variance", "`init_std=0.02`"),
    "swapped": (
        "released scan 1: downsweep with swapped operands",
        "`scannable.scan`",
        "`tree='swapped'`, `experiments.wrong_scans`",
    ),
    "forgetful": (
        "released scan 2: the right edge forgets what is before it",
        "`scannable.scan`",
        "`tree='forgetful'`, `experiments.wrong_scans`",
    ),
    "sequential": (
        "released code: trains by the counter, chunk after chunk",
        "one call a level of the tree",
        "`BinaryCounter` in the loop",
    ),
}
"""For each: what is printed, what is done here, and how to have the printed one."""


def run(lab: Laboratory) -> None:
    """Train what needs training, measure, and leave CSV, figure and page."""
    use = SIZES[lab.profile]
    trained = lab.train(recipes(use, lab.data, lab.tokenizer))
    if lab.missing:
        raise TrainingError(f"{', '.join(lab.missing[:3])} and others are not trained; leave --only-finished out")
    lab.console.print(f"{lab.name}: measuring", highlight=False)
    rows = [*values(), *calls(), *seconds(), *in_text(trained, use), *in_states(trained, use)]
    save_rows(rows, lab.results / "corrected.csv")
    save_json(asdict(use), lab.results / "sizes.json")
    save_figure(draw(rows, use), lab.results, "corrected")
    save_page(lab.results, "The paper, corrected", *_page(lab, use, rows, trained))


def draw(rows: Sequence[Difference], use: Sizes) -> Figure:
    """Perplexity over that of the corrected model on the left, error of state tracking by length on the right."""
    figure = Figure(figsize=(11, 4.4), layout="constrained")
    left, right = figure.subplots(1, 2)
    quantities = [
        ("causal", "perplexity", "causal Agg"),
        ("literal", "perplexity", "Agg(e, x) called"),
        ("scoring", "perplexity", "first tokens not scored"),
        ("init", "perplexity", "started at 0.02"),
        ("late", "perplexity", "prefix one chunk late"),
        ("absolute", "perplexity", "absolute positions"),
        ("absolute", f"perplexity at {use.longer:,} tokens", f"the same at {use.longer:,} tokens"),
        ("leaking", "perplexity", "leaking, as scored"),
        ("leaking", "perplexity of its weights when Inf gets what a stream has", "leaking, as streamed"),
    ]
    for place, (switch, quantity, _) in enumerate(quantities):
        ratios = [row.printed / row.corrected for row in _of(rows, switch, quantity)]
        left.plot(ratios, [place] * len(ratios), "o", color="C3" if switch == "leaking" else "C0", alpha=0.7)
    left.axvline(1, color="grey", linewidth=1)
    left.set(xlabel="perplexity, as printed / corrected", xscale="log", title=f"Text, c = {use.chunk_length}")
    left.set_yticks(range(len(quantities)), [title for _, _, title in quantities])
    left.invert_yaxis()
    lengths = [use.lengths[-1], *use.beyond]
    lines = {RIGHT: "corrected", "literal": "Agg(e, x) called", "absolute": "absolute positions"}
    lines |= {
        "init": "started at 0.02",
        "late": "prefix one chunk late",
        "swapped": "swapped",
        "forgetful": "forgetful",
    }
    for i, (name, title) in enumerate(lines.items()):
        switch = name if name != RIGHT else "late"
        found = [
            fmean(row.corrected if name == RIGHT else row.printed for row in _of(rows, switch, f"error at {n:,}, %"))
            for n in lengths
        ]
        right.plot(lengths, found, "o-" if name == RIGHT else ".--", color=f"C{i}", label=title)
    right.set(
        xlabel="length (tokens)", ylabel="token error (%), mean of the seeds", title="State tracking in S3, c = 1"
    )
    powers(right, lengths)
    for axes in (left, right):
        tidy(axes)
    return figure


def _of(rows: Sequence[Difference], switch: str, quantity: str) -> list[Difference]:
    return [row for row in rows if (row.switch, row.quantity) == (switch, quantity)]


def _page(lab: Laboratory, use: Sizes, rows: Sequence[Difference], trained: Mapping[str, Trained]) -> list[str]:
    text, states = trained[f"text-{RIGHT}-{use.seeds[0]}"], trained[f"states-{RIGHT}-{use.seeds[0]}"]
    model: AsPrintedConfig = text.recipe.model
    keys = list(dict.fromkeys((row.switch, row.quantity) for row in rows))
    lines = []
    for switch, (printed, here, how) in SWITCHES.items():
        mine = [key for key in keys if key[0] == switch]
        for i, (_, quantity) in enumerate(mine):
            found = _of(rows, switch, quantity)
            lines.append(
                [
                    *((f"**{switch}**: {printed}", here, how) if i == 0 else ("", "", "")),
                    quantity,
                    _numbers([row.corrected for row in found]),
                    _numbers([row.printed for row in found]),
                ]
            )
    other = f" --data {lab.data}" if lab.data is not None else ""
    return [
        "One page to hold beside *Sequential-Parallel Duality in Prefix-Scannable Models*: every place where its text, "
        "or the code released with it, is not taken literally here, as a switch that takes it literally again, and the "
        "difference that it makes; then the errata, each with a counterexample that runs.",
        f"    scannable reproduce corrected --profile {lab.profile}{other}",
        "![perplexity and error, as printed and as corrected](corrected.png)",
        "## Switch by switch",
        f"**These are short runs**, and show directions, not results: a Transformer-PSM of width {model.width} with "
        f"c = {use.chunk_length}, {model.agg_layers} + {model.inf_layers} layers and "
        f"{text.result['parameters']:,} parameters, {use.text_steps} steps on {text.result['tokens'] / 1e6:.2f} M "
        f"tokens of `{lab.data or use.data}` in windows of {use.context}; and one with c = 1 and "
        f"{states.result['parameters']:,} parameters that learns products in S3, the smallest group whose order "
        f"matters, to length {use.lengths[-1]} in {use.state_steps} steps (S5 takes an hour, not a minute). Seeds "
        f"{', '.join(map(str, use.seeds))}, in that order where there are several numbers. A difference below the "
        "spread of the seeds is none. Perplexities are per token of the test split. Configurations are in "
        "`configurations/`, all numbers in `corrected.csv`.",
        table(["printed", "here", "as printed by", "quantity", "corrected", "as printed"], lines),
        _remarks(rows, use),
        "## Errata",
        "To the theorem, its corollaries and the algorithms. The counterexamples are functions of "
        "`experiments/errata.py`, which the tests run; what they found is the last column.",
        table(
            ["place", "printed", "true", "counterexample"],
            [[e.place, e.printed, e.true, e.counterexample()] for e in ERRATA],
        ),
        "Eq. C1's space of training has a page of its own: `scannable reproduce space`. The departures of PAPER.md "
        "that are not here concern Table 1, where a row is written another way than its authors' code has it; the "
        "tests compare each row with that code.",
    ]


def _numbers(found: Sequence[float]) -> str:
    """In one cell, by seed; one number where all are the same."""
    shown = [
        f"{value:,.0f}" if value == round(value) else f"{value:.2f}" if value >= 1 else f"{value:.3g}"
        for value in found
    ]
    return shown[0] if len(set(shown)) == 1 else ", ".join(shown)


def _remarks(rows: Sequence[Difference], use: Sizes) -> str:
    def mean(switch: str, quantity: str, side: str = "printed") -> float:
        return fmean(getattr(row, side) for row in _of(rows, switch, quantity))

    def change(switch: str, quantity: str = "perplexity") -> str:
        return f"{mean(switch, quantity) / mean(switch, quantity, 'corrected') - 1:+.1%}"

    further = f"perplexity at {use.longer:,} tokens"
    best = [row.corrected for row in _of(rows, "causal", "perplexity")]
    streamed = "perplexity of its weights when Inf gets what a stream has"
    return f"""What to read in it:

- *The seeds of the corrected language model* lie {max(best) / min(best) - 1:.1%} apart: differences in perplexity below
  that are noise. On average causal attention in Agg makes {change("causal")}, calling Agg(e, x) {change("literal")},
  a start at 0.02 {change("init")}, a prefix one chunk late {change("late")}.
- *At c = 1 with one layer a causal Agg is the bidirectional one*: the token that is kept sees both anyway. So the
  paper's state tracking does not depend on the mask; its language models do.
- *The leak* shows as a perplexity of {mean("leaking", "perplexity"):.2f}, which no stream can have: the same weights
  get {mean("leaking", streamed):.1f} when Inf is given what exists at decoding time. And Alg. 4 answers for the first
  token of a chunk only when the whole chunk is there, {use.chunk_length} tokens late.
- *Scoring (c-1)/c of the tokens* changes the perplexity of the same weights by {change("scoring")}.
- *Absolute positions* make {change("absolute")} at the trained length and {change("absolute", further)} at
  {use.longer // use.context} times that length, where they have never been trained.
- *Both released scans* return wrong prefixes, and what is learned with them is another function in a stream, which
  folds along the right tree."""
