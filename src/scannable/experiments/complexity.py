"""The SPD classes, measured (Def. "Sequential-Parallel Duality", Eqs. C1 and C2): work, depth and memory against n.

Counted, not timed, and on the CPU whatever the device: counts are the same everywhere. Seconds are in the CSV beside
them, for orientation.
"""

import math
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import torch
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from torch import Tensor

from scannable.experiments import scan_cost
from scannable.experiments.figure import save_figure, save_json, save_page, save_rows, table, tidy
from scannable.experiments.growth import NEGLIGIBLE, growth
from scannable.experiments.laboratory import Laboratory
from scannable.experiments.predicted_cost import Prediction, predict
from scannable.experiments.profile import Profile
from scannable.layers import LAYERS
from scannable.models.layer_options import PSMOptions
from scannable.models.lm import LM
from scannable.models.lm_config import LMConfig
from scannable.models.protocol import evaluating
from scannable.models.transformer_psm import TransformerPSM
from scannable.models.transformer_psm_config import TransformerPSMConfig
from scannable.spd.counters import CountedDepth, CountedWork

VOCABULARY = 64
CIRCUIT, FAST = "scan", "chunkwise"
"""The parallel forms of a row of the zoo: the circuit of logarithmic depth, and the one that a CPU is fastest at."""


@dataclass(frozen=True)
class Sizes:
    """How large the models are, and how long the sequences."""

    width: int
    heads: int
    layers: int
    """Of every model; of Transformer-PSM in Agg, and as many in Inf."""
    chunk_length: int
    longest: int
    """The exponent k of the longest sequence, n = 2^k."""
    shortest: int
    predicted_chunks: tuple[int, ...]
    """For how many chunks Eqs. C1 and C2 are checked; one below a power of two, where a stream holds most."""
    pushes: int
    """The exponent of how many chunks go through the two binary counters."""
    steps: int
    """How many steps are timed."""

    @property
    def lengths(self) -> tuple[int, ...]:
        return tuple(2**k for k in range(self.shortest, self.longest + 1))


SIZES: dict[Profile, Sizes] = {
    "smoke": Sizes(16, 2, 1, 4, longest=10, shortest=6, predicted_chunks=(3, 15), pushes=8, steps=4),
    "laptop": Sizes(64, 4, 2, 64, longest=14, shortest=6, predicted_chunks=(3, 15, 63), pushes=16, steps=64),
    "paper": Sizes(256, 4, 2, 64, longest=14, shortest=6, predicted_chunks=(3, 15, 63, 255), pushes=16, steps=64),
}


@dataclass(frozen=True)
class Subject:
    """A model, the class that is claimed for it, and the forms in which it runs in parallel, the circuit first."""

    name: str
    claimed: str
    model: Any
    forms: Mapping[str, Callable[[Tensor], Tensor]]


def subjects(sizes: Sizes) -> list[Subject]:
    """The Transformer, Transformer-PSM, and every row of the zoo."""
    d, h = sizes.width, sizes.heads
    context = sizes.lengths[-1] + sizes.steps
    gpt2 = LM(LMConfig(VOCABULARY, ("attention",) * sizes.layers, d, h, norm="layer", positions=context)).eval()
    psm = transformer_psm(sizes)
    found = [
        Subject("transformer", "(n^2, n)", gpt2, {"parallel": gpt2}),
        Subject("transformer_psm", "(n, log n)", psm, {CIRCUIT: psm}),
    ]
    for name, row in LAYERS.items():
        if name in ("attention", "convolved_mlp"):
            continue  # The Transformer, and a part of its blocks.
        layer = PSMOptions(chunk_length=sizes.chunk_length) if name == "psm" else name
        model = LM(LMConfig(VOCABULARY, (layer,) * sizes.layers, d, h))
        # An LSTM has no circuit but its steps, and a layer of Transformer-PSM no other form than its tree.
        forms = (CIRCUIT,) if row.spd_class == "none" or name == "psm" else (CIRCUIT, FAST)
        found.append(Subject(name, row.spd_class, model, {form: _in_mode(model, form) for form in forms}))
    return found


def transformer_psm(sizes: Sizes) -> TransformerPSM:
    layers = sizes.layers
    config = TransformerPSMConfig(
        VOCABULARY,
        sizes.width,
        chunk_length=sizes.chunk_length,
        agg_layers=layers,
        inf_layers=layers,
        heads=sizes.heads,
    )
    return TransformerPSM(config).eval()


