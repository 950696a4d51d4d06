"""Two models window by window: the losses are those of each window alone, and what lies between is a paired mean."""

from math import sqrt
from pathlib import Path

import pytest
import torch
from torch.nn import functional

from scannable.experiments.by_window import BLOCK, SPLITS, between, keep, kept, measure
from scannable.models.transformer_psm import TransformerPSM
from scannable.models.transformer_psm_config import TransformerPSMConfig
from scannable.tasks.text import TextTask


def test_every_whole_window_of_both_splits_has_its_own_loss(tmp_path: Path) -> None:
    (tmp_path / "book.txt").write_text("the cat sat on the mat, and the dog on the log. " * 80)
    task = TextTask(str(tmp_path / "book.txt"), cache=tmp_path / "cache")
    torch.manual_seed(0)
    model = TransformerPSM(TransformerPSMConfig(257, 8, chunk_length=4, agg_layers=1, inf_layers=1, heads=1))
    found = measure(model, task, 23)
    assert found.keys() == {"test", "validation"}
    for split in SPLITS:
        losses = found[split]
        batch = task.window_batch(split, range(task.windows(split, 23)), 23)
        whole = (batch.targets != -100).all(1)
        # The last window is shorter, and left out.
        assert len(losses) == whole.sum() == len(whole) - 1 > 2
        with torch.no_grad():
            each = functional.cross_entropy(
                model.eval()(batch.tokens).flatten(0, 1), batch.targets.flatten(), reduction="none"
            )
        torch.testing.assert_close(
            torch.tensor(losses), each.view_as(batch.targets)[whole].mean(1), atol=1e-5, rtol=1e-6
        )


def test_what_lies_between_is_the_mean_of_the_differences_and_its_standard_error() -> None:
    first, second = [1.0, 2.0, 4.0, 4.0], [2.0, 2.0, 3.0, 7.0]
    # -1, 0, 1 and -3: their mean is -3/4, their variance 35/12.
    found = between(first, second, BLOCK)
    assert (found.mean, found.windows, found.better) == (-0.75, 4, 2)
    assert found.error == pytest.approx(sqrt(35 / 12) / 2)
    # Two at a time: -1/2 and -1, which lie 1/2 apart; a last one without a neighbour counts for the mean only.
    for more in ([], [9.0]):
        found = between(first + more, second + more, BLOCK // 2)
        assert found.mean == pytest.approx(-3 / (4 + len(more))) and found.error == pytest.approx(0.25)
    for other in ([1.0], [1.0, 2.0, 3.0]):
        with pytest.raises(ValueError, match="both need the same ones, and at least two"):
            between(other, first[: 1 if len(other) == 1 else 4], BLOCK)


def test_what_was_read_is_kept_beside_its_run(tmp_path: Path) -> None:
    assert kept(tmp_path, 16) is None
    keep(tmp_path, 16, {"test": [1.23457], "validation": [2.0, 3.0]})
    assert kept(tmp_path, 16) == {"test": [1.23457], "validation": [2.0, 3.0]} and kept(tmp_path, 32) is None
    (tmp_path / "windows-16.json").write_text("{}")
    with pytest.raises(ValueError, match=r"windows-16\.json cannot be read.*delete it"):
        kept(tmp_path, 16)
