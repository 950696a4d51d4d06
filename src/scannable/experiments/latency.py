"""Time per token while a stream grows (Fig. "Inference time per token"), with the bytes that it holds.

Transformer-PSM, GPT-2 and Mamba to 40,960 tokens, Transformer-PSM alone to 1,000,000. The models take turns at each
position, so that a drift of the machine meets all of them.
"""

import copy
import platform
import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import torch
from matplotlib.figure import Figure
from matplotlib.ticker import FormatStrFormatter, LogLocator, NullFormatter
from torch import Tensor

from scannable.baselines import GPT2Baseline, GPT2BaselineConfig, MambaBaseline, MambaBaselineConfig
from scannable.baselines.model import transformers
from scannable.experiments.figure import save_figure, save_json, save_page, save_rows, table, tidy
from scannable.experiments.laboratory import Laboratory
from scannable.experiments.profile import Profile
from scannable.layers.attention_state import AttentionState
from scannable.models.lm import LM
from scannable.models.lm_config import LMConfig
from scannable.models.protocol import StreamState
from scannable.models.transformer_psm import TransformerPSM
from scannable.models.transformer_psm_config import TransformerPSMConfig
from scannable.nn import KVCache

VOCABULARY = 256
"""Small: the output layer over 50,257 tokens would be the same for all, and hide the rest."""
PIECE = 4096
"""Tokens that are prefilled at once."""


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


POSITIONS = (1024, 4096, 8192, 16_384, 24_576, 32_768, 40_960)
LONG = (65_536, 131_072, 262_144, 524_288, 1_000_000)
SIZES: dict[Profile, Sizes] = {
    "smoke": Sizes(32, 2, 2, 4, (64, 128, 256), (512, 1000), rounds=2, chunks=8, steps=4),
    "laptop": Sizes(256, 4, 4, 64, POSITIONS, LONG, rounds=3, chunks=16, steps=32),
    "paper": Sizes(256, 4, 4, 64, POSITIONS, LONG, rounds=5, chunks=16, steps=64),
}

PSM, STATIC, GROWING = "Transformer-PSM", "GPT-2, KV cache in place", "GPT-2, growing KV cache"
MAMBA, THEIR_MAMBA = "Mamba (ours)", "Mamba (transformers)"
LOOKS = {PSM: ("C0", "o"), STATIC: ("C3", "s"), GROWING: ("C1", "D"), MAMBA: ("C2", "^"), THEIR_MAMBA: ("C8", "v")}


@dataclass(frozen=True)
class Timing:
    """One model over the `tokens` that end at `position`."""

    model: str
    position: int
    tokens: int
    milliseconds: float
    """Per token, on average over the best round."""
    median_milliseconds: float
    """The same for the median of the rounds."""
    slowest_milliseconds: float
    """The slowest token of the best round."""
    nbytes: int
    """The most that the stream held."""


@dataclass(frozen=True)
class Candidate:
    """A model that can be put at any position and go on from there."""

    name: str
    state_at: Callable[[int, int], StreamState]
    """`state_at(position, tokens)`: a stream after `position` tokens, with room for so many more."""
    step: Callable[[Tensor, Any], tuple[Tensor, Any]]
    tokens: int


def candidates(sizes: Sizes, device: str) -> list[Candidate]:
    """All models; Transformer-PSM first."""
    d, h, layers, steps = sizes.width, sizes.heads, sizes.layers, sizes.steps
    half = layers // 2
    psm = (
        TransformerPSM(
            TransformerPSMConfig(
                VOCABULARY, d, chunk_length=sizes.chunk_length, agg_layers=half, inf_layers=half, heads=h
            )
        )
        .to(device)
        .eval()
    )
    gpt2 = GPT2Baseline(GPT2BaselineConfig(VOCABULARY, d, layers, h, sizes.positions[-1])).to(device).eval()
    mamba = LM(LMConfig(VOCABULARY, ("mamba",) * layers, d, h)).to(device).eval()
    theirs = MambaBaseline(MambaBaselineConfig(VOCABULARY, d, layers)).to(device).eval()
    return [
        Candidate(PSM, Prefilled(psm, device), psm.step, sizes.chunks * sizes.chunk_length),
        Candidate(STATIC, lambda position, more: filled_cache(gpt2, position, more), gpt2.step, steps),
        Candidate(GROWING, lambda position, _: GrowingState.filled(gpt2, position), GrowingStep(gpt2), steps),
        Candidate(MAMBA, lambda *_: _after_a_few(mamba, device), mamba.step, steps),
        Candidate(THEIR_MAMBA, lambda *_: _after_a_few(theirs, device), theirs.step, steps),
    ]


class Prefilled:
    """A stream that has really read its tokens, asked for at ever later positions."""

    def __init__(self, model: TransformerPSM, device: str) -> None:
        self.model = model
        self.device = device
        self.state = model.initial_state(1)

    def __call__(self, position: int, more: int) -> StreamState:
        while self.state.position < position:
            count = min(PIECE, position - self.state.position)
            tokens = torch.randint(VOCABULARY, (1, count), device=self.device)
            _, self.state = self.model.prefill(tokens, self.state)
        return self.state.fork()