def _in_mode(model: LM, mode: Any) -> Callable[[Tensor], Tensor]:
    return lambda tokens: model(tokens, mode=mode)


@dataclass(frozen=True)
class Cost:
    """What one form of a model costs for one sequence of n tokens."""

    model: str
    form: str
    n: int
    work: int
    """Floating-point operations of the parallel form."""
    depth: int
    """Batched calls of torch on its longest chain."""
    nbytes: int
    """Held by a stream after n - 1 tokens: with n a power of two, a binary counter then has all its roots."""
    parallel_seconds: float
    """For all n tokens at once; best of two."""
    step_seconds: float
    """For one more token, on average over several."""


@torch.no_grad()
def measure(subject: Subject, lengths: Sequence[int], steps: int) -> list[Cost]:
    """Every form at every length."""
    costs: list[Cost] = []
    model = subject.model
    with evaluating(model):
        for n in lengths:
            tokens = torch.randint(VOCABULARY, (1, n + steps))
            _, state = model.prefill(tokens[:, : n - 1], model.initial_state(1))
            nbytes = state.nbytes
            began = time.perf_counter()
            for token in tokens[0, n - 1 : n - 1 + steps].split(1):
                _, state = model.step(token, state)
            stepping = (time.perf_counter() - began) / steps
            for form, parallel in subject.forms.items():
                with CountedWork() as work, CountedDepth() as chain:
                    parallel(tokens[:, :n])
                seconds = min(_seconds(parallel, tokens[:, :n]) for _ in range(2))
                costs.append(Cost(subject.name, form, n, work.operations, chain.depth, nbytes, seconds, stepping))
    return costs


def _seconds(run: Callable[[Tensor], object], tokens: Tensor) -> float:
    began = time.perf_counter()
    run(tokens)
    return time.perf_counter() - began


@dataclass(frozen=True)
class Fit:
    """The class that the counts say, beside the claimed one."""

    model: str
    claimed: str
    measured: str
    """(work, memory), or none if the depth is neither constant nor logarithmic."""
    work_exponent: float
    """Of the leading term of the work."""
    work_slope: float
    """Of log(work) against log(n), lower terms included."""
    work_law: str
    depth_slope: float
    depth_law: str
    memory_slope: float
    memory_law: str

    @property
    def agrees(self) -> bool:
        return self.claimed == self.measured


def fit(subject: Subject, costs: Sequence[Cost]) -> Fit:
    """The laws of work, depth and memory of a model's circuit."""
    mine = [cost for cost in costs if cost.model == subject.name and cost.form != FAST]
    lengths = [cost.n for cost in mine]
    # A token's share: its growth shows the terms beyond the linear one, which may be far larger at every n at hand.
    work = growth(lengths, [cost.work / cost.n for cost in mine])
    depth = growth(lengths, [cost.depth for cost in mine])
    memory = growth(lengths, [cost.nbytes for cost in mine])
    work_law = {"1": "n", "log n": "n log n", "n": "n^2"}.get(work.law, f"n^{1 + (work.exponent or 0):.1f}")
    parallel = depth.law in ("1", "log n")
    return Fit(
        subject.name,
        subject.claimed,
        f"({work_law}, {memory.law})" if parallel else "none",
        1 + (work.slope if work.law == "1" or work.exponent is None else work.exponent),
        1 + work.slope,
        work_law,
        depth.slope,
        depth.law,
        memory.slope,
        memory.law,
    )


LOOKS = {
    "transformer": ("C3", "s", "Transformer"),
    "transformer_psm": ("C0", "o", "Transformer-PSM"),
    "psm": ("C2", "v", "Transformer-PSM as a layer"),
    "log_linear": ("C4", "D", "log-linear attention"),
    "lstm": ("C1", "^", "LSTM"),
}


