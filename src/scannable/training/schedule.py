"""The learning rate at each step, and which weights decay."""

import math

import torch
from torch import nn

from scannable.training.recipe import Optimizer


def learning_rate(optimizer: Optimizer, step: int, steps: int) -> float:
    """At step 0, 1, ... of `steps`: a linear rise over the warm-up, then constant, or a fall to `final`."""
    if step < optimizer.warmup:
        return optimizer.learning_rate * (step + 1) / optimizer.warmup
    if optimizer.schedule == "constant":
        return optimizer.learning_rate
    begin = max(optimizer.warmup, 2 * steps // 3) if optimizer.schedule == "late" else optimizer.warmup
    through = min(1.0, max(0, step - begin) / max(1, steps - 1 - begin))
    left = 0.5 * (1 + math.cos(math.pi * through)) if optimizer.schedule == "cosine" else 1 - through
    return optimizer.learning_rate * (optimizer.final + (1 - optimizer.final) * left)


def adamw(model: nn.Module, optimizer: Optimizer) -> torch.optim.AdamW:
    """AdamW with decay on matrices only."""
    learned = [parameter for parameter in model.parameters() if parameter.requires_grad]
    groups = [
        {"params": [p for p in learned if p.ndim >= 2], "weight_decay": optimizer.weight_decay},
        {"params": [p for p in learned if p.ndim < 2], "weight_decay": 0.0},
    ]
    groups = [group for group in groups if group["params"]]
    return torch.optim.AdamW(groups, lr=optimizer.learning_rate, betas=optimizer.betas, fused=True)
