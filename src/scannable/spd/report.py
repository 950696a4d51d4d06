"""What a check of duality found, to read and to test."""

from dataclasses import dataclass

from scannable.spd import bounds


@dataclass(frozen=True)
class Difference:
    """The largest difference of one way of running the model from the parallel one, and where it is."""

    way: str
    value: float
    row: int
    position: int


@dataclass(frozen=True)
class DualityReport:
    """Parallel against prefill in any split against step by step; `passed` if all stay within the tolerance.

    `tolerance` is relative to `scale`, the root mean square of the parallel outputs. `chunks`, the elements of the
    scan, and the counts are None for a model without `agg` and `chunk_length`, `nbytes_bound` for one without a
    `state_nbytes` formula; what is known must keep its bound for the check to pass.
    """

    model: str
    dtype: str
    batch: int
    length: int
    tolerance: float
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
        """The largest difference; one that is not a number is larger than any."""
        return max(self.differences, key=lambda d: d.value if d.value == d.value else float("inf"))

    @property
    def passed(self) -> bool:
        close = self.worst.value <= self.tolerance * self.scale
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
        limit = self.tolerance * self.scale
        verdict = "PASSED" if self.passed else "FAILED"
        lines = [
            f"{verdict}: {self.model} on {self.batch} x {self.length} tokens, {self.dtype}",
            f"  largest difference  {worst.value:.3g} ({worst.way}, row {worst.row}, position {worst.position}); "
            f"allowed {limit:.3g} = {self.tolerance:g} x output scale {self.scale:.3g}",
            *(f"    {d.way:<24} {d.value:.3g}" for d in self.differences),
        ]
        lines += [f"  Agg, {what:<26} {count} (at most {bound})" for what, count, bound in self.counts]
        bound = "" if self.nbytes_bound is None else f"; the formula gives {self.nbytes_bound:,}"
        lines.append(f"  state held          {self.nbytes:,} bytes after {self.length} tokens{bound}")
        return "\n".join(lines)