def draw(costs: Sequence[Cost], claims: Mapping[str, str]) -> Figure:
    """Work per token, depth and held bytes; dotted, the laws that are claimed, drawn through the longest length."""
    figure = Figure(figsize=(13.5, 4.8), layout="constrained")
    panels = figure.subplots(1, 3)
    quantities: list[Callable[[Cost], float]] = [lambda c: c.work / c.n, lambda c: c.depth, lambda c: c.nbytes]
    circuits = [cost for cost in costs if cost.form != FAST]
    n = sorted({cost.n for cost in circuits})
    there = dict.fromkeys(cost.model for cost in circuits)
    rows, others = [name for name in there if name not in LOOKS], [name for name in LOOKS if name in there]
    for axes, quantity in zip(panels, quantities, strict=True):
        for name in (*rows, *others):
            color, marker, label = LOOKS.get(
                name, ("grey", None, f"{len(rows)} affine rows" if name == rows[0] else None)
            )
            values = [quantity(cost) for cost in circuits if cost.model == name]
            look = {"linewidth": 0.8, "alpha": 0.6} if name in rows else {"markersize": 5}
            axes.plot(n, values, color=color, marker=marker, label=label, **look)
        _finish(axes)
    for name in others:
        mine = [cost for cost in circuits if cost.model == name]
        for axes, quantity, law in zip(panels, quantities, claimed_laws(claims[name]), strict=True):
            _reference(axes, [quantity(cost) for cost in mine], n, law)
    work, depth, memory = panels
    work.plot([], [], ":", color="black", label="claimed law")
    work.set(title="Work", ylabel="floating-point operations per token")
    depth.set(title="Parallel depth", ylabel="batched calls on the longest chain")
    memory.set(title="Memory", ylabel="bytes held by one stream")
    figure.legend(*work.get_legend_handles_labels(), loc="outside lower center", ncols=6, frameon=False, fontsize=9)
    return figure


def claimed_laws(claimed: str) -> tuple[str, str, str]:
    """The laws of work per token, depth and memory that a class stands for."""
    if claimed == "none":
        return "1", "n", "1"
    work, memory = claimed.strip("()").split(", ")
    per_token = {"n": "1", "n log n": "log n", "n^2": "n"}[work]
    # Attention over all positions is one call; every other circuit here is a scan.
    return per_token, "1" if work == "n^2" else "log n", memory


def _reference(axes: Axes, values: Sequence[float], n: Sequence[int], law: str) -> None:
    if law == "1":
        line = [values[-1]] * len(n)
    else:
        shape = [math.log2(length) if law == "log n" else float(length) for length in n]
        middle = len(n) // 2
        # Two points fix a + b g(n); the first half of the lengths is left to show where lower terms still matter.
        b = (values[-1] - values[middle]) / (shape[-1] - shape[middle])
        line = [values[-1] + b * (g - shape[-1]) for g in shape]
    visible = [(length, value) for length, value in zip(n, line, strict=True) if value > 0]
    axes.plot(*zip(*visible, strict=True), ":", color="black", linewidth=1.2, zorder=3)


def _finish(axes: Axes) -> None:
    axes.set(xlabel="tokens n", yscale="log")
    axes.set_xscale("log", base=2)
    tidy(axes, legend="none")


def draw_counts(counters: Sequence[scan_cost.ScanCost], predictions: Sequence[Prediction]) -> Figure:
    """Agg calls per chunk of both counters on the left, counted over predicted on the right."""
    figure = Figure(figsize=(10, 4.2), layout="constrained")
    left, right = figure.subplots(1, 2)
    for way, color, marker, label in (
        (scan_cost.REFOLDING, "C3", "^", "Alg. 2 as printed: folds all roots anew"),
        (scan_cost.COUNTER, "C0", "o", "ours: keeps the fold of each level"),
    ):
        mine = [cost for cost in counters if cost.way == way]
        left.plot(
            [c.n for c in mine], [c.evaluations_per_element for c in mine], color=color, marker=marker, label=label
        )
    left.axhline(2, color="grey", linestyle=":", label="the paper: a constant (here 2)")
    left.set(title="Agg in a stream", xlabel="chunks r", ylabel="calls of Agg per chunk", ylim=(0, None))
    # Where all are 1, each hollow marker shows around the next smaller one.
    for equation, marker, size in (("C1 work", "o", 12), ("C2 work", "s", 8), ("C2 memory", "D", 4)):
        mine = [p for p in predictions if p.equation == equation]
        for color, label, ratios in (
            ("C0", "from its parts", [p.counted / p.from_parts for p in mine]),
            ("C1", "from the formula", [p.counted / p.from_formula for p in mine]),
        ):
            look = {"color": color, "marker": marker, "markersize": size, "fillstyle": "none", "linewidth": 0.8}
            right.plot([p.n for p in mine], ratios, label=f"{equation}, {label}", **look)
    right.axhspan(0.95, 1.05, color="grey", alpha=0.15, label="within 5%")
    right.set(title="Eqs. C1 and C2", xlabel="tokens n", ylabel="counted / predicted", ylim=(0.88, 1.08))
    for axes in (left, right):
        axes.set_xscale("log", base=2)
        tidy(axes, legend="inside" if axes is left else "none")
    # Below the band.
    right.legend(loc="lower center", ncols=2, columnspacing=1, frameon=False, fontsize=8)
    return figure


