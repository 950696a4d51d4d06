"""What each departure of PAPER.md is worth: the same quantity as corrected and as printed.

Values, calls of Agg and seconds of untrained models; perplexity and error of small ones, trained with one switch at a
time turned back (`corrected_runs.py`).
"""

import math
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from typing import Any

import torch
from torch import Tensor

from scannable.experiments import wrong_scans
from scannable.experiments.as_printed_config import as_printed
from scannable.experiments.corrected_runs import RIGHT, STATE_SWITCHES, TEXT_SWITCHES, Sizes
from scannable.experiments.laboratory import Trained
from scannable.experiments.scan_cost import non_associative
from scannable.models.protocol import evaluating
from scannable.models.transformer_psm import TransformerPSM
from scannable.models.transformer_psm_config import TransformerPSMConfig
from scannable.scan import BinaryCounter, reference, scan
from scannable.spd.counters import CountedAgg
from scannable.storage.model_file import build_model
from scannable.training.evaluation import evaluate
from scannable.training.run_folder import TrainedModel, load_trained
from scannable.weights import load_shipped


@dataclass(frozen=True)
class Difference:
    """One quantity, as corrected and as printed."""

    switch: str
    quantity: str
    seed: int | None
    """Of a trained run; None where nothing was trained."""
    corrected: float
    printed: float


# What needs no training: values, calls, seconds.


def transformer(c: int, width: int = 64, **switches: Any) -> TransformerPSM:
    torch.manual_seed(0)
    config = TransformerPSMConfig(16, width, 2, chunk_length=c, agg_layers=1, inf_layers=1, **switches)
    return TransformerPSM(config).eval()


def apart(a: Tensor, b: Tensor) -> float:
    """|a - b| over the norm of both: 0 if equal, 1.41 if unrelated."""
    return float((a - b).norm() / torch.cat((a, b)).norm() * 2**0.5)


@torch.no_grad()
def values() -> Iterator[Difference]:
    """How far results move with the same weights."""
    for c in (1, 32):
        both, causal = transformer(c), transformer(c, agg_causal=True)
        causal.load_state_dict(both.state_dict())
        older, newer = torch.randn(2, 8, c, 64)
        moved = apart(both.agg(older, newer), causal.agg(older, newer))
        yield Difference("causal", f"Agg's result at c = {c}, one layer: moved by", None, 0.0, moved)
    model = transformer(8)
    xs = torch.randn(1, 64, 8, 64)
    law, literal = (scan(model.agg, xs, identity=model.identity, dim=1, literal=called) for called in (False, True))
    yield Difference("literal", "64 prefixes of an untrained Agg: moved by", None, 0.0, apart(law, literal))
    numbers, e = torch.randint(-9, 9, (1, 64)), torch.tensor(0)
    right = scan(non_associative, numbers, identity=e, dim=1)
    for name, wrong in wrong_scans.SCANS.items():
        same = int((wrong(non_associative, numbers, e) == right).sum())
        yield Difference(name, "right ones among 64 prefixes of 2a + 3b", None, 64, same)
        sums = scan(torch.add, numbers, identity=e, dim=1)
        same = int((wrong(torch.add, numbers, e) == sums).sum())
        yield Difference(name, "right ones among 64 prefix sums", None, 64, same)


def calls(numbers: Sequence[int] = (1024, 65_536)) -> Iterator[Difference]:
    """How often Agg is evaluated for a chunk, and how many calls wait for each other."""
    for r in numbers:
        kept, refolding, literal = (CountedAgg(lambda older, newer: None) for _ in range(3))
        counter: BinaryCounter[None] = BinaryCounter(kept, None)
        called: BinaryCounter[None] = BinaryCounter(literal, None, literal=True)
        for _ in range(r):
            counter.push(None)
            called.push(None)
        for _ in reference.refolding_counter(refolding, range(r), None, literal=False):
            pass
        what = f"evaluations of Agg a chunk, {r:,} chunks"
        yield Difference("refolding", what, None, kept.calls / r, refolding.calls / r)
        yield Difference("literal", what, None, kept.calls / r, literal.calls / r)
    parallel, in_turn = CountedAgg(torch.add), CountedAgg(torch.add)
    scan(parallel, torch.arange(64), identity=torch.tensor(0))
    one_by_one = BinaryCounter(in_turn, torch.tensor(0))
    for x in torch.arange(63):
        one_by_one.push(x)
    yield Difference("sequential", "calls of Agg in a row, 64 chunks", None, parallel.calls, in_turn.calls)


def seconds() -> Iterator[Difference]:
    """In turn, several times, the best of each."""
    model = transformer(32)
    xs = list(torch.randn(256, 1, 32, 64))

    @torch.no_grad()
    def kept() -> None:
        counter = BinaryCounter(model.agg, model.identity[None])
        for x in xs:
            counter.push(x)

    @torch.no_grad()
    def refolding() -> None:
        for _ in reference.refolding_counter(model.agg, xs, model.identity[None], literal=False):
            pass

    a, b = _best(kept, refolding)
    yield Difference("refolding", "ms a chunk, first 256 chunks of one stream", None, 1e3 * a / 256, 1e3 * b / 256)
    chunks = torch.randn(4, 64, 32, 64)

    def parallel() -> None:
        scan(model.agg, chunks, identity=model.identity, dim=1).sum().backward()

    def in_turn() -> None:
        counter, prefixes = BinaryCounter(model.agg, model.identity.expand(4, 32, 64)), list[Tensor]()
        for x in chunks.unbind(1):
            prefixes.append(counter.prefix())
            counter.push(x)
        torch.stack(prefixes).sum().backward()

    a, b = _best(parallel, in_turn)
    yield Difference("sequential", "ms to train on 4 x 64 chunks, Agg alone", None, 1e3 * a, 1e3 * b)


