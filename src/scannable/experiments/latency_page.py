"""Latency: sizes, figure and page."""

import platform
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from matplotlib.figure import Figure
from matplotlib.ticker import FormatStrFormatter, LogLocator, NullFormatter

from scannable.experiments.figure import save_page, table, tidy
from scannable.experiments.laboratory import Laboratory
from scannable.experiments.profile import Profile

VOCABULARY = 256
"""Small: the output layer over 50,257 tokens would be the same for all, and hide the rest."""


@dataclass(frozen=True)
class Sizes:
    """How large the models are, and where they are timed."""

    width: int
    heads: int
    layers: int
    """Of GPT-2 and Mamba; Transformer-PSM has half of them in Agg and half in Inf."""
    chunk_length: int
    positions: tuple[int, ...]
    """For all models."""
    long_positions: tuple[int, ...]
    """For Transformer-PSM alone."""
    rounds: int
    chunks: int
    """Chunks that Transformer-PSM is timed over: a power of two, so that dear pushes have their share."""
    steps: int
    """Tokens that the others are timed over: each costs them the same."""
    many: int
    """Streams that go on at once, in one batch."""
    many_positions: tuple[int, ...]
    """Where those are timed."""


POSITIONS = (1024, 4096, 8192, 16_384, 24_576, 32_768, 40_960)
LONG = (65_536, 131_072, 262_144, 524_288, 1_000_000)
MANY = (1024, 4096)
SIZES: dict[Profile, Sizes] = {
    "smoke": Sizes(32, 2, 2, 4, (64, 128, 256), (512, 1000), rounds=2, chunks=8, steps=4, many=3, many_positions=(64,)),
    "laptop": Sizes(256, 4, 4, 64, POSITIONS, LONG, rounds=3, chunks=16, steps=64, many=32, many_positions=MANY),
    "paper": Sizes(256, 4, 4, 64, POSITIONS, LONG, rounds=5, chunks=16, steps=64, many=32, many_positions=MANY),
}

PSM, RECENT = "Transformer-PSM", "Transformer-PSM, recent = 1"
STATIC, GROWING = "GPT-2, KV cache in place", "GPT-2, growing KV cache"
MAMBA, THEIR_MAMBA = "Mamba (ours)", "Mamba (transformers)"
LOOKS = {
    PSM: ("C0", "o"),
    RECENT: ("C4", "P"),
    STATIC: ("C3", "s"),
    GROWING: ("C1", "D"),
    MAMBA: ("C2", "^"),
    THEIR_MAMBA: ("C8", "v"),
}


@dataclass(frozen=True)
class Timing:
    """One model over the `tokens` that end at `position`; of several streams, over as many steps of all of them."""

    model: str
    position: int
    tokens: int
    milliseconds: float
    """Per step, on average over the best round."""
    median_milliseconds: float
    """The same for the median of the rounds."""
    slowest_milliseconds: float
    """The slowest step of all rounds."""
    nbytes: int
    """The most that one stream held."""
    streams: int
    p50_milliseconds: float
    """Half of the steps of all rounds took no longer."""
    p99_milliseconds: float
    """And 99 of 100."""


# The paper's figure, on a V100, in milliseconds: what it says about each model.
PAPER_END = 40_000
PAPER = {STATIC: (2.0, 40.0), PSM: (8.0, 8.0), THEIR_MAMBA: (6.0, 6.0)}


