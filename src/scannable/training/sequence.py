"""The part of every sample that this process has, when samples are split over several."""

from dataclasses import dataclass
from typing import Any

from torch import Tensor, nn
from torch import distributed as c10d

from scannable import distributed
from scannable.distributed import Split


@dataclass(frozen=True)
class Sequence:
    """The processes that share samples."""

    rank: int
    count: int
    group: Any

    def part(self, model: nn.Module, length: int) -> Split:
        """Who has which positions of a sample of this length: cuts are between chunks."""
        return Split(distributed.bounds_for(model, length, self.count), self.rank)

    def hidden(self, model: nn.Module, tokens: Tensor, split: Split) -> Tensor:
        """What the model gives to its head, at this process's positions."""
        over_ranks: Any = getattr(model, "hidden_over_ranks", None)
        if over_ranks is not None:
            return over_ranks(tokens, split, self.group)
        return distributed.hidden(model, tokens, group=self.group, split=split)

    def add(self, tensor: Tensor) -> None:
        """Put the sum over these processes in its place."""
        c10d.all_reduce(tensor, group=self.group)
