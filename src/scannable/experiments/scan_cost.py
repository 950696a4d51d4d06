"""What a scan costs: Agg evaluations and held states against n, counted.

Three ways to the same prefixes: the static scan (Alg. 1), the counter that keeps its folds (`BinaryCounter`), and the
counter as Alg. 2 is printed, which folds all its roots anew at every step.
"""

import sys
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

import torch
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from scannable.experiments.figure import save_figure, save_rows, tidy
from scannable.scan import BinaryCounter, reference, scan
from scannable.spd.counters import CountedAgg


@dataclass(frozen=True)
class ScanCost:
    """Counts for n elements: evaluations of Agg, its batched calls one after another, values held at the worst."""

    way: str
    n: int
    evaluations: int
    calls: int
    held: int

    @property
    def evaluations_per_element(self) -> float:
        return self.evaluations / self.n


STATIC, COUNTER, REFOLDING = "static scan", "binary counter", "refolding counter (Alg. 2 as printed)"


def non_associative(older: torch.Tensor, newer: torch.Tensor) -> torch.Tensor:
    """2a + 3b in int64: exact, and different for every other bracket or order."""
    return 2 * older + 3 * newer


def measure(sizes: Iterable[int] = tuple(2**k for k in range(17))) -> list[ScanCost]:
    """Count all three ways for each n."""
    sizes = sorted(sizes)
    return [*_static(sizes), *_counter(sizes), *_refolding(sizes)]


def _static(sizes: list[int]) -> list[ScanCost]:
    costs: list[ScanCost] = []
    for n in sizes:
        agg = CountedAgg(non_associative)
        scan(agg, torch.arange(n), identity=torch.tensor(0), inclusive=True)
        # Backward needs every element and every result of Agg.
        costs.append(ScanCost(STATIC, n, agg.evaluations, agg.calls, n + agg.evaluations))
    return costs


def _counter(sizes: list[int]) -> list[ScanCost]:
    agg = CountedAgg(lambda older, newer: object())
    counter = BinaryCounter(agg, object())
    costs: list[ScanCost] = []
    held = 0
    for n in range(1, sizes[-1] + 1):
        counter.push(object())
        state = counter.state
        held = max(held, len({id(value) for value in (*state.roots.values(), *state.folds.values())}))
        if n in sizes:
            costs.append(ScanCost(COUNTER, n, agg.evaluations, agg.calls, held))
    return costs


def _refolding(sizes: list[int]) -> list[ScanCost]:
    agg = CountedAgg(lambda older, newer: None)
    costs: list[ScanCost] = []
    held = 0
    for n, _ in enumerate(reference.refolding_counter(agg, range(sizes[-1]), None), start=1):
        held = max(held, n.bit_count())
        if n in sizes:
            costs.append(ScanCost(REFOLDING, n, agg.evaluations, agg.calls, held))
    return costs


def draw(costs: list[ScanCost]) -> Figure:
    """Evaluations per element on the left, held states on the right."""
    figure = Figure(figsize=(10, 4), layout="constrained")
    left, right = figure.subplots(1, 2)
    # Static and counter do the same work: the larger, hollow marker shows around the smaller one.
    styles = {STATIC: ("C0", "s", "--", 9), COUNTER: ("C2", "o", "-", 5), REFOLDING: ("C3", "^", "-", 5)}
    for way, (color, marker, line, size) in styles.items():
        mine = [cost for cost in costs if cost.way == way]
        n = [cost.n for cost in mine]
        look = {"color": color, "marker": marker, "linestyle": line, "markersize": size, "label": way}
        look["fillstyle"] = "none" if way == STATIC else "full"
        left.plot(n, [cost.evaluations_per_element for cost in mine], **look)
        right.plot(n, [cost.held for cost in mine], **look)
    left.axhline(2, color="grey", linewidth=0.8, zorder=0)
    left.text(2**16, 1.7, "2 per element", color="grey", va="top", ha="right", fontsize=9)
    left.set(ylabel="Agg evaluations per element", title="Work", ylim=(0, None))
    right.set(ylabel="values held at the worst moment", yscale="log", title="Memory")
    for axes in (left, right):
        _finish(axes)
    return figure


def _finish(axes: Axes) -> None:
    axes.set(xscale="log", xlabel="elements n")
    axes.set_xscale("log", base=2)
    tidy(axes)


def report(folder: Path) -> tuple[list[ScanCost], Path]:
    """Measure, and leave `scan_cost.csv`, `.png` and `.svg` in `folder`."""
    costs = measure()
    save_rows(costs, folder / "scan_cost.csv")
    return costs, save_figure(draw(costs), folder, "scan_cost")


if __name__ == "__main__":
    print(report(Path(sys.argv[1] if len(sys.argv) > 1 else "scan_cost"))[1])
