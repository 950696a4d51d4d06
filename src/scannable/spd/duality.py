"""Sequential-parallel duality, checked: one function, however its tokens arrive."""

import copy
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from jaxtyping import Int
from torch import Tensor, nn

from scannable.protocol import SequenceModel
from scannable.scan.tree import flatten
from scannable.spd.report import Difference, DualityReport

TOLERANCE = {torch.float64: 1e-10, torch.float32: 2e-4, torch.bfloat16: 0.05}
"""Largest difference allowed, relative to the outputs' root mean square. float64 leaves only true mistakes; float32
and bfloat16 round differently in batches of different shapes, bfloat16 (8 bits) at every layer and tree level."""


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

    Works for any model with the protocol. The model is put in evaluation mode for the check; with `dtype` a copy of it
    is converted first.

    Args:
        tokens: (batch, length), at least one token.
        splits: how many random ways to cut the tokens into prefills; half of them end in single steps.
        tolerance: relative to the outputs' scale; by default the one stated in `TOLERANCE` for the outputs' dtype.
    """
    if tokens.ndim != 2 or tokens.shape[1] == 0:
        raise ValueError(f"tokens have the shape {tuple(tokens.shape)}; expected (batch, length) with a length above 0")
    if dtype is not None:
        if not isinstance(model, nn.Module):
            raise TypeError(f"dtype={dtype} needs an nn.Module to convert, not {type(model).__name__}")
        model = copy.deepcopy(model).to(dtype)
    with _evaluating(model):
        with _counting(model) as parallel:
            truth = model(tokens)
        differences: list[Difference] = []
        with _counting(model) as stepped:
            outputs, state = _run(model, tokens, [1] * tokens.shape[1])
        differences.append(_difference("step by step", outputs, truth))
        generator = torch.Generator().manual_seed(seed)
        for i in range(splits):
            lengths = _random_split(tokens.shape[1], steps_at_the_end=i % 2 == 1, generator=generator)
            outputs, _ = _run(model, tokens, lengths)
            name = "+".join(map(str, lengths[:4])) + ("+..." if len(lengths) > 4 else "")
            differences.append(_difference(f"prefill {name}", outputs, truth))
    formula = getattr(model, "state_nbytes", None)
    chunk_length = getattr(model, "chunk_length", None)
    return DualityReport(
        model=type(model).__name__,
        dtype=str(truth.dtype).removeprefix("torch."),
        batch=tokens.shape[0],
        length=tokens.shape[1],
        tolerance=TOLERANCE[truth.dtype] if tolerance is None else tolerance,
        scale=float(truth.double().square().mean().sqrt()),
        differences=tuple(differences),
        chunks=None if chunk_length is None else -(-tokens.shape[1] // chunk_length),
        parallel_calls=None if parallel is None else parallel.calls,
        parallel_evaluations=None if parallel is None else parallel.evaluations,
        step_evaluations=None if stepped is None else stepped.evaluations,
        nbytes=state.nbytes,
        nbytes_bound=None if formula is None else formula(tokens.shape[1], tokens.shape[0]),
    )


def _run(model: SequenceModel, tokens: Tensor, lengths: list[int]) -> tuple[Tensor, Any]:
    """Consume the tokens in pieces: pieces of one by `step`, longer ones by `prefill`."""
    state = model.initial_state(tokens.shape[0])
    outputs: list[Tensor] = []
    for piece in tokens.split(lengths, 1):
        if piece.shape[1] == 1:
            one, state = model.step(piece[:, 0], state)
            outputs.append(one[:, None])
        else:
            several, state = model.prefill(piece, state)
            outputs.append(several)
    if state.position != tokens.shape[1]:
        raise AssertionError(f"the state says position {state.position} after {tokens.shape[1]} tokens")
    return torch.cat(outputs, 1), state


def _difference(way: str, outputs: Tensor, truth: Tensor) -> Difference:
    if outputs.shape != truth.shape:
        raise AssertionError(f"{way} gives outputs of shape {tuple(outputs.shape)}, in parallel {tuple(truth.shape)}")
    # A comparison with NaN is false: let it count as the worst difference instead.
    apart = (outputs.double() - truth.double()).abs().amax(-1).nan_to_num(nan=float("inf"))
    place = int(apart.argmax())
    return Difference(way, float(apart.flatten()[place]), *divmod(place, truth.shape[1]))


def _random_split(n: int, *, steps_at_the_end: bool, generator: torch.Generator) -> list[int]:
    lengths: list[int] = []
    last = min(n - 1, 3) if steps_at_the_end else 0
    while sum(lengths) < n - last:
        left = n - last - sum(lengths)
        lengths.append(int(torch.randint(1, left + 1, (1,), generator=generator)))
    return lengths + [1] * last


@contextmanager
def _evaluating(model: Any) -> Iterator[None]:
    training = getattr(model, "training", False)
    if training:
        model.eval()
    try:
        yield
    finally:
        if training:
            model.train()


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
