"""What a run writes while it goes can be read elsewhere."""

from pathlib import Path

import pytest
from rich.console import Console

import scannable as sc
from scannable.tasks import GroupTask
from scannable.training.logging import TensorBoardSink, read_metrics
from scannable.training.loop import Run
from scannable.training.recipe import Curriculum, Evaluation, Recipe


def test_tensorboard_shows_what_the_metrics_say(tmp_path: Path) -> None:
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    recipe = Recipe(
        sc.TransformerPSMConfig(6, 16, chunk_length=2, agg_layers=1, inf_layers=1, heads=2),
        GroupTask("S3"),
        steps=6,
        batch_tokens=32,
        curriculum=Curriculum((4,)),
        evaluation=Evaluation(every=3, samples=8),
        log_every=2,
    )
    Run(recipe, tmp_path, console=Console(quiet=True), sinks=lambda: [TensorBoardSink(tmp_path / "board")]).train()
    events = EventAccumulator(str(tmp_path / "board"))
    events.Reload()
    for tag, steps in (("train/loss", [2, 4, 6]), ("evaluation/loss", [3, 6]), ("evaluation/error", [3, 6])):
        kind, name = tag.split("/")
        known = {r["step"]: r[name] for r in read_metrics(tmp_path / "metrics.jsonl") if r["kind"] == kind}
        shown = {event.step: event.value for event in events.Scalars(tag)}
        assert list(shown) == steps
        assert shown == pytest.approx(known), tag  # TensorBoard keeps float32