def _best(*functions: Callable[[], None]) -> list[float]:
    best = [math.inf] * len(functions)
    for _ in range(3):
        for i, function in enumerate(functions):
            began = time.perf_counter()
            function()
            best[i] = min(best[i], time.perf_counter() - began)
    return best


# The shipped S5 model, read in other ways than it was trained.


IDENTITY_CALLED = "Agg(e, x) in the shipped S5 model: from x by"


@torch.no_grad()
def in_s5(length: int = 1024, samples: int = 32) -> Iterator[Difference]:
    """Token errors, in percent, of one set of weights."""
    shipped = load_shipped("s5")
    elements = shipped.model.enc(torch.arange(shipped.recipe.task.vocab_size)[:, None])
    called = shipped.model.agg(shipped.model.identity.expand_as(elements), elements)
    yield Difference("literal", IDENTITY_CALLED, None, 0.0, apart(elements, called))
    right = _error(shipped.model, shipped, length, samples)
    ways = {**STATE_SWITCHES, "causal": {"agg_causal": True}}
    for name in ("causal", "literal", "late", "swapped", "forgetful"):
        turned = build_model(as_printed(shipped.model.config, **ways[name]))
        turned.load_state_dict(shipped.model.state_dict())
        error = _error(turned, shipped, length, samples)
        yield Difference(name, f"error of the shipped S5 model at {length:,}, %", None, right, error)


# What is trained.


def as_corrected(model: Any) -> TransformerPSM:
    """The same weights, with every switch back where it should be."""
    shared: dict[str, Any] = {field.name: getattr(model.config, field.name) for field in fields(TransformerPSMConfig)}
    right = TransformerPSM(TransformerPSMConfig(**{**shared, "agg_causal": False, "literal_identity": False}))
    right.load_state_dict(model.state_dict())
    return right.eval()


def in_text(trained: Mapping[str, Trained], use: Sizes) -> Iterator[Difference]:
    """Perplexities of the test split, every token scored, unless the switch says otherwise."""
    for seed in use.seeds:
        runs = {name: trained[f"text-{name}-{seed}"] for name in TEXT_SWITCHES}
        best = math.exp(runs[RIGHT].test[use.context]["loss"])

        def perplexity(name: str, length: int, runs: Mapping[str, Trained] = runs) -> float:
            return math.exp(runs[name].test[length]["loss"])

        for name in TEXT_SWITCHES:
            if name != RIGHT:
                yield Difference(name, "perplexity", seed, best, perplexity(name, use.context))
        yield Difference(
            "absolute",
            f"perplexity at {use.longer:,} tokens",
            seed,
            perplexity(RIGHT, use.longer),
            perplexity("absolute", use.longer),
        )
        leaking = load_trained(runs["leaking"].folder)
        yield Difference(
            "leaking",
            "perplexity of its weights when Inf gets what a stream has",
            seed,
            best,
            perplexity_of(as_corrected(leaking.model), leaking.recipe.task, use)[0],
        )
        right = load_trained(runs[RIGHT].folder)
        yield Difference("scoring", "perplexity", seed, *perplexity_of(right.model, right.recipe.task, use))


@torch.no_grad()
def perplexity_of(model: Any, task: Any, use: Sizes) -> tuple[float, float]:
    """Over all tokens of the test split, and without the first token of each chunk, as the released code scores."""
    count = task.windows("test", use.context)
    loss = torch.zeros(use.context, dtype=torch.float64)
    asked = torch.zeros(use.context, dtype=torch.float64)
    with evaluating(model):
        for first in range(0, count, 8):
            batch = task.window_batch("test", range(first, min(count, first + 8)), use.context)
            losses = torch.nn.functional.cross_entropy(
                model(batch.tokens).flatten(0, 1), batch.targets.flatten(), ignore_index=-100, reduction="none"
            )
            loss += losses.view_as(batch.targets).double().sum(0)
            asked += (batch.targets != -100).sum(0)
    # Position i says token i + 1: the last one of a chunk says the first of the next.
    inside = (torch.arange(use.context) + 1) % use.chunk_length != 0
    return math.exp(loss.sum() / asked.sum()), math.exp(loss[inside].sum() / asked[inside].sum())


def in_states(trained: Mapping[str, Trained], use: Sizes) -> Iterator[Difference]:
    """Token errors, in percent."""
    lengths = (use.lengths[-1], *use.beyond)
    for seed in use.seeds:
        runs = {name: trained[f"states-{name}-{seed}"] for name in STATE_SWITCHES}
        for name in STATE_SWITCHES:
            for length in lengths:
                right, printed = (100 * runs[one].test[length]["error"] for one in (RIGHT, name))
                if name != RIGHT:
                    yield Difference(name, f"error at {length:,}, %", seed, right, printed)
        right = load_trained(runs[RIGHT].folder)
        for name in wrong_scans.SCANS:
            longest = lengths[-1]
            error = 100 * runs[RIGHT].test[longest]["error"]
            turned = build_model(replace(right.model.config, tree=name))
            turned.load_state_dict(right.model.state_dict())
            yield Difference(
                name, f"error at {longest:,} of the corrected weights, %", seed, error, _error(turned, right, longest)
            )
            streamed = as_corrected(load_trained(runs[name].folder).model)
            yield Difference(
                name,
                f"error at {longest:,} of its weights in a stream, %",
                seed,
                error,
                _error(streamed, right, longest),
            )


def _error(model: Any, like: TrainedModel, length: int, samples: int = 256) -> float:
    score = evaluate(model.eval(), like.recipe.task, "test", length, samples, batch_tokens=8192)
    return 100 * score.error
