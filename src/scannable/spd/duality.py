"""Sequential-parallel duality, checked: one function, however its tokens arrive."""

import copy
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import torch
from jaxtyping import Int
from torch import Tensor, nn

from scannable.models.protocol import SequenceModel, evaluating
from scannable.scan.tree import flatten
from scannable.spd.expected import Expected
from scannable.spd.report import Difference, DualityReport


@torch.no_grad()
def verify_duality(
    model: SequenceModel,
    tokens: Int[Tensor, "b n"],
    *,
    dtype: torch.dtype | None = None,
    splits: int = 4,
    seed: int = 0,
    tolerance: float | None = None,
) -> DualityReport:
    """Run `model` in parallel, by prefill in random splits, and step by step, and compare all outputs.

    Also compared: prefills that end around chunk boundaries, prefills of one token, a stream and its fork that go
    different ways, a row without the others, and outputs before a change of later tokens. Works for any model with the
    protocol. The model is in evaluation mode meanwhile; with `dtype` a copy of it is converted first.

    In half precision all of them, the parallel form too, are compared with the same weights in float32 instead, and may
    be as far from it as rounding explains: two correct ways round differently, and some outputs amplify that.

    Args:
        tokens: (batch, length), at least one token.
        splits: how many random ways to cut the tokens into prefills; half of them end in single steps.
        tolerance: relative to the outputs' scale; by default what `spd.expected.TOLERANCE` states for their dtype, or
            in half precision what rounding explains.

    >>> model = sc.TransformerPSM(sc.TransformerPSMConfig(vocab_size=50, width=16, heads=2, chunk_length=4))
    >>> sc.verify_duality(model, torch.randint(50, (2, 30)), dtype=torch.float64).passed
    True
    """
    if tokens.ndim != 2 or tokens.shape[1] == 0:
        raise ValueError(f"tokens have the shape {tuple(tokens.shape)}; expected (batch, length) with a length above 0")
    if dtype is not None:
        if not isinstance(model, nn.Module):
            raise TypeError(f"dtype={dtype} needs an nn.Module to convert, not {type(model).__name__}")
        model = copy.deepcopy(model).to(dtype)
    batch, n = tokens.shape
    chunk_length = getattr(model, "chunk_length", None)
    with evaluating(model):
        with _counting(model) as parallel:
            outputs = model(tokens)
        expected = Expected.of(model, tokens, outputs, tolerance)
        differences = [] if expected.outputs is outputs else [expected.difference("in parallel", outputs)]
        with _counting(model) as stepped:
            one_by_one, state = _run(model, tokens, [1] * n)
        differences.append(expected.difference("step by step", one_by_one))
        generator = torch.Generator().manual_seed(seed)
        ways = [
            _random_split(n, steps_at_the_end=i % 2 == 1, generator=generator) for i in range(splits)
        ] + _awkward_splits(n, chunk_length or 1)
        for i, lengths in enumerate(ways):
            pieces, _ = _run(model, tokens, lengths, ones_by_step=i < splits)
            name = "+".join(map(str, lengths[:4])) + ("+..." if len(lengths) > 4 else "")
            differences.append(expected.difference(f"prefill {name}", pieces))
        differences += _branches(model, tokens, expected, tolerance)
        if batch > 1:
            differences.append(expected.difference("a row without the others", model(tokens[1:2]), first_row=1))
    formula = getattr(model, "state_nbytes", None)
    return DualityReport(
        model=type(model).__name__,
        dtype=str(outputs.dtype).removeprefix("torch."),
        batch=batch,
        length=n,
        tolerance=expected.tolerance,
        scale=expected.scale,
        differences=tuple(differences),
        chunks=None if chunk_length is None else -(-n // chunk_length),
        parallel_calls=None if parallel is None else parallel.calls,
        parallel_evaluations=None if parallel is None else parallel.evaluations,
        step_evaluations=None if stepped is None else stepped.evaluations,
        nbytes=state.nbytes,
        nbytes_bound=None if formula is None else formula(n, batch),
    )


def _run(
    model: SequenceModel, tokens: Tensor, lengths: list[int], *, ones_by_step: bool = True, state: Any = None
) -> tuple[Tensor, Any]:
    """Consume the tokens in pieces; pieces of one by `step`, unless told, longer ones by `prefill`."""
    state = model.initial_state(tokens.shape[0]) if state is None else state
    outputs: list[Tensor] = []
    for piece in tokens.split(lengths, 1):
        expected = state.position + piece.shape[1]
        if piece.shape[1] == 1 and ones_by_step:
            one, state = model.step(piece[:, 0], state)
            outputs.append(one[:, None])
        else:
            several, state = model.prefill(piece, state)
            outputs.append(several)
        if state.position != expected:
            raise AssertionError(f"the state says position {state.position} after {expected} tokens")
    return torch.cat(outputs, 1), state


def _branches(model: SequenceModel, tokens: Tensor, expected: Expected, tolerance: float | None) -> list[Difference]:
    """Fork half-way; the fork goes on with other tokens, first, and must not be noticed by the stream it left."""
    n = tokens.shape[1]
    half = n // 2
    changed = torch.cat((tokens[:, :half], tokens[:, half:].flip(1)), 1)
    state = model.initial_state(tokens.shape[0])
    if half:
        _, state = model.prefill(tokens[:, :half], state)
    forked, _ = _run(model, changed[:, half:], [1] * (n - half), state=state.fork())
    going_on, _ = _run(model, tokens[:, half:], [n - half], ones_by_step=False, state=state)
    parallel = model(changed)
    return [
        Expected.of(model, changed, parallel, tolerance).difference("the fork of a stream", forked, start=half),
        expected.difference("a stream after its fork", going_on, start=half),
        expected.difference("before later tokens change", parallel[:, :half]),
    ]


def _random_split(n: int, *, steps_at_the_end: bool, generator: torch.Generator) -> list[int]:
    lengths: list[int] = []
    last = min(n - 1, 3) if steps_at_the_end else 0
    while sum(lengths) < n - last:
        left = n - last - sum(lengths)
        lengths.append(int(torch.randint(1, left + 1, (1,), generator=generator)))
    return lengths + [1] * last


def _awkward_splits(n: int, c: int) -> list[list[int]]:
    """Around the ends of chunks, at the ends of chunks, and single tokens at the end."""
    around = {place for k in (1, 2, 3, n // c) for place in (k * c - 1, k * c, k * c + 1)}
    singles = set(range(max(1, n - min(2 * c + 2, 20)), n))
    splits: list[list[int]] = []
    for cuts in (around, {c, 3 * c, n // c * c}, singles):
        places = [0, *sorted(place for place in cuts if 0 < place < n), n]
        splits.append([end - start for start, end in pairwise(places)])
    return splits


@dataclass
class _Counts:
    calls: int = 0
    evaluations: int = 0


@contextmanager
def _counting(model: Any) -> Iterator[_Counts | None]:
    """Count the batched calls of the model's `agg`, if it has one, and the pairs in them for each row of the batch."""
    agg = getattr(model, "agg", None)
    if not isinstance(agg, nn.Module):
        yield None
        return
    counts = _Counts()

    def count(_: nn.Module, pair: tuple[Any, ...]) -> None:
        counts.calls += 1
        # A scan calls Agg with the elements of a tree level along the first axis.
        counts.evaluations += flatten(pair[0])[0][0].shape[0]

    hook = agg.register_forward_pre_hook(count)
    try:
        yield counts
    finally:
        hook.remove()
