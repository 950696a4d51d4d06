"""The corrected paper: every departure of PAPER.md as a switch, and what each is worth; and the errata."""

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from statistics import fmean

from matplotlib.figure import Figure

from scannable.experiments.as_printed_config import AsPrintedConfig
from scannable.experiments.corrected_runs import RIGHT, SIZES, Sizes, recipes
from scannable.experiments.departures import (
    IDENTITY_CALLED,
    Difference,
    calls,
    in_s5,
    in_states,
    in_text,
    seconds,
    values,
)
from scannable.experiments.errata import ERRATA
from scannable.experiments.figure import save_figure, save_json, save_page, save_rows, table, tidy
from scannable.experiments.laboratory import Laboratory, Trained
from scannable.training.run_folder import TrainingError

STREAMED = "perplexity of its weights when Inf gets what a stream has"
STATES = {
    RIGHT: "corrected",
    "literal": "Agg(e, x) called",
    "absolute": "absolute positions",
    "init": "started at 0.02",
    "late": "prefix one chunk late",
    "swapped": "swapped scan",
    "forgetful": "forgetful scan",
}
"""What tracks states, in the figure's words."""
SWITCHES: dict[str, tuple[str, str, str]] = {
    "causal": (
        "Agg is bidirectional; released code: causal",
        "bidirectional",
        "`agg_causal=True`",
    ),
    "literal": ("Alg. 1 and 2 call Agg(e, x)", "Agg(e, x) is x", "`literal_identity=True`, `scan(literal=True)`"),
    "refolding": (
        "Alg. 2 folds all roots at every emission (counted here without its calls of Agg(e, x))",
        "the fold of each level is kept",
        "`scan.reference.refolding_counter`",
    ),
    "leaking": ("Alg. 4: Inf gets the state with its own chunk", "the state before it", "`prefix_of='own'`"),
    "late": ("Alg. 3: s_(i-1) of the exclusive scan", "s_i", "`prefix_of='late'`"),
    "scoring": (
        "released code: no first token of a chunk is scored",
        "every token is",
        "`experiments.departures.perplexity_of`",
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
    if lab.recorded:
        raise TrainingError(
            "corrected measures with the weights of its runs, which no record has; leave --recorded out"
        )
    trained = lab.train(recipes(use, lab.data, lab.tokenizer))
    if lab.missing:
        raise TrainingError(f"{', '.join(lab.missing[:3])} and others are not trained; leave --only-finished out")
    lab.console.print(f"{lab.name}: measuring", highlight=False)
    rows = [*values(), *calls(), *seconds(), *in_s5(), *in_text(trained, use), *in_states(trained, use)]
    save_rows(rows, lab.results / "corrected.csv")
    save_json(asdict(use), lab.results / "sizes.json")
    save_figure(draw(rows, use), lab.results, "corrected")
    lab.leave_records()
    save_page(lab.results, "The paper, corrected", *_page(lab, use, rows, trained))


def draw(rows: Sequence[Difference], use: Sizes) -> Figure:
    """Perplexity over that of the corrected model on the left, error of state tracking on the right; a dot a seed."""
    figure = Figure(figsize=(11.5, 4.2), layout="constrained")
    left, right = figure.subplots(1, 2)
    texts = {
        ("causal", "perplexity"): "causal Agg",
        ("literal", "perplexity"): "Agg(e, x) called",
        ("scoring", "perplexity"): "first tokens not scored",
        ("late", "perplexity"): "prefix one chunk late",
        ("init", "perplexity"): "started at 0.02",
        ("absolute", "perplexity"): "absolute positions",
        ("absolute", f"perplexity at {use.longer:,} tokens"): f"the same at {use.longer:,} tokens",
    }
    for place, key in enumerate(texts):
        ratios = [row.printed / row.corrected for row in _of(rows, *key)]
        left.plot(ratios, [place] * len(ratios), "o", color="C0", alpha=0.7)
    left.axvline(1, color="grey", linewidth=1)
    scored, streamed = (
        fmean(row.printed / row.corrected for row in _of(rows, "leaking", quantity))
        for quantity in ("perplexity", STREAMED)
    )
    left.set(xlabel="perplexity, as printed / corrected", title=f"Text, c = {use.chunk_length}")
    left.text(
        0.97, 0.95, f"off the scale: leaking,\n{scored:.2f} as scored, {streamed:.0f} as streamed",
        transform=left.transAxes, ha="right", va="top", fontsize=9, color="C3",
    )  # fmt: skip
    left.set_yticks(range(len(texts)), list(texts.values()))
    for length, look in ((use.lengths[-1], "none"), (use.beyond[-1], "full")):
        for place, name in enumerate(STATES):
            errors = state_errors(rows, name, length)
            label = f"at {length:,} tokens" if place == 0 else None
            right.plot(
                errors, [place] * len(errors), "o", color="C2", fillstyle=look, label=label, markersize=8, alpha=0.8
            )
    right.set(
        xlabel="token error (%)", title=f"State tracking in S3, c = 1, trained to {use.lengths[-1]}", xlim=(-3, 100)
    )
    right.set_yticks(range(len(STATES)), list(STATES.values()))
    for axes in (left, right):
        axes.invert_yaxis()
        tidy(axes)
    return figure


def state_errors(rows: Sequence[Difference], name: str, length: int) -> list[float]:
    """Of each seed, in percent."""
    found = _of(rows, "late" if name == RIGHT else name, f"error at {length:,}, %")
    return [row.corrected if name == RIGHT else row.printed for row in found]


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
        f"matters, to length {use.lengths[-1]} in {use.state_steps} steps (S5 takes many times as long). Seeds "
        f"{', '.join(map(str, use.seeds))}, in that order where there are several numbers. A difference below the "
        "spread of the seeds is none, and milliseconds waver with what else the machine does. Perplexities are per "
        "token of the test split. Configurations are in `configurations/`, all numbers in `corrected.csv`.",
        table(["printed", "here", "as printed by", "quantity", "corrected", "as printed"], lines),
        _remarks(rows, use),
        "## Errata",
        "To the theorem, its corollaries and the algorithms. The counterexamples are functions of "
        "`experiments/errata.py`, which the tests run; what they found is the last column.",
        table(
            ["place", "printed", "true", "counterexample"],
            [[e.place, e.printed, e.true, e.counterexample()] for e in ERRATA],
        ),
        "Eq. C1's space of training has a page of its own: `scannable reproduce space`; how the projection of "
        "Agg starts is a row of `scannable reproduce mqar`. The other departures of PAPER.md that are not here concern "
        "Table 1, where a row is written another way than its authors' code has it; the "
        "tests compare each row with that code.",
    ]


def _numbers(found: Sequence[float]) -> str:
    """In one cell, by seed; one number where all are the same."""
    shown = [f"{value:,.0f}" if value == round(value) or value >= 1000 else f"{value:.4g}" for value in found]
    return shown[0] if len(set(shown)) == 1 else ", ".join(shown)


def _remarks(rows: Sequence[Difference], use: Sizes) -> str:
    def mean(switch: str, quantity: str, side: str = "printed") -> float:
        return fmean(getattr(row, side) for row in _of(rows, switch, quantity))

    def change(switch: str, quantity: str = "perplexity") -> str:
        return f"{mean(switch, quantity) / mean(switch, quantity, 'corrected') - 1:+.1%}"

    learned = ", ".join(
        f"{title} {sum(error < 2 for error in state_errors(rows, name, use.lengths[-1]))}"
        for name, title in STATES.items()
    )
    (literal,) = [row for row in rows if row.switch == "literal" and row.quantity.startswith("error of the shipped S5")]
    s5_literal = literal.printed - literal.corrected
    further = f"perplexity at {use.longer:,} tokens"
    best = [row.corrected for row in _of(rows, "causal", "perplexity")]
    return f"""What to read in it:

- *The seeds of the corrected language model* lie {max(best) / min(best) - 1:.1%} apart: differences in perplexity below
  that are noise. On average causal attention in Agg makes {change("causal")}, calling Agg(e, x) {change("literal")},
  a start at 0.02 {change("init")}, a prefix one chunk late {change("late")}.
- *At c = 1 with one layer a causal Agg is the bidirectional one*: the token that is kept sees both anyway. So the
  paper's state tracking does not depend on the mask. At larger c it is another function.
- *How many of the {len(use.seeds)} seeds learned to track states* (an error below 2% at length {use.lengths[-1]}):
  {learned}.
  Whether so short a run learns depends on the seed, the corrected model's too; what has been learned shows whether it
  holds at greater lengths.
- *The shipped S5 model* was trained with the right tree and the law Agg(e, x) = x. Read along the wrong trees, or one
  chunk late, the same weights fail. Calling Agg(e, x) changes the error by {s5_literal:.2g} points, though what it
  returns is {mean("literal", IDENTITY_CALLED):.2f} away from x (1.41: unrelated): Inf reads the one as the other.
- *The leak* shows as a perplexity of {mean("leaking", "perplexity"):.2f}, which no stream can have: the same weights
  get {mean("leaking", STREAMED):.1f} when Inf is given what exists at decoding time. And Alg. 4 answers for the first
  token of a chunk only when the whole chunk is there, {use.chunk_length} tokens late.
- *Scoring (c-1)/c of the tokens* changes the perplexity of the same weights by {change("scoring")}.
- *Absolute positions* make {change("absolute")} at the trained length and {change("absolute", further)} at
  {use.longer // use.context} times that length, where they have never been trained.
- *Both released scans* return wrong prefixes where the order of operands matters, and what is learned with them is
  another function in a stream, which folds along the right tree."""