def run(lab: Laboratory) -> None:
    """Measure every model, fit, predict, and leave CSV, figures and a page."""
    torch.manual_seed(0)
    sizes = SIZES[lab.profile]
    models = subjects(sizes)
    costs: list[Cost] = []
    for number, subject in enumerate(models, 1):
        lab.console.print(f"{lab.name}: model {number} of {len(models)}, {subject.name}", highlight=False)
        costs += measure(subject, sizes.lengths, sizes.steps)
        # What an interruption leaves; the same command starts again.
        save_rows(costs, lab.results / "spd.csv")
    fits = [fit(subject, costs) for subject in models]
    counters = [
        cost
        for cost in scan_cost.measure([2**k for k in range(sizes.pushes + 1)])
        if cost.way in (scan_cost.COUNTER, scan_cost.REFOLDING)
    ]
    predictions = predict(transformer_psm(sizes), sizes.predicted_chunks)
    save_rows(fits, lab.results / "fits.csv")
    save_rows(counters, lab.results / "counters.csv")
    save_rows(predictions, lab.results / "predictions.csv")
    save_json(asdict(sizes), lab.results / "sizes.json")
    save_figure(draw(costs, {subject.name: subject.claimed for subject in models}), lab.results, "spd")
    save_figure(draw_counts(counters, predictions), lab.results, "counts")
    save_page(lab.results, "SPD classes", *_page(lab, sizes, costs, fits, counters, predictions))


