"""From samples to the gradient of their mean loss, whichever processes have them."""

import math
from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor, nn

from scannable.nn.loss import sliced_cross_entropy
from scannable.tasks import IGNORED
from scannable.training.processes import Processes


class SummedLoss(nn.Module):
    """The sum of the losses at all positions where something is asked. A mean is taken once, over all processes."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, tokens: Tensor, targets: Tensor) -> Tensor:
        hidden: Any = getattr(self.model, "hidden", None)
        head: Any = getattr(self.model, "head", None)
        if hidden is not None and head is not None:
            return sliced_cross_entropy(hidden(tokens), targets, head, reduction="sum")
        logits: Tensor = self.model(tokens)
        return nn.functional.cross_entropy(
            logits.flatten(0, 1).float(), targets.flatten(), ignore_index=IGNORED, reduction="sum"
        )


@torch.no_grad()
def sum_over_processes(parameters: Iterable[nn.Parameter], processes: Processes) -> None:
    """Add up the gradients of all processes, in one message."""
    gradients = [parameter.grad for parameter in parameters if parameter.grad is not None]
    if processes.count == 1 or not gradients:
        return
    # Every process computes the same graph on other samples: they have gradients for the same parameters.
    message = torch.cat([gradient.flatten() for gradient in gradients])
    processes.add(message)
    for gradient, part in zip(gradients, message.split([g.numel() for g in gradients]), strict=True):
        gradient.copy_(part.view_as(gradient))


def clip(parameters: Iterable[nn.Parameter], largest: float) -> float:
    """Scale the gradient down to the norm `largest` (0: leave it), if it is finite; returns the norm before."""
    parameters = list(parameters)
    norm = nn.utils.get_total_norm([p.grad for p in parameters if p.grad is not None])
    if largest and math.isfinite(float(norm)):
        nn.utils.clip_grads_with_norm_(parameters, largest, norm)
    return float(norm)


def not_finite(model: nn.Module) -> list[str]:
    """The names of the parameters whose gradient is not finite."""
    return [
        name
        for name, parameter in model.named_parameters()
        if parameter.grad is not None and not bool(parameter.grad.isfinite().all())
    ]
