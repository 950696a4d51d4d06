"""What helps a model to learn a state that holds: callbacks for a recipe, or for a loop of your own."""

from dataclasses import dataclass
from typing import Any

from scannable.storage.checked_fields import check_fields
from scannable.storage.registry import configurable
from scannable.training.callbacks import Callback


@configurable
@dataclass(frozen=True)
class GrowingStateNoise(Callback):
    """The noise on the states of a Transformer-PSM's Agg, or of an LSTM, grows in a straight line from nothing to their
    `state_noise`.

    for step in range(steps):
        GrowingStateNoise(over=0.5).before_step(model, step / steps)
        ...
    """

    over: float = 0.5
    """The share of the run over which it grows."""
    start: float = 0.0
    """The share of the run before which there is none."""

    def __post_init__(self) -> None:
        check_fields(self)
        if not 0 < self.over <= 1:
            raise ValueError(f"over={self.over!r} must lie in (0, 1]")
        # Shares that add up to 1 on paper may come to a little more.
        if not 0 <= self.start <= 1 - self.over + 1e-9:
            raise ValueError(
                f"start={self.start!r} must lie in [0, {1 - self.over:g}], so that over={self.over!r} is still to come"
            )

    def before_step(self, model: Any, progress: float) -> None:
        noisy = [part for part in model.modules() if hasattr(part, "state_noise") and hasattr(part, "noise")]
        if not noisy:
            raise TypeError(
                "GrowingStateNoise needs a part with a `noise` and a `state_noise` for it to grow to, such as the Agg "
                f"of a Transformer-PSM, or an LSTM; {type(model).__name__} has none"
            )
        grown = min(1.0, max(0.0, progress - self.start) / self.over)
        for part in noisy:
            part.noise = grown * part.state_noise


@configurable
@dataclass(frozen=True)
class AggFromInf(Callback):
    """When the curriculum leaves its first length, Agg starts from Inf's weights."""

    def begin_stage(self, model: Any, index: int) -> list[str]:
        return model.start_agg_from_inf() if index == 1 else []
