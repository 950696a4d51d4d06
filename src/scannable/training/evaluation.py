"""How good a model is at a task: loss, and error by position, over a fixed set of samples."""

import math
from collections.abc import Callable
from collections.abc import Sequence as Indices
from dataclasses import dataclass
from typing import Any, Protocol, runtime_checkable

import torch
from torch import Tensor, nn
from torch.nn import functional

from scannable.models.protocol import evaluating
from scannable.tasks import IGNORED, Batch, Split, Task
from scannable.training.sequence import Sequence


@dataclass(frozen=True)
class Score:
    """What an evaluation found at one length."""

    length: int
    samples: int
    loss: float
    """Mean cross-entropy over all targets, in nats."""
    error: float
    """The fraction of targets whose likeliest output is another."""
    error_by_position: tuple[float | None, ...]
    """The same at each position; None where nothing was asked."""
    bits_per_byte: float | None = None
    """Of text: the loss in bits, over bytes instead of tokens, so that different tokenizers compare."""


@torch.no_grad()
def evaluate(
    model: nn.Module,
    task: Task,
    split: Split,
    length: int,
    samples: int | None,
    *,
    batch_tokens: int,
    precision: str = "float32",
    each: Callable[[int, int], None] = lambda done, count: None,
    sequence: Sequence | None = None,
) -> Score:
    """Over the first `samples` samples of a split, in batches of about `batch_tokens` tokens.

    Of a text those are windows one after the other, and `None` takes all of them: every token is asked once. `each` is
    called before every batch with the samples that are done and those that there are; what it raises ends the
    evaluation. With `sequence`, samples are split over these processes, which all call and get the same.
    """
    text = task if isinstance(task, Text) and split != "train" else None
    there_are = text.windows(split, length) if text else samples
    if there_are is None:
        raise ValueError(f"{type(task).__name__} has no end; say how many samples")
    count = there_are if samples is None else min(samples, there_are)
    device = next(model.parameters()).device
    loss, wrong, asked = (torch.zeros(length, dtype=torch.float64) for _ in range(3))
    at_once = max(1, batch_tokens // length)
    with evaluating(model), autocast(device, precision):
        for first in range(0, count, at_once):
            each(first, count)
            indices = range(first, min(count, first + at_once))
            batch = text.window_batch(split, indices, length) if text else task.batch(split, indices, length)
            tokens, targets, places = batch.tokens.to(device), batch.targets.to(device), slice(None)
            if sequence is None:
                logits: Tensor = model(tokens)
            else:
                part = sequence.part(model, tokens.shape[1])
                places = slice(part.first, part.stop)
                targets = targets[:, places]
                head: Any = model.head
                logits = head(sequence.hidden(model, tokens[:, places], part))
            losses = functional.cross_entropy(
                logits.flatten(0, 1).float(), targets.flatten(), ignore_index=IGNORED, reduction="none"
            )
            valid = targets != IGNORED
            loss[places] += losses.reshape(targets.shape).cpu().double().sum(0)
            wrong[places] += ((logits.argmax(-1) != targets) & valid).sum(0).cpu()
            asked[places] += valid.sum(0).cpu()
    if sequence is not None:
        # Every position has one owner.
        for counts in (loss, wrong, asked):
            sequence.add(counts)
    total = max(1.0, float(asked.sum()))
    mean = float(loss.sum()) / total
    return Score(
        length,
        count,
        mean,
        float(wrong.sum()) / total,
        tuple(float(w / a) if a else None for w, a in zip(wrong, asked, strict=True)),
        mean / math.log(2) / text.bytes_per_token(split) if text else None,
    )


@runtime_checkable
class Text(Protocol):
    """A task whose splits end, and can be walked through."""

    def windows(self, split: Split, length: int) -> int: ...

    def window_batch(self, split: Split, indices: Indices[int], length: int) -> Batch: ...

    def bytes_per_token(self, split: Split) -> float: ...


def autocast(device: torch.device, precision: str) -> torch.autocast:
    """Computing in bfloat16 where that is asked for."""
    return torch.autocast(device.type, torch.bfloat16, enabled=precision == "bfloat16")
