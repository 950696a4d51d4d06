"""What trained runs were found to do, as rows of a table."""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from math import exp
from statistics import fmean

from scannable.experiments.laboratory import Trained

LEARNED = 0.05
"""The error of what counts as learned, at most: below it a curriculum goes on."""


@dataclass(frozen=True)
class RunScore:
    """One run at one test length."""

    model: str
    part: str
    """`sweep` for runs that only choose the learning rate, `final` for those of the main table; others have names of
    their own."""
    seed: int
    learning_rate: float
    parameters: int
    steps: int
    tokens: int
    """Seen in training."""
    trained_to: int
    """The length that its curriculum arrived at."""
    validation_loss: float
    """The best there, by which learning rates are chosen."""
    length: int
    samples: int
    loss: float
    error: float
    bits_per_byte: float | None

    @property
    def perplexity(self) -> float:
        return exp(self.loss)


def run_scores(run: Trained, model: str, part: str) -> list[RunScore]:
    """A row for each test length."""
    recipe, result = run.recipe, run.result
    return [
        RunScore(
            model=model,
            part=part,
            seed=recipe.seed,
            learning_rate=recipe.optimizer.learning_rate,
            parameters=result["parameters"],
            steps=result["steps"],
            tokens=result["tokens"],
            trained_to=recipe.curriculum.lengths[result["best"]["stage"]],
            validation_loss=result["best"]["loss"],
            length=score["length"],
            samples=score["samples"],
            loss=score["loss"],
            error=score["error"],
            bits_per_byte=score["bits_per_byte"],
        )
        for score in result["test"]
    ]


def progress(run: Trained) -> tuple[int, float]:
    """How far a run has come: the stage it reached, then its validation loss there."""
    return run.result["best"]["stage"], -run.result["best"]["loss"]


def best_rate(runs: dict[float, Trained]) -> float:
    """The learning rate whose run came furthest."""
    return max(runs, key=lambda rate: progress(runs[rate]))


@dataclass(frozen=True)
class Spread:
    """Mean, least and greatest over seeds."""

    mean: float
    least: float
    greatest: float
    count: int = 1

    @staticmethod
    def of(values: Sequence[float]) -> "Spread":
        return Spread(fmean(values), min(values), max(values), len(values))

    def cell(self, digits: int = 2, factor: float = 1.0) -> str:
        """For a table: the mean, and in brackets the least and the greatest, where they differ."""
        mean, least, greatest = (f"{factor * value:.{digits}f}" for value in (self.mean, self.least, self.greatest))
        return mean if least == greatest else f"{mean} ({least} to {greatest})"


def error_by_length(rows: Sequence[RunScore], model: str, part: str = "final") -> dict[int, Spread]:
    """Over the seeds of the runs of a model."""
    mine = [row for row in rows if row.model == model and row.part == part]
    return {
        length: Spread.of([row.error for row in mine if row.length == length])
        for length in sorted({row.length for row in mine})
    }


def errors_by_seed(rows: Sequence[RunScore], model: str, part: str = "final") -> dict[int, dict[int, float]]:
    """The error at each length of each run of a model."""
    found: dict[int, dict[int, float]] = {}
    for row in rows:
        if row.model == model and row.part == part:
            found.setdefault(row.seed, {})[row.length] = row.error
    return found


def sweep_table(
    rows: Sequence[RunScore],
    titles: Mapping[str, str],
    rates: Sequence[float] | Mapping[str, Sequence[float]],
    chosen: Collection[tuple[str, float]] | None = None,
) -> list[list[object]]:
    """Model, learning rate, length reached and validation loss there, of the runs that chose the learning rates.

    Args:
        chosen: models and rates that were taken; those of the final runs, unless told.
    """
    if chosen is None:
        chosen = {(row.model, row.learning_rate) for row in rows if row.part == "final"}
    found = {
        (row.model, row.learning_rate): (row.trained_to, row.validation_loss) for row in rows if row.part == "sweep"
    }
    lines: list[list[object]] = []
    for model in dict.fromkeys(model for model, _ in found):
        for rate in rates[model] if isinstance(rates, Mapping) else rates:
            length, loss = found.get((model, rate), ("", None))
            taken = " (taken)" if (model, rate) in chosen else ""
            shown = "diverged, or not there" if loss is None else f"{loss:.4f}"
            lines.append([titles[model], f"{rate:g}{taken}", length, shown])
    return lines
