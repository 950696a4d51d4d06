"""Where a run is in its curriculum: a few numbers that are saved with it."""

from dataclasses import dataclass, replace

from scannable.training.recipe import Curriculum


@dataclass(frozen=True)
class Stage:
    """The place in the list of lengths, and how long the run has been there."""

    index: int = 0
    steps: int = 0
    best_loss: float | None = None
    waited: int = 0
    """Evaluations since the best one at this length."""

    def length(self, curriculum: Curriculum) -> int:
        """The length that is trained on now."""
        return curriculum.lengths[self.index]

    def is_last(self, curriculum: Curriculum) -> bool:
        return self.index == len(curriculum.lengths) - 1

    def after_step(self) -> "Stage":
        """One step later."""
        return replace(self, steps=self.steps + 1)

    def when_time_is_up(self, curriculum: Curriculum) -> "Stage":
        """The next length, if this one has had all its steps."""
        if curriculum.steps is None or self.steps < curriculum.steps or self.is_last(curriculum):
            return self
        return Stage(self.index + 1)

    def rate(self, curriculum: Curriculum) -> float:
        """The factor on the learning rate."""
        return self._mine(curriculum.rates, 1.0)

    def after_evaluation(self, curriculum: Curriculum, loss: float, error: float) -> "Stage":
        """The next length, if this one is learned, or does not get better."""
        better = self.best_loss is None or loss < self.best_loss
        later = replace(self, best_loss=loss, waited=0) if better else replace(self, waited=self.waited + 1)
        learned = error < self._mine(curriculum.below, 0.0)
        given_up = curriculum.patience is not None and later.waited >= curriculum.patience
        return Stage(self.index + 1) if (learned or given_up) and not self.is_last(curriculum) else later

    def _mine(self, values: tuple[float, ...], otherwise: float) -> float:
        return values[self.index if len(values) > 1 else 0] if values else otherwise
