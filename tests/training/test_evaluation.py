"""What an evaluation says, by hand."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from scannable.tasks import IGNORED, Batch
from scannable.training.evaluation import evaluate


class Constant(nn.Module):
    """The same logits everywhere."""

    def __init__(self, logits: list[float]) -> None:
        super().__init__()
        self.logits = nn.Parameter(torch.tensor(logits))

    def forward(self, tokens: Tensor) -> Tensor:
        return self.logits.expand(*tokens.shape, -1)


@dataclass(frozen=True)
class Fixed:
    """Targets 0 and 1 in turn; of every fourth sample nothing is asked but the last position."""

    vocab_size: int = 2
    out_size: int = 2

    def batch(self, split: Any, indices: Sequence[int] | np.ndarray, length: int) -> Batch:
        places = torch.arange(length).expand(len(indices), -1)
        quiet = torch.tensor([i % 4 == 0 for i in indices])[:, None] & (places < length - 1)
        return Batch(torch.zeros_like(places), (places % 2).masked_fill(quiet, IGNORED))


@dataclass(frozen=True)
class Text(Fixed):
    """Ten windows, 2.5 bytes a token."""

    def windows(self, split: Any, length: int) -> int:
        return 10

    def window_batch(self, split: Any, indices: Sequence[int] | np.ndarray, length: int) -> Batch:
        return self.batch(split, indices, length)

    def bytes_per_token(self, split: Any) -> float:
        return 2.5


@pytest.mark.parametrize("batch_tokens", [1, 8, 12, 1000])
def test_loss_and_error_are_over_what_is_asked(batch_tokens: int) -> None:
    """Probabilities 3/4 and 1/4: of length 4, six samples ask four times, two once (for a 1)."""
    model = Constant([math.log(3.0), 0.0])
    score = evaluate(model, Fixed(), "test", 4, 8, batch_tokens=batch_tokens)
    zeros, ones = 6 * 2, 6 * 2 + 2
    mean = (zeros * math.log(4 / 3) + ones * math.log(4)) / (zeros + ones)
    assert score.loss == pytest.approx(mean, rel=1e-6)
    assert score.error == pytest.approx(ones / (zeros + ones))
    assert score.error_by_position == (0.0, 1.0, 0.0, 1.0)
    assert (score.samples, score.length, score.bits_per_byte) == (8, 4, None)


def test_a_position_where_nothing_is_asked_has_no_error() -> None:
    score = evaluate(Constant([0.0, 1.0]), Fixed(), "test", 4, 1, batch_tokens=100)
    assert score.error_by_position == (None, None, None, 0.0) and score.error == 0.0


def test_bits_per_byte_are_bits_over_bytes() -> None:
    score = evaluate(Constant([0.0, 0.0]), Text(), "test", 4, None, batch_tokens=12)
    assert score.samples == 10 and score.loss == pytest.approx(math.log(2))
    assert score.bits_per_byte == pytest.approx(1 / 2.5)  # one bit a token
    assert evaluate(Constant([0.0, 0.0]), Text(), "validation", 4, 3, batch_tokens=12).samples == 3


def test_it_says_how_far_it_is_and_can_be_ended() -> None:
    seen: list[tuple[int, int]] = []
    evaluate(Constant([0.0, 0.0]), Fixed(), "test", 4, 7, batch_tokens=12, each=lambda *at: seen.append(at))
    assert seen == [(0, 7), (3, 7), (6, 7)]

    def end(done: int, count: int) -> None:
        if done:
            raise InterruptedError

    model = Constant([0.0, 0.0])
    with pytest.raises(InterruptedError):
        evaluate(model, Fixed(), "test", 4, 7, batch_tokens=12, each=end)
    assert model.training  # as it was


def test_what_has_no_end_needs_a_number_of_samples() -> None:
    with pytest.raises(ValueError, match="Fixed has no end; say how many samples"):
        evaluate(Constant([0.0, 0.0]), Fixed(), "test", 4, None, batch_tokens=12)
