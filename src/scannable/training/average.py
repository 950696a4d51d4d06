"""The moving average of the weights, which is evaluated and kept in their place."""

import contextlib
from collections.abc import Collection, Iterator

import torch
from torch import Tensor, nn

from scannable.training.sharding import is_sharded, like, local


class WeightAverage:
    """average <- decay * average + (1 - decay) * weights, after every step; it starts as the weights."""

    def __init__(self, model: nn.Module, decay: float) -> None:
        self.decay: float = decay
        self.weights: dict[str, Tensor] = {name: p.detach().clone() for name, p in model.named_parameters()}

    @torch.no_grad()
    def update(self, model: nn.Module) -> None:
        """After a step of the optimizer."""
        now = dict(model.named_parameters())
        torch._foreach_lerp_(
            [local(weight) for weight in self.weights.values()],
            [local(now[name].detach()) for name in self.weights],
            1 - self.decay,
        )

    @torch.no_grad()
    def restart(self, model: nn.Module, names: Collection[str]) -> None:
        """Forget what these weights were."""
        for name, parameter in model.named_parameters():
            if name in names:
                self.weights[name].copy_(parameter)

    @torch.no_grad()
    def restore(self, weights: dict[str, Tensor]) -> None:
        """Go on from a saved average."""
        if weights.keys() != self.weights.keys():
            raise KeyError(f"the average has the weights {sorted(weights)[:3]}..., not {sorted(self.weights)[:3]}...")
        for name, weight in weights.items():
            self.weights[name].copy_(like(self.weights[name], weight))

    @contextlib.contextmanager
    def in_place_of(self, model: nn.Module) -> Iterator[None]:
        """The average in the model for a while."""
        if is_sharded(model):
            # What is gathered is the memory of the shares, and not what a parameter points to.
            self._exchange(model)
            try:
                yield
            except BaseException:
                # After an exchange that failed the weights may be half gathered: what it was must not be lost.
                with contextlib.suppress(RuntimeError):
                    self._exchange(model)
                raise
            self._exchange(model)
            return
        kept = {name: parameter.data for name, parameter in model.named_parameters()}
        for name, parameter in model.named_parameters():
            parameter.data = self.weights[name]
        try:
            yield
        finally:
            for name, parameter in model.named_parameters():
                parameter.data = kept[name]

    @torch.no_grad()
    def _exchange(self, model: nn.Module) -> None:
        for name, parameter in model.named_parameters():
            mine, other = local(parameter), local(self.weights[name])
            kept = mine.clone()
            mine.copy_(other)
            other.copy_(kept)
