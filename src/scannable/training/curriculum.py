"""Where a run is in its curriculum: a few numbers that are saved with it."""

from dataclasses import dataclass, replace

from scannable.training.recipe import Curriculum


@dataclass(frozen=True)
class Stage:
    """The place in the list of lengths, and how long the run has been there."""

    index: int = 0
    steps: int = 0

    def length(self, curriculum: Curriculum) -> int:
        """The length that is trained on now."""
        return curriculum.lengths[self.index]

    def is_last(self, curriculum: Curriculum) -> bool:
        return self.index == len(curriculum.lengths) - 1

    def after_step(self, curriculum: Curriculum) -> "Stage":
        """One step later; the next length, if its time has come."""
        later = replace(self, steps=self.steps + 1)
        if curriculum.steps is not None and later.steps >= curriculum.steps and not self.is_last(curriculum):
            return Stage(self.index + 1)
        return later

    def after_evaluation(self, curriculum: Curriculum, error: float) -> "Stage":
        """The next length, if this one is learned."""
        if curriculum.below is not None and error < curriculum.below and not self.is_last(curriculum):
            return Stage(self.index + 1)
        return self