def _page(
    lab: Laboratory,
    sizes: Sizes,
    costs: Sequence[Cost],
    fits: Sequence[Fit],
    counters: Sequence[scan_cost.ScanCost],
    predictions: Sequence[Prediction],
) -> list[str]:
    top = {cost.model: cost for cost in costs if cost.n == sizes.lengths[-1] and cost.form != FAST}
    differing = [f.model for f in fits if not f.agrees]
    classes = [
        [
            f.model,
            f.claimed,
            f.measured,
            "yes" if f.agrees else "**no**",
            f"{f.work_exponent:.2f}",
            f"{f.work_slope:.2f}",
            f.depth_law,
            f.memory_law,
            f"{top[f.model].work / sizes.lengths[-1]:,.0f}",
            f"{top[f.model].depth:,}",
            f"{top[f.model].nbytes:,}",
        ]
        for f in fits
    ]
    at = {(cost.model, cost.form, cost.n): cost for cost in costs}
    half, last = sizes.lengths[-2:]
    forms = [
        [
            name,
            *(f"{at[name, form, last].work / last:,.0f}" for form in (CIRCUIT, FAST)),
            *(f"{at[name, form, n].depth:,}" for form in (CIRCUIT, FAST) for n in (half, last)),
        ]
        for name in dict.fromkeys(cost.model for cost in costs if cost.form == FAST)
    ]
    by_way = {way: {c.n: c for c in counters if c.way == way} for way in (scan_cost.COUNTER, scan_cost.REFOLDING)}
    per_chunk = [
        [
            f"{r:,}",
            *(f"{by_way[way][r].evaluations_per_element:.3f}" for way in (scan_cost.COUNTER, scan_cost.REFOLDING)),
        ]
        for r in sorted(by_way[scan_cost.COUNTER])
        if r >= 4 and r.bit_length() % 2
    ]
    predicted = [
        [
            p.equation,
            f"{p.n:,}",
            f"{p.counted:,}",
            f"{p.counted / p.from_parts:.4f}",
            f"{p.counted / p.from_formula:.4f}",
        ]
        for p in predictions
    ]
    agreement = f"all but {', '.join(differing)}" if differing else "every model"
    headings = ["model", "claimed", "measured", "agrees", "work exponent", "slope", "depth", "memory"]
    headings += [f"work per token at {last:,}", "depth there", "bytes held there"]
    return [
        f"""What Def. SPD and Eqs. C1 and C2 of *Sequential-Parallel Duality in Prefix-Scannable Models* claim, and what
is counted here, for one sequence of n = {sizes.lengths[0]} to {last:,} tokens in inference. Every model is
{sizes.width} wide, with {sizes.heads} heads and {sizes.layers} layer(s); Transformer-PSM has as many in Agg and in
Inf, and c = {sizes.chunk_length}. `psm` is Transformer-PSM as a layer: {sizes.layers} of them in a stack, each with one
layer in Agg and one in Inf, and the same c.""",
        f"    scannable reproduce spd --profile {lab.profile}",
        "![work, depth and memory against n](spd.png)",
        "## Classes",
        f"The measured class is the claimed one for {agreement}.",
        table(headings, classes),
        """*Work* is counted by torch's formulas for matrix products and attention, with pointwise operations and
reductions added; causal attention counts all n^2 scores. *Depth* is the longest chain of calls of torch that need each
other, found by following every tensor. *Memory* is what a stream holds after n - 1 tokens, where a binary counter has
all its roots.""",
        f"""The laws are found over the longer half of the lengths. Each doubling of n adds something to work per token,
to depth and to memory. If that is below {NEGLIGIBLE:.1%} of the whole, or shrinks, the law is constant; if it stays
(its exponent in n is within 0.25 of 0), log n; if it doubles (within 0.25 of 1), n. So a linear part that still
dominates, as in a Transformer at moderate n, does not hide the n^2. The *work exponent* is that of the leading term,
or, where work per token is constant, the *slope*, which is that of all work together. A model whose depth is neither
constant nor log n has no class.""",
        """The paper says (n^2, n) for the Transformer, (n, 1) for affine rows, (n, log n) for prefix-scannable models,
and no class for an LSTM. Log-linear attention reads a memory for each of log n levels at every token, hence n log n.
DeltaProduct is not in the paper; it is an affine row, too. Depth in the paper is O~(1), that is, up to logarithms: here
constant for the Transformer (a sum over n positions is one call, and counts once), and log n for scans.""",
        "### The circuit, and the form that a CPU runs",
        """An affine row, and log-linear attention, has two parallel forms: the scan over (E, f), which is the circuit
of the definition and stands in the table above, and the chunkwise form, which never holds a state for each position.
Where its depth almost doubles with n, it goes from chunk to chunk, or from one stretch of chunks to the next: a choice
for CPUs, not a property of the row. Its depth is an upper bound, since a buffer that is written part by part counts as
one. `psm` has its tree alone, and an LSTM its steps.""",
        table(
            [
                "model",
                f"work per token at {last:,}: scan",
                "chunkwise",
                f"depth at {last // 2:,}: scan",
                f"at {last:,}",
                f"depth at {last // 2:,}: chunkwise",
                f"at {last:,}",
            ],
            forms,
        ),
        "## Agg in a stream",
        "![calls of Agg per chunk, and predictions](counts.png)",
        """Calls of Agg per chunk. Alg. 2 as printed folds all its roots anew after each chunk, and grows with log n
where the paper says a constant; keeping the fold of each occupied level gives the same values for 2.""",
        table(["chunks", "ours", "Alg. 2 as printed"], per_chunk),
        "## C1 and C2",
        f"""Both equations keep only the scaling: C1 says O(c n (L_agg + L_inf)) work in parallel; C2 says the same for
a stream, and O(c L_inf + c log(n/c) L_agg) memory. Below, with the factors that they leave out, is what was counted
over what was predicted. *From its parts*: 2r - O(log r) calls of Agg and r of Inf for r = n/{sizes.chunk_length}
chunks, each at the cost of one call by itself. *From the formula*: from L, c, d and n alone
(`experiments/predicted_cost.py`), which leaves out everything that is no matrix product. A stream holds elements of c
d numbers for Agg, without the factor L_agg of C2: nothing of Agg's layers outlives its call. Memory in training
(S_train of C1) is measured by `scannable reproduce space`.""",
        table(["", "n", "counted", "/ from its parts", "/ from the formula"], predicted),
        """Numbers: `spd.csv` (with seconds, which depend on the machine and its load), `fits.csv`, `counters.csv`
and `predictions.csv`; sizes in `sizes.json`. An interrupted run is done again from the start.""",
    ]