def draw(timings: Sequence[Timing], sizes: Sizes) -> Figure:
    """Time of all models, time of Transformer-PSM to the end, and held bytes; dotted, what the paper says."""
    figure = Figure(figsize=(14, 4.8), layout="constrained")
    short, long, memory = figure.subplots(1, 3)
    end = sizes.positions[-1]
    timings = [t for t in timings if t.streams == 1]
    for name, (color, marker) in LOOKS.items():
        mine = [t for t in timings if t.model == name]
        near = [t for t in mine if t.position <= end]
        # Both caches hold the same: the larger, hollow marker shows around the smaller one.
        size, fill = (9, "none") if name == STATIC else (5, "full")
        look = {"color": color, "marker": marker, "markersize": size, "fillstyle": fill, "label": name}
        short.plot([t.position for t in near], [t.milliseconds for t in near], **look)
        memory.plot([t.position for t in mine], [t.nbytes / 2**20 for t in mine], **look)
        if name in PAPER:
            first, last = PAPER[name]
            places = [min(PAPER_END, end) * i / 50 for i in range(51)]
            short.plot(places, [first + (last - first) * x / PAPER_END for x in places], ":", color=color)
    for name in (PSM, RECENT):
        mine = [t for t in timings if t.model == name]
        color, marker = LOOKS[name]
        for line, value in (("-", "milliseconds"), ("--", "p99_milliseconds")):
            long.plot([t.position for t in mine], [getattr(t, value) for t in mine], line, color=color, marker=marker)
    mine = [t for t in timings if t.model == PSM]
    color, _ = LOOKS[PSM]
    long.plot([], [], "-", color="black", label="mean")
    long.plot([], [], "--", color="black", label="99 of 100 below")
    long.axhline(PAPER[PSM][1], linestyle=":", color=color)
    # In two short lines: further right the curves may cross it.
    about = f"the paper, to {PAPER_END:,}\ntokens: below {PAPER[PSM][1]:g} ms"
    long.text(mine[0].position, 0.92 * PAPER[PSM][1], about, va="top", fontsize=9)
    short.plot([], [], ":", color="black", label="the paper's, on a V100")
    short.set(title=f"All models, to {end:,} tokens", xlabel="position in tokens", ylabel="ms per token", yscale="log")
    quarters = [i * end // 4 for i in range(5)]
    short.set_xticks(quarters, [f"{position:,}" for position in quarters])
    last = mine[-1].position
    long.set(title=f"{PSM}, to {last:,} tokens", xlabel="position in tokens", ylabel="ms per token", yscale="log")
    memory.set(title="Memory", xlabel="position in tokens", ylabel="MiB held by one stream", yscale="log")
    for axes in (long, memory):
        axes.set_xscale("log", base=2)
    for axes in (short, long, memory):
        axes.yaxis.set_major_locator(LogLocator(subs=(1.0, 2.0, 5.0)))
        axes.yaxis.set_major_formatter(FormatStrFormatter("%g"))
        axes.yaxis.set_minor_formatter(NullFormatter())
    for axes in (short, long, memory):
        tidy(axes, legend="inside" if axes is long else "none")
    figure.legend(*short.get_legend_handles_labels(), loc="outside lower center", ncols=6, frameon=False, fontsize=9)
    return figure


def write_page(lab: Laboratory, sizes: Sizes, timings: Sequence[Timing]) -> None:
    """README.md."""
    save_page(lab.results, "Latency", *_page(lab, sizes, timings))


def _tails(timing: Timing) -> list[str]:
    found = (timing.p50_milliseconds, timing.p99_milliseconds, timing.slowest_milliseconds)
    return [f"{milliseconds:.2f}" for milliseconds in found]


def _page(lab: Laboratory, sizes: Sizes, timings: Sequence[Timing]) -> list[str]:
    many = [t for t in timings if t.streams > 1]
    timings = [t for t in timings if t.streams == 1]
    by = {(t.model, t.position): t for t in timings}
    first, end, last = sizes.positions[0], sizes.positions[-1], sizes.long_positions[-1]
    rows = [
        [
            name,
            *(f"{by[name, place].milliseconds:.2f}" for place in (first, end)),
            f"x{by[name, end].milliseconds / by[name, first].milliseconds:.2f}",
            *_tails(by[name, end]),
            *(f"{by[name, place].nbytes / 2**20:.3g}" for place in (first, end)),
            said,
        ]
        for name, said in {
            PSM: "below 8 ms",
            RECENT: "",
            STATIC: "2 ms rising to 40 ms",
            GROWING: "(the same)",
            MAMBA: "about 6 ms",
            THEIR_MAMBA: "(the same)",
        }.items()
    ]
    stream = [
        [t.model, f"{t.position:,}", f"{t.milliseconds:.2f}", *_tails(t), f"{t.nbytes / 2**20:.3g}"]
        for t in timings
        if t.model in (PSM, RECENT)
    ]
    together = [
        [t.model, f"{t.position:,}", f"{t.milliseconds:.2f}", f"{t.milliseconds / t.streams:.3f}", *_tails(t)]
        for t in many
    ]
    steady = [t for t in timings if t.model == MAMBA]
    whole = by[PSM, last].milliseconds / by[PSM, first].milliseconds
    half = by[PSM, last].p50_milliseconds / by[PSM, first].p50_milliseconds
    device = torch.cuda.get_device_name(lab.device) if lab.device.startswith("cuda") else _processor()
    headings = ["model", f"ms per token at {first:,}", f"at {end:,}", "growth", "p50", "p99", "slowest"]
    headings[4:] = [f"{heading} at {end:,}" for heading in headings[4:]]
    headings += [f"MiB at {first:,}", f"at {end:,}", f"the paper, on a V100, to {PAPER_END:,}"]
    return [
        f"""Time per token of a single stream, and what it holds: the figure "Inference time per token" of
*Sequential-Parallel Duality in Prefix-Scannable Models*, on {device}, torch {torch.__version__}, float32.""",
        f"    scannable reproduce latency --profile {lab.profile} --device {lab.device}",
        "![time per token and held memory against the position](latency.png)",
        table(headings, rows),
        f"""Timing noise: the step of Mamba (ours), which does the same work everywhere, took between
{min(t.milliseconds for t in steady):.2f} and {max(t.milliseconds for t in steady):.2f} ms on average, and its slowest
one {max(t.slowest_milliseconds for t in steady):.2f} ms: a mean that differs by less than those two, or a slowest token
below that, tells nothing.""",
        """Without recent chunks, the token that ends a chunk waits for all merges of its push and for Inf to read the
new prefix. With `recent = 1` Inf sees the chunk before as it was, and the merges are spread over the tokens of the next
chunk, one call of Agg a token. It is another model, not a faster form of the same.""",
        f"## {sizes.many} streams at once",
        f"""One batch of {sizes.many} streams, all at the same position, so that their merges fall on the same step.""",
        table(["model", "position", "ms a step", "ms a token of a stream", "p50", "p99", "slowest step"], together),
        f"""Transformer-PSM: {sizes.width} wide, {sizes.heads} heads, {sizes.layers // 2} layer(s) in Agg and as many in
Inf, c = {sizes.chunk_length}; GPT-2 and Mamba: {sizes.layers} layers, {sizes.width} wide. The paper's released script
has 256, 4, 2 and 64, and 4 and 256; its text says 768 for Transformer-PSM.""",
        f"## To {last:,} tokens",
        f"""Transformer-PSM at {last:,} tokens takes x{whole:.2f} the time per token that it takes at {first:,}, and its
median token x{half:.2f}: that one completes no chunk and does the same work at both, so much of the growth is the
machine's. Its state grows with the logarithm of the position: a root and a fold for each set bit of the number of
chunks.""",
        table(["model", "position", "ms per token", "p50", "p99", "slowest token", "MiB held"], stream),
        "## What differs from the paper, and why",
        f"""- Another machine: compare how the times grow, not the times. The paper's released code does not wait
  for the GPU before it reads the clock; here it is waited for.
- That code runs Inf again over a whole chunk for each token; here Inf keeps keys and values, and a token costs one
  position.
- GPT-2 stands here twice: with room for keys and values made in advance, and with the cache of transformers, which
  copies all of them for each token. The paper does not say which one it timed. They are random numbers here: time does
  not depend on them.
- Mamba stands here twice as well: ours, and that of transformers. Its state has one size, so it has read a few tokens
  only, wherever it is said to be.
- The output layer has {VOCABULARY} tokens. With the 50,257 of GPT-2 it would cost the same for every model, and hide
  the rest.""",
        f"""Times are averages over the last {sizes.chunks * sizes.chunk_length:,} tokens before the position for
Transformer-PSM (every other push merges nothing, every fourth once, and so on: {sizes.chunks} chunks have their share
of each), over {sizes.steps} tokens for the others; the best of {sizes.rounds} rounds, in which the models take turns.
p50, p99 and the slowest are over the tokens of all rounds. The slowest token of Transformer-PSM is one that completes
or begins a chunk. Held bytes are the most within those
tokens. An interrupted run is done again from the start. Numbers: `latency.csv`; sizes in `sizes.json`.""",
    ]


def _processor() -> str:
    return f"{torch.get_num_threads()} thread(s) of a CPU ({platform.machine()})"
