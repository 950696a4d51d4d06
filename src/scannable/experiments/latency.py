"""Time per token while a stream grows (Fig. "Inference time per token"), with the bytes that it holds.

Transformer-PSM, GPT-2 and Mamba to 40,960 tokens, Transformer-PSM alone to 1,000,000; one stream, and many at once.
The models take turns at each position, so that a drift of the machine meets all of them.
"""

import copy
import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

import torch
from torch import Tensor

from scannable.baselines import GPT2Baseline, GPT2BaselineConfig, MambaBaseline, MambaBaselineConfig
from scannable.baselines.model import transformers
from scannable.experiments.figure import save_figure, save_json, save_rows
from scannable.experiments.laboratory import Laboratory
from scannable.experiments.latency_page import (
    GROWING,
    LOOKS,
    MAMBA,
    PSM,
    RECENT,
    SIZES,
    STATIC,
    THEIR_MAMBA,
    VOCABULARY,
    Sizes,
    Timing,
    draw,
    write_page,
)
from scannable.layers.attention_state import AttentionState
from scannable.models.lm import LM
from scannable.models.lm_config import LMConfig
from scannable.models.protocol import StreamState
from scannable.models.transformer_psm import TransformerPSM
from scannable.models.transformer_psm_config import TransformerPSMConfig
from scannable.nn import KVCache

PIECE = 4096
"""Tokens that are prefilled at once."""


@dataclass(frozen=True)
class Candidate:
    """A model that can be put at any position and go on from there."""

    name: str
    state_at: Callable[[int, int], StreamState]
    """`state_at(position, tokens)`: a stream after `position` tokens, with room for so many more."""
    step: Callable[[Tensor, Any], tuple[Tensor, Any]]
    tokens: int
    streams: int = 1


def candidates(sizes: Sizes, device: str, streams: int = 1) -> list[Candidate]:
    """All models; Transformer-PSM first. With several streams, the fastest GPT-2 and Mamba only."""
    d, h, layers, steps = sizes.width, sizes.heads, sizes.layers, sizes.steps
    half = layers // 2
    config = TransformerPSMConfig(
        VOCABULARY, d, chunk_length=sizes.chunk_length, agg_layers=half, inf_layers=half, heads=h
    )
    psm, recent = (TransformerPSM(one).to(device).eval() for one in (config, replace(config, recent=1)))
    window = sizes.chunks * sizes.chunk_length
    gpt2 = GPT2Baseline(GPT2BaselineConfig(VOCABULARY, d, layers, h, sizes.positions[-1])).to(device).eval()
    mamba = LM(LMConfig(VOCABULARY, ("mamba",) * layers, d, h)).to(device).eval()
    found = [
        Candidate(PSM, Prefilled(psm, device, streams), psm.step, window, streams),
        Candidate(RECENT, Prefilled(recent, device, streams), recent.step, window, streams),
        Candidate(
            STATIC, lambda position, more: filled_cache(gpt2, position, more, streams), gpt2.step, steps, streams
        ),
        Candidate(MAMBA, lambda *_: _after_a_few(mamba, device, streams), mamba.step, steps, streams),
    ]
    if streams > 1:
        return found
    theirs = MambaBaseline(MambaBaselineConfig(VOCABULARY, d, layers)).to(device).eval()
    return [
        *found,
        Candidate(GROWING, lambda position, _: GrowingState.filled(gpt2, position), GrowingStep(gpt2), steps),
        Candidate(THEIR_MAMBA, lambda *_: _after_a_few(theirs, device), theirs.step, steps),
    ]


class Prefilled:
    """Streams that have really read their tokens, asked for at ever later positions."""

    def __init__(self, model: TransformerPSM, device: str, streams: int = 1) -> None:
        self.model = model
        self.device = device
        self.streams = streams
        self.state = model.initial_state(streams)

    def __call__(self, position: int, more: int) -> StreamState:
        while self.state.position < position:
            count = min(max(1, PIECE // self.streams), position - self.state.position)
            tokens = torch.randint(VOCABULARY, (self.streams, count), device=self.device)
            _, self.state = self.model.prefill(tokens, self.state)
        return self.state.fork()


def filled_cache(model: GPT2Baseline, position: int, more: int, streams: int = 1) -> AttentionState:
    """GPT-2 after `position` tokens, with random keys and values: time does not depend on them."""
    c, like = model.config, model.transformer.wte.weight.detach()
    room = model.capacity(position + more)
    cache = KVCache.empty(c.layers, streams, c.heads, room, c.width // c.heads, like)
    for buffer in (*cache.keys, *cache.values):
        buffer.normal_()
    cache.lengths = (position,) * streams
    return AttentionState((position,) * streams, cache)


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


def _after_a_few(model: Any, device: str, streams: int = 1) -> StreamState:
    """Mamba's state is of one size: after a few tokens a step costs what it costs anywhere."""
    _, state = model.prefill(torch.randint(VOCABULARY, (streams, 16), device=device), model.initial_state(streams))
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
            for token in torch.randint(VOCABULARY, (model.tokens, model.streams), device=device):
                began = _now(device)
                _, state = model.step(token, state)
                times.append(_now(device) - began)
                held[model.name] = max(held[model.name], state.nbytes // model.streams)
            seconds[model.name].append(times)
    return [timing(model, position, seconds[model.name], held[model.name]) for model in models]


def _now(device: str) -> float:
    if device.startswith("cuda"):
        torch.cuda.synchronize(device)
    return time.perf_counter()


def timing(model: Candidate, position: int, rounds: list[list[float]], nbytes: int) -> Timing:
    """The mean is that of the best round, which noise has met least; tails are of all steps, noise included."""
    means = [1e3 * statistics.fmean(times) for times in rounds]
    steps = [1e3 * seconds for times in rounds for seconds in times]
    return Timing(
        model.name,
        position,
        len(rounds[0]),
        min(means),
        statistics.median(means),
        max(steps),
        nbytes,
        model.streams,
        percentile(steps, 50),
        percentile(steps, 99),
    )


def percentile(values: Sequence[float], percent: int) -> float:
    """The least of the values that so many percent of them do not exceed."""
    return sorted(values)[-(-percent * len(values) // 100) - 1]


def run(lab: Laboratory) -> None:
    """Time all models at every position, and leave CSV, figure and a page. An interrupted run is done again."""
    torch.manual_seed(0)
    sizes, device = SIZES[lab.profile], lab.device
    models = candidates(sizes, device)
    timings: list[Timing] = []
    for position in (*sizes.positions, *sizes.long_positions):
        here = models if position in sizes.positions else models[:2]
        timings += measure(here, position, sizes.rounds, device)
        save_rows(timings, lab.results / "latency.csv")
        lab.console.print(f"{lab.name}: {position:,} tokens, {timings[-len(here)].milliseconds:.2f} ms a token ({PSM})")
    models = candidates(sizes, device, sizes.many)
    for position in sizes.many_positions:
        timings += measure(models, position, sizes.rounds, device)
        lab.console.print(f"{lab.name}: {sizes.many} streams at {position:,} tokens")
    timings.sort(key=lambda t: (t.streams, list(LOOKS).index(t.model)))
    save_rows(timings, lab.results / "latency.csv")
    save_json(asdict(sizes), lab.results / "sizes.json")
    save_figure(draw(timings, sizes), lab.results, "latency")
    write_page(lab, sizes, timings)
