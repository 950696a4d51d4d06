"""What a check of duality found, to read and to test."""

from dataclasses import dataclass
from math import isinf

from scannable.spd import bounds


@dataclass(frozen=True)
class Difference:
    """Where one way of running the model comes closest to the allowed difference, or is furthest beyond it."""

    way: str
    value: float
    row: int
    position: int
    allowed: float
    mean: float = 0.0
    """The mean over all places of the difference, in units of what is allowed there."""
    mean_allowed: float = float("inf")

    @property
    def passed(self) -> bool:
        return self.value <= self.allowed and self.mean <= self.mean_allowed

    @property
    def excess(self) -> float:
        """How much of what is allowed is used, at the worst place or on average; above 1 it is too much."""
        at_worst = self.value / self.allowed if self.allowed else float("inf") if self.value else 0.0
        return max(at_worst, self.mean / self.mean_allowed)


@dataclass(frozen=True)
class DualityReport:
    """Parallel against prefill in any split against step by step; `passed` if all stay within the tolerance.

    `tolerance` is relative to `scale`, the root mean square of the outputs; it is None in half precision, where the
    measure is how far the model's own rounding moves each output. `chunks`, the elements of the scan, and the counts
    are None for a model without `agg` and `chunk_length`, `nbytes_bound` for one without a `state_nbytes` formula; what
    is known must keep its bound for the check to pass.

    >>> model = sc.LM(sc.LMConfig(vocab_size=50, width=16, heads=2, layers=("gla",)))
    >>> report = sc.verify_duality(model, torch.randint(50, (2, 30)), dtype=torch.float64)
    >>> report.passed, report.length
    (True, 30)
    >>> report.raise_if_failed()
    """

    model: str
    dtype: str
    batch: int
    length: int
    tolerance: float | None
    scale: float
    differences: tuple[Difference, ...]
    chunks: int | None
    parallel_calls: int | None
    parallel_evaluations: int | None
    step_evaluations: int | None
    nbytes: int
    nbytes_bound: int | None

    @property
    def worst(self) -> Difference:
        """The difference that is largest beside what is allowed."""
        return max(self.differences, key=lambda difference: difference.excess)

    @property
    def passed(self) -> bool:
        close = all(difference.passed for difference in self.differences)
        small = self.nbytes_bound is None or self.nbytes <= self.nbytes_bound
        return close and small and all(count <= bound for _, count, bound in self.counts)

    @property
    def counts(self) -> list[tuple[str, int, int]]:
        """What was counted of Agg, how much, and the most that theory allows."""
        if self.chunks is None or self.parallel_calls is None:
            return []
        return [
            ("batched calls in parallel", self.parallel_calls, bounds.agg_calls(self.chunks)),
            ("evaluations in parallel", self.parallel_evaluations or 0, 2 * self.chunks),
            ("evaluations step by step", self.step_evaluations or 0, 2 * self.chunks),
        ]

    def raise_if_failed(self) -> None:
        """Raise an AssertionError that reads like this report, unless it passed."""
        if not self.passed:
            raise AssertionError(str(self))

    def __str__(self) -> str:
        worst = self.worst
        verdict = "PASSED" if self.passed else "FAILED"
        measure = (
            "what rounding moves it by"
            if self.tolerance is None
            else f"{self.tolerance:g} x output scale {self.scale:.3g}"
        )
        lines = [
            f"{verdict}: {self.model} on {self.batch} x {self.length} tokens, {self.dtype}",
            f"  largest difference  {worst.value:.3g} ({worst.way}, row {worst.row}, position {worst.position}); "
            f"allowed {worst.allowed:.3g} = {measure}",
            *(f"    {d.way:<26} {d.value:.3g}{_mean(d)}" for d in self.differences),
        ]
        lines += [f"  Agg, {what:<26} {count} (at most {bound})" for what, count, bound in self.counts]
        bound = "" if self.nbytes_bound is None else f"; the formula gives {self.nbytes_bound:,}"
        lines.append(f"  state held          {self.nbytes:,} bytes after {self.length} tokens{bound}")
        return "\n".join(lines)


def _mean(d: Difference) -> str:
    """What is said of the mean, where it has a limit."""
    if isinf(d.mean_allowed):
        return ""
    return f"  (on average {d.mean:.2g} of what is allowed, at most {d.mean_allowed:.2g})"