def filled_cache(model: GPT2Baseline, position: int, more: int) -> AttentionState:
    """GPT-2 after `position` tokens, with random keys and values: time does not depend on them."""
    c, like = model.config, model.transformer.wte.weight.detach()
    room = model.capacity(position + more)
    cache = KVCache.empty(c.layers, 1, c.heads, room, c.width // c.heads, like)
    for buffer in (*cache.keys, *cache.values):
        buffer.normal_()
    cache.lengths = (position,)
    return AttentionState((position,), cache)


@dataclass
class GrowingState:
    """The cache that transformers gives GPT-2 unless told: every token copies all keys and values to append its own."""

    position: int
    cache: Any

    @staticmethod
    def filled(model: GPT2Baseline, position: int) -> "GrowingState":
        cache = transformers().DynamicCache(config=model.transformer.config)
        past = filled_cache(model, position, 0).cache
        for layer in range(model.config.layers):
            cache.update(past.keys[layer][:, :, :position], past.values[layer][:, :, :position], layer)
        return GrowingState(position, cache)

    def fork(self) -> "GrowingState":
        return copy.deepcopy(self)

    @property
    def nbytes(self) -> int:
        # A slice of larger buffers until the first token; their own size is what they hold.
        return sum(layer.keys.nbytes + layer.values.nbytes for layer in self.cache.layers)


class GrowingStep:
    """`GPT2Baseline.step`, for a `GrowingState`."""

    def __init__(self, model: GPT2Baseline) -> None:
        self.model = model

    def __call__(self, token: Tensor, state: GrowingState) -> tuple[Tensor, GrowingState]:
        hidden = self.model.transformer(token[:, None], past_key_values=state.cache, use_cache=True).last_hidden_state
        return self.model.head(hidden[:, 0]), GrowingState(state.position + 1, state.cache)


def _after_a_few(model: Any, device: str) -> StreamState:
    """Mamba's state is of one size: after a few tokens a step costs what it costs anywhere."""
    _, state = model.prefill(torch.randint(VOCABULARY, (1, 16), device=device), model.initial_state(1))
    return state


@torch.no_grad()
def measure(models: Sequence[Candidate], position: int, rounds: int, device: str) -> list[Timing]:
    """All models over their last tokens before `position`, in turn, several times."""
    starts = {model.name: model.state_at(position - model.tokens, model.tokens) for model in models}
    seconds: dict[str, list[list[float]]] = {model.name: [] for model in models}
    held = dict.fromkeys(seconds, 0)
    for number in range(rounds):
        # Another one first each time: who runs after a slow one finds cold caches.
        first = number % len(models)
        for model in (*models[first:], *models[:first]):
            state: Any = starts[model.name].fork()
            times: list[float] = []
            for token in torch.randint(VOCABULARY, (model.tokens, 1), device=device):
                began = _now(device)
                _, state = model.step(token, state)
                times.append(_now(device) - began)
                held[model.name] = max(held[model.name], state.nbytes)
            seconds[model.name].append(times)
    return [_timing(model.name, position, seconds[model.name], held[model.name]) for model in models]


def _now(device: str) -> float:
    if device.startswith("cuda"):
        torch.cuda.synchronize(device)
    return time.perf_counter()


def _timing(name: str, position: int, rounds: list[list[float]], nbytes: int) -> Timing:
    best = min(rounds, key=sum)
    means = [1e3 * statistics.fmean(times) for times in rounds]
    return Timing(name, position, len(best), min(means), statistics.median(means), 1e3 * max(best), nbytes)


# The paper's figure, on a V100, in milliseconds: what it says about each model.
PAPER_END = 40_000
PAPER = {STATIC: (2.0, 40.0), PSM: (8.0, 8.0), THEIR_MAMBA: (6.0, 6.0)}


def draw(timings: Sequence[Timing], sizes: Sizes) -> Figure:
    """Time of all models, time of Transformer-PSM to the end, and held bytes; dotted, what the paper says."""
    figure = Figure(figsize=(14, 4.8), layout="constrained")
    short, long, memory = figure.subplots(1, 3)
    end = sizes.positions[-1]
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
    mine = [t for t in timings if t.model == PSM]
    color, marker = LOOKS[PSM]
    long.plot([t.position for t in mine], [t.milliseconds for t in mine], color=color, marker=marker)
    long.axhline(PAPER[PSM][1], linestyle=":", color=color)
    long.text(mine[0].position, 0.97 * PAPER[PSM][1], "the paper, to 40,000 tokens: below 8 ms", va="top", fontsize=9)
    short.plot([], [], ":", color="black", label="the paper's, on a V100")
    short.set(title=f"All models, to {end:,} tokens", xlabel="position in tokens", ylabel="ms per token", yscale="log")
    quarters = [i * end // 4 for i in range(5)]
    short.set_xticks(quarters, [f"{position:,}" for position in quarters])
    last = mine[-1].position
    long.set(title=f"{PSM}, to {last:,} tokens", xlabel="position in tokens", ylabel="ms per token", ylim=(0, None))
    memory.set(title="Memory", xlabel="position in tokens", ylabel="MiB held by one stream", yscale="log")
    for axes in (long, memory):
        axes.set_xscale("log", base=2)
    for axes in (short, memory):
        axes.yaxis.set_major_locator(LogLocator(subs=(1.0, 2.0, 5.0)))
        axes.yaxis.set_major_formatter(FormatStrFormatter("%g"))
        axes.yaxis.set_minor_formatter(NullFormatter())
    for axes in (short, long, memory):
        tidy(axes, legend=False)
    figure.legend(*short.get_legend_handles_labels(), loc="outside lower center", ncols=6, frameon=False, fontsize=9)
    return figure


def run(lab: Laboratory) -> None:
    """Time all models at every position, and leave CSV, figure and a page. An interrupted run is done again."""
    torch.manual_seed(0)
    sizes, device = SIZES[lab.profile], lab.device
    models = candidates(sizes, device)
    timings: list[Timing] = []
    for position in (*sizes.positions, *sizes.long_positions):
        here = models if position in sizes.positions else models[:1]
        timings += measure(here, position, sizes.rounds, device)
        save_rows(timings, lab.results / "latency.csv")
        lab.console.print(f"{lab.name}: {position:,} tokens, {timings[-len(here)].milliseconds:.2f} ms a token ({PSM})")
    timings.sort(key=lambda t: list(LOOKS).index(t.model))
    save_rows(timings, lab.results / "latency.csv")
    save_json(asdict(sizes), lab.results / "sizes.json")
    save_figure(draw(timings, sizes), lab.results, "latency")
    save_page(lab.results, "Latency", *_page(lab, sizes, timings))


def _page(lab: Laboratory, sizes: Sizes, timings: Sequence[Timing]) -> list[str]:
    by = {(t.model, t.position): t for t in timings}
    first, end, last = sizes.positions[0], sizes.positions[-1], sizes.long_positions[-1]
    rows = [
        [
            name,
            *(f"{by[name, place].milliseconds:.2f}" for place in (first, end)),
            f"x{by[name, end].milliseconds / by[name, first].milliseconds:.2f}",
            f"{by[name, end].slowest_milliseconds:.2f}",
            *(f"{by[name, place].nbytes / 2**20:.3g}" for place in (first, end)),
            said,
        ]
        for name, said in {
            PSM: "below 8 ms",
            STATIC: "2 ms rising to 40 ms",
            GROWING: "(the same)",
            MAMBA: "about 6 ms",
            THEIR_MAMBA: "(the same)",
        }.items()
    ]
    stream = [
        [f"{t.position:,}", f"{t.milliseconds:.2f}", f"{t.slowest_milliseconds:.2f}", f"{t.nbytes / 2**20:.3g}"]
        for t in timings
        if t.model == PSM
    ]
    steady = [t.milliseconds for t in timings if t.model == MAMBA]
    whole = by[PSM, last].milliseconds / by[PSM, first].milliseconds
    device = torch.cuda.get_device_name(lab.device) if lab.device.startswith("cuda") else _processor()
    headings = ["model", f"ms per token at {first:,}", f"at {end:,}", "growth", f"slowest token at {end:,}"]
    headings += [f"MiB at {first:,}", f"at {end:,}", f"the paper, on a V100, to {PAPER_END:,}"]
    return [
        f"""Time per token of a single stream, and what it holds: the figure "Inference time per token" of
*Sequential-Parallel Duality in Prefix-Scannable Models*, on {device}, torch {torch.__version__}, float32.""",
        f"    scannable reproduce latency --profile {lab.profile} --device {lab.device}",
        "![time per token and held memory against the position](latency.png)",
        table(headings, rows),
        f"""Timing noise: the step of Mamba (ours), which is constant, varied between {min(steady):.2f} and
{max(steady):.2f} ms.""",
        f"""Transformer-PSM: {sizes.width} wide, {sizes.heads} heads, {sizes.layers // 2} layer(s) in Agg and as many in
Inf, c = {sizes.chunk_length}; GPT-2 and Mamba: {sizes.layers} layers, {sizes.width} wide. The paper's released script
has 256, 4, 2 and 64, and 4 and 256; its text says 768 for Transformer-PSM.""",
        f"## To {last:,} tokens",
        f"""Transformer-PSM at {last:,} tokens takes x{whole:.2f} the time per token that it takes at {first:,}. Its
state grows with the logarithm of the position: a root and a fold for each set bit of the number of chunks.""",
        table(["position", "ms per token", "slowest token", "MiB held"], stream),
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
The slowest token of Transformer-PSM is one that completes or begins a chunk. Held bytes are the most within those
tokens. An interrupted run is done again from the start. Numbers: `latency.csv`; sizes in `sizes.json`.""",
    ]


def _processor() -> str:
    return f"{torch.get_num_threads()} thread(s) of a CPU ({platform.machine()})"
