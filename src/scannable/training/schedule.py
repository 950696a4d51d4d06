"""The learning rate at each step, and which weights decay."""

import math
from collections.abc import Callable
from typing import Any

import torch
from torch import nn

from scannable.nn.decay import with_decay
from scannable.training.muon import Muon
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


def build_optimizer(model: nn.Module, optimizer: Optimizer) -> torch.optim.Optimizer:
    """What moves the parameters of a model; the modules say which of them decay (`nn/decay.py`)."""
    matrices: list[nn.Parameter] = []
    decaying: list[nn.Parameter] = []
    still: list[nn.Parameter] = []
    for name, module, parameter, decays in with_decay(model):
        if not parameter.requires_grad:
            continue
        if optimizer.algorithm == "muon" and decays and is_hidden_matrix(name, module, parameter):
            matrices.append(parameter)
        else:
            (decaying if decays else still).append(parameter)
    groups = [
        {"params": decaying, "weight_decay": optimizer.weight_decay},
        {"params": still, "weight_decay": 0.0},
    ]
    groups = [group for group in groups if group["params"]]
    adamw = {"lr": optimizer.learning_rate, "betas": optimizer.betas, "fused": True}
    if not matrices:
        return torch.optim.AdamW(groups, **adamw)
    muon = Muon(
        matrices,
        lr=optimizer.learning_rate,
        weight_decay=optimizer.weight_decay,
        # Steps of the size that AdamW's have: then one learning rate serves both.
        adjust_lr_fn="match_rms_adamw",
    )
    return Together(muon, torch.optim.AdamW(groups, **adamw)) if groups else muon


def is_hidden_matrix(name: str, module: nn.Module, parameter: nn.Parameter) -> bool:
    """Whether a parameter maps vectors inside a model to vectors inside: neither an embedding nor the output layer."""
    return parameter.ndim == 2 and not isinstance(module, nn.Embedding) and name.split(".")[0] != "head"


class Together(torch.optim.Optimizer):
    """Several optimizers as one, each with parameters of its own; a checkpoint takes it for any other."""

    def __init__(self, *parts: torch.optim.Optimizer) -> None:
        self.parts: tuple[torch.optim.Optimizer, ...] = parts
        super().__init__([group for part in parts for group in part.param_groups], {})
        self._share()

    def _share(self) -> None:
        """One state and the same groups for all: a learning rate that is set here is set there."""
        groups = iter(self.param_groups)
        for part in self.parts:
            part.param_groups = [next(groups) for _ in part.param_groups]
            part.state = self.state

    @torch.no_grad()
    def step(self, closure: Callable[[], float] | None = None) -> float | None:  # pyright: ignore[reportIncompatibleMethodOverride]
        with torch.enable_grad():
            loss = None if closure is None else closure()
        for part in self.parts:
            part.step()
        return loss

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        super().load_state_dict(state_dict)
        self._share()
