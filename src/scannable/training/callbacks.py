"""What a recipe does to a model while it is trained, beside the steps of the optimizer."""

from collections.abc import Collection
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from torch import nn


class Callback:
    """A part of a recipe that changes the model on the way. Make a frozen dataclass of it, and mark it `@configurable`:

        @sc.configurable
        @dataclass(frozen=True)
        class FreezeEncoder(Callback):
            until: float = 0.1

            def before_step(self, model, progress):
                model.enc.requires_grad_(progress >= self.until)

    Both methods depend on nothing but their arguments, so that a resumed run is the run that was not interrupted. In a
    loop of your own, call them yourself.
    """

    def before_step(self, model: "nn.Module", progress: float) -> None:
        """Before each step; `progress` is the share of the run's steps that are over, 0 at first."""

    def begin_stage(self, model: "nn.Module", index: int) -> Collection[str]:
        """When the curriculum goes on to its length number `index`, 1 at the earliest.

        Returns the names of the parameters that start anew: the optimizer and the average forget what they were.
        """
        return ()
