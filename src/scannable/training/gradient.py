"""From samples to the gradient of their mean loss, whichever processes have them."""

import math
from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor, nn

from scannable.distributed import Split
from scannable.nn.loss import sliced_cross_entropy
from scannable.tasks import IGNORED
from scannable.training.processes import Processes
from scannable.training.sequence import Sequence
from scannable.training.sharding import is_sharded, whole


class SummedLoss(nn.Module):
    """The sum of the losses at all positions where something is asked. A mean is taken once, over all processes."""

    def __init__(self, model: nn.Module, sequence: Sequence | None = None) -> None:
        super().__init__()
        self.model = model
        self.sequence = sequence

    def forward(self, tokens: Tensor, targets: Tensor, split: Split | None = None) -> Tensor:
        """With a split, tokens and targets are this process's part of longer samples."""
        hidden: Any = getattr(self.model, "hidden", None)
        head: Any = getattr(self.model, "head", None)
        if split is not None and self.sequence is not None:
            outputs = self.sequence.hidden(self.model, tokens, split)
            return sliced_cross_entropy(outputs, targets, head, reduction="sum")
        if hidden is not None and head is not None:
            return sliced_cross_entropy(hidden(tokens), targets, head, reduction="sum")
        logits: Tensor = self.model(tokens)
        return nn.functional.cross_entropy(
            logits.flatten(0, 1).float(), targets.flatten(), ignore_index=IGNORED, reduction="sum"
        )


@torch.no_grad()
def sum_over_processes(model: nn.Module, processes: Processes, reached: set[str]) -> None:
    """Add up the gradients of all processes, in one message.

    Args:
        model: whose parameters have them; a sharded model has summed them already.
        processes: all of them.
        reached: the names of the parameters that backward reached in this process.
    """
    parameters = [(name, parameter) for name, parameter in model.named_parameters() if parameter.requires_grad]
    if processes.sequence is not None:
        # Every process has another part of a sample, and may have used other parameters.
        _same_parameters(parameters, processes, reached)
    gradients = [parameter.grad for _, parameter in parameters if parameter.grad is not None]
    if processes.count == 1 or not gradients or is_sharded(model):
        return
    # All processes now have gradients for the same parameters.
    message = torch.cat([gradient.flatten() for gradient in gradients])
    processes.add(message)
    for gradient, part in zip(gradients, message.split([g.numel() for g in gradients]), strict=True):
        gradient.copy_(part.view_as(gradient))


def _same_parameters(parameters: Iterable[tuple[str, nn.Parameter]], processes: Processes, reached: set[str]) -> None:
    """A gradient, be it 0, for each parameter that any process has used; none for those that none has, as alone."""
    parameters = list(parameters)
    used = processes.total(*(float(name in reached) for name, _ in parameters))
    for (_, parameter), count in zip(parameters, used.tolist(), strict=True):
        if not count:
            parameter.grad = None
        elif parameter.grad is None:
            parameter.grad = torch.zeros_like(parameter)


def clip(parameters: Iterable[nn.Parameter], largest: float) -> float:
    """Scale the gradient down to the norm `largest` (0: leave it), if it is finite; returns the norm before."""
    parameters = list(parameters)
    norm = whole(nn.utils.get_total_norm([p.grad for p in parameters if p.grad is not None]))
    if largest and math.isfinite(float(norm)):
        nn.utils.clip_grads_with_norm_(parameters, largest, norm)
    return float(norm)


def not_finite(model: nn.Module) -> list[str]:
    """The names of the parameters whose gradient is not finite."""
    return [
        name
        for name, parameter in model.named_parameters()
        if parameter.grad is not None and not bool(whole(parameter.grad).isfinite().all())
    ]
