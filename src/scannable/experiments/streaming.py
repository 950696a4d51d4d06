"""A trained model streamed token by token, far beyond its training length: error and held bytes against n."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from matplotlib.figure import Figure

from scannable.experiments.figure import save_figure, save_rows, tidy
from scannable.models.protocol import evaluating
from scannable.tasks import IGNORED, Task


@dataclass(frozen=True)
class Streamed:
    """After n tokens of every stream."""

    n: int
    error: float
    """Fraction of wrong answers among the second half of the n tokens."""
    nbytes: int
    """Held by the state of one stream."""


@torch.no_grad()
def measure(model: Any, task: Task, longest: int, streams: int) -> list[Streamed]:
    """Step through `longest` tokens of test samples, and look just before each power of two: there most is held."""
    batch, device = task.batch("test", range(streams), longest), next(model.parameters()).device
    rows: list[Streamed] = []
    state, wrong = model.initial_state(streams), torch.zeros(longest)
    asked = (batch.targets != IGNORED).float().sum(0)
    with evaluating(model):
        for t in range(longest):
            logits, state = model.step(batch.tokens[:, t].to(device), state)
            targets = batch.targets[:, t].to(device)
            wrong[t] = ((logits.argmax(-1) != targets) & (targets != IGNORED)).float().sum()
            n = t + 1
            if n & (n + 1) == 0:
                half = slice(n // 2, n)
                rows.append(Streamed(n, float(wrong[half].sum() / asked[half].sum()), state.nbytes // streams))
    return rows


def draw(rows: list[Streamed], trained: int) -> Figure:
    """Error on the left, bytes on the right, both against the length of the stream."""
    figure = Figure(figsize=(10, 4), layout="constrained")
    left, right = figure.subplots(1, 2)
    n = [row.n for row in rows]
    left.plot(n, [row.error for row in rows], "o-", color="C0")
    left.axvline(trained, color="grey", linestyle=":", linewidth=1)
    left.text(trained * 1.1, 0.95, f"trained to {trained}", color="grey", fontsize=9, va="top")
    left.set(ylabel="error, second half of the stream", title="Answers", ylim=(-0.02, 1.02))
    right.plot(n, [row.nbytes for row in rows], "o-", color="C2")
    right.set(ylabel="bytes held by one stream", title="Memory: a straight line here is log n", ylim=(0, None))
    for axes in (left, right):
        axes.set(xlabel="tokens n")
        axes.set_xscale("log", base=2)
        tidy(axes)
    return figure


def report(model: Any, task: Task, folder: Path, *, trained: int, longest: int, streams: int) -> list[Streamed]:
    """Measure, and leave `streaming.csv`, `.png` and `.svg` in `folder`."""
    rows = measure(model, task, longest, streams)
    save_rows(rows, folder / "streaming.csv")
    save_figure(draw(rows, trained), folder, "streaming")
    return rows
