"""Loss by position of a language model that reads on far beyond its windows, from state to state."""

from dataclasses import asdict, dataclass, replace
from math import exp
from pathlib import Path
from typing import Any

import torch
from torch.nn import functional

from scannable.experiments.record import leave, left
from scannable.models.layer_options import AttentionOptions
from scannable.models.lm import LM
from scannable.models.protocol import evaluating
from scannable.tasks import IGNORED
from scannable.training.evaluation import Text

PIECE = 512
"""Tokens read at once."""


@dataclass(frozen=True)
class Stretch:
    """The positions from `begin` to `end` of all streams."""

    begin: int
    end: int
    asked: int
    loss: float
    """Mean over what was asked, in nats."""

    @property
    def perplexity(self) -> float:
        return exp(self.loss)


def with_cache(model: LM, cache: int) -> LM:
    """A stack of attention with the same weights that forgets all but the last `cache` positions."""
    layers = tuple(
        replace(layer, window=cache) if isinstance(layer, AttentionOptions) else layer for layer in model.config.layers
    )
    forgetful = LM(replace(model.config, layers=layers)).to(next(model.parameters()).device)
    forgetful.load_state_dict(model.state_dict())
    return forgetful


def stretches(length: int, first: int) -> list[tuple[int, int]]:
    """0 to `first`, then from each power of two times it to the next."""
    ends = [first]
    while ends[-1] < length:
        ends.append(min(2 * ends[-1], length))
    return list(zip([0, *ends], ends, strict=False))


@torch.no_grad()
def measure(model: Any, task: Text, length: int, first: int) -> list[Stretch]:
    """All of the test split as streams of `length` tokens side by side, the last one shorter."""
    count, device = task.windows("test", length), next(model.parameters()).device
    loss, asked = torch.zeros(length, dtype=torch.float64), torch.zeros(length, dtype=torch.float64)
    with evaluating(model):
        for row in range(count):
            batch, state = task.window_batch("test", [row], length), model.initial_state(1)
            for begin in range(0, length, PIECE):
                piece = slice(begin, min(length, begin + PIECE))
                targets = batch.targets[:, piece].to(device)
                if not bool((targets != IGNORED).any()):
                    break
                logits, state = model.prefill(batch.tokens[:, piece].to(device), state)
                found = functional.cross_entropy(
                    logits.flatten(0, 1).float(), targets.flatten(), ignore_index=IGNORED, reduction="none"
                )
                loss[piece] += found.cpu().double()
                asked[piece] += (targets != IGNORED).flatten().cpu()
    return [
        Stretch(begin, end, int(n), float(loss[begin:end].sum() / n))
        for begin, end in stretches(length, first)
        if (n := asked[begin:end].sum())
    ]


def kept(folder: Path, length: int, cache: int | None = None) -> list[Stretch] | None:
    """What was left with a run that has ended; None if nothing was."""
    return left(_path(folder, length, cache), lambda plain: [Stretch(**one) for one in plain])


def keep(folder: Path, length: int, found: list[Stretch], cache: int | None = None) -> None:
    """Leave it there."""
    leave(_path(folder, length, cache), [asdict(one) for one in found])


def _path(folder: Path, length: int, cache: int | None) -> Path:
    return folder / (f"stream-{length}.json" if cache is None else f"stream-{length}-cache-{cache}.json")
