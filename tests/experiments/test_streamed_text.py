"""Loss by position: what one parallel pass over a whole stream gives, stretch by stretch."""

from math import exp
from pathlib import Path

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.nn import functional

from scannable.experiments import streamed_text
from scannable.experiments.streamed_text import Stretch, keep, kept, measure, stretches, with_cache
from scannable.models.layer_options import AttentionOptions
from scannable.models.lm import LM
from scannable.models.lm_config import LMConfig
from scannable.models.transformer_psm import TransformerPSM
from scannable.models.transformer_psm_config import TransformerPSMConfig
from scannable.tasks.text import TextTask


@given(length=st.integers(1, 5000), first=st.integers(1, 600))
def test_stretches_cover_every_position_once_and_double(length: int, first: int) -> None:
    if first > length:
        return
    found = stretches(length, first)
    assert [position for begin, end in found for position in range(begin, end)] == list(range(length))
    assert all(end <= 2 * begin for begin, end in found[1:]) and found[0] == (0, first)


def test_the_loss_of_a_stretch_is_that_of_a_parallel_pass(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "book.txt").write_text("the cat sat on the mat, and the dog on the log. " * 40)
    task = TextTask(str(tmp_path / "book.txt"), cache=tmp_path / "cache")
    torch.manual_seed(0)
    model = TransformerPSM(TransformerPSMConfig(257, 8, chunk_length=4, agg_layers=1, inf_layers=1, heads=1)).double()
    monkeypatch.setattr(streamed_text, "PIECE", 7)
    found = measure(model, task, 50, 16)
    count = task.windows("test", 50)
    batch = task.window_batch("test", range(count), 50)
    assert count > 1 and bool((batch.targets == -100).any())
    with torch.no_grad():
        logits = model.eval()(batch.tokens)
    losses = functional.cross_entropy(logits.flatten(0, 1), batch.targets.flatten(), reduction="none").view(count, 50)
    assert [(one.begin, one.end) for one in found] == [(0, 16), (16, 32), (32, 50)]
    for one in found:
        asked = (batch.targets[:, one.begin : one.end] != -100).sum()
        assert one.asked == asked
        # Losses are taken in float32.
        assert one.loss == pytest.approx(float(losses[:, one.begin : one.end].sum() / asked), rel=1e-5)
        assert one.perplexity == exp(one.loss)


def test_attention_that_keeps_its_window_is_attention_over_that_window() -> None:
    torch.manual_seed(0)
    model = LM(LMConfig(11, (AttentionOptions(positions="rotary"),), 8, heads=1)).double().eval()
    tokens = torch.randint(11, (1, 20))
    forgetful = with_cache(model, 8).double().eval()
    torch.testing.assert_close(forgetful(tokens[:, :8]), model(tokens[:, :8]))
    # One layer of attention: every position is the last one of a window of eight.
    for end in range(8, 21):
        torch.testing.assert_close(forgetful(tokens)[:, end - 1], model(tokens[:, end - 8 : end])[:, -1])
    logits, state = forgetful.prefill(tokens, forgetful.initial_state(1))
    torch.testing.assert_close(logits, forgetful(tokens))
    _, longer = forgetful.prefill(torch.randint(11, (1, 200)), forgetful.initial_state(1))
    assert longer.nbytes == state.nbytes


def test_what_was_read_is_kept_beside_its_run(tmp_path: Path) -> None:
    found = [Stretch(0, 8, 16, 1.25), Stretch(8, 16, 16, 1.5)]
    assert kept(tmp_path, 16) is None
    keep(tmp_path, 16, found)
    assert kept(tmp_path, 16) == found and kept(tmp_path, 32) is None
    keep(tmp_path, 16, found[:1], cache=8)
    assert kept(tmp_path, 16, cache=8) == found[:1] and kept(tmp_path, 16) == found
    (tmp_path / "stream-16.json").write_text("[{}]")
    with pytest.raises(ValueError, match=r"stream-16\.json cannot be read.*delete it"):
        kept(tmp_path, 16)
