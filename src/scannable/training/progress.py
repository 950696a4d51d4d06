"""Where a run is: everything that changes from step to step and is no tensor."""

from dataclasses import asdict, dataclass, field
from typing import Any, Literal

from scannable.training.curriculum import Stage
from scannable.training.evaluation import Score


@dataclass(frozen=True)
class Best:
    """The best evaluation so far: at the longest length reached, the lowest loss."""

    step: int
    stage: int
    loss: float
    error: float

    def is_beaten_by(self, stage: int, loss: float) -> bool:
        """Whether an evaluation at this stage with this loss is better."""
        return (stage, -loss) > (self.stage, -self.loss)


@dataclass
class Progress:
    """What a checkpoint holds beside the weights, the optimizer and the average."""

    step: int = 0
    samples: int = 0
    tokens: int = 0
    stage: Stage = field(default_factory=Stage)
    best: Best | None = None
    look_due: bool = False
    """Whether an evaluation belongs to this step that has not been made."""
    ended: Literal["steps", "enough"] | None = None
    """Why there are no more steps: all are made, or the recipe's rule for stopping early holds."""

    def looked(self, score: Score) -> None:
        """Take note of an evaluation at the current length."""
        if self.best is None or self.best.is_beaten_by(self.stage.index, score.loss):
            self.best = Best(self.step, self.stage.index, score.loss, score.error)

    def to_plain(self) -> dict[str, Any]:
        return asdict(self)

    @staticmethod
    def from_plain(plain: dict[str, Any]) -> "Progress":
        best = plain["best"]
        return Progress(**{**plain, "stage": Stage(**plain["stage"]), "best": None if best is None else Best(**best)})
