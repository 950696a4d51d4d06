"""One step of the optimizer: samples to gradient to weights, whichever processes have the samples."""

import contextlib
import math
from typing import Any

import torch
from torch import nn

from scannable.models.protocol import evaluating
from scannable.nn import compile_transformers
from scannable.storage.model_file import build_model
from scannable.tasks import IGNORED, Task
from scannable.training.average import WeightAverage
from scannable.training.evaluation import autocast
from scannable.training.gradient import SummedLoss, clip, sum_over_processes
from scannable.training.noise import SeededBySample
from scannable.training.processes import Processes
from scannable.training.progress import Progress
from scannable.training.recipe import Recipe
from scannable.training.schedule import build_optimizer, learning_rate


class NotFiniteError(ArithmeticError):
    """A loss or a gradient that no step can be made from; the weights have not moved."""

    def __init__(self, loss: float, norm: float) -> None:
        super().__init__(f"the loss is {loss} and the gradient's norm {norm}")
        self.loss, self.norm = loss, norm


class Optimisation:
    """A recipe's model, its optimizer and the average of its weights."""

    def __init__(self, recipe: Recipe[Any, Any], processes: Processes, device: torch.device) -> None:
        self.recipe, self.processes, self.device = recipe, processes, device
        self.task: Task = recipe.task
        torch.manual_seed(recipe.seed)
        self.model: nn.Module = build_model(recipe.model).to(device)
        self.optimizer = build_optimizer(self.model, recipe.optimizer)
        loss = SummedLoss(self.model)
        # A Transformer is compiled by itself, for any number of windows: a whole model would be compiled once more for
        # every length, until torch gives up.
        whole = recipe.compile and not compile_transformers(self.model)
        self.loss: Any = torch.compile(loss, dynamic=True) if whole else loss
        self.average = WeightAverage(self.model, recipe.ema) if recipe.ema else None

    def seed(self, progress: Progress) -> int:
        """Of a step; everything random in it follows from that, so that there is no state of it to save."""
        return (self.recipe.seed * 1_000_003 + progress.step) % 2**63

    def step(self, progress: Progress, length: int) -> tuple[float, float, int]:
        """Move the weights once; the loss, the gradient's norm before clipping, and the tokens that were read."""
        recipe, processes = self.recipe, self.processes
        count = recipe.samples(length)
        indices = range(progress.samples, progress.samples + count)
        # A process without a sample takes part with one that counts for nothing.
        spare = not indices[processes.rank :: processes.count]
        mine = indices[:1] if spare else indices[processes.rank :: processes.count]
        batch = self.task.batch("train", mine, length)
        targets = torch.full_like(batch.targets, IGNORED) if spare else batch.targets
        asked = max(1.0, float(processes.total(float((targets != IGNORED).sum()))[0]))
        self.model.train()
        for callback in recipe.callbacks:
            callback.before_step(self.model, progress.step / recipe.steps)
        self.optimizer.zero_grad(set_to_none=True)
        samples = torch.tensor(list(mine))
        total = 0.0
        for tokens, wanted, numbers in zip(
            *(part.chunk(recipe.accumulate) for part in (batch.tokens, targets, samples)), strict=True
        ):
            # For every part and every process alike: what is random belongs to a sample. A compiled graph draws for
            # itself, and differently in every process.
            seed = self.seed(progress)
            torch.manual_seed((seed * 4096 + processes.rank) % 2**63 if recipe.compile else seed)
            seeded = contextlib.nullcontext() if recipe.compile else SeededBySample(numbers, self.device)
            # Backward too: activations that are computed once more draw their noise once more.
            with seeded:
                with autocast(self.device, recipe.precision):
                    loss = self.loss(tokens.to(self.device), wanted.to(self.device)) / asked
                loss.backward()
            total += float(loss.detach())
        total = float(processes.total(total)[0])
        sum_over_processes(self.model.parameters(), processes)
        norm = clip(self.model.parameters(), recipe.optimizer.clip)
        if not math.isfinite(norm) or not math.isfinite(total):
            raise NotFiniteError(total, norm)
        rate = learning_rate(recipe.optimizer, progress.step, recipe.steps) * progress.stage.rate(recipe.curriculum)
        for group in self.optimizer.param_groups:
            group["lr"] = rate
        self.optimizer.step()
        if self.average is not None:
            self.average.update(self.model)
        progress.samples += count
        progress.tokens += count * length
        return total, norm, count * length

    def averaged(self) -> contextlib.AbstractContextManager[None]:
        """The averaged weights in the model for a while, if there are any."""
        return contextlib.nullcontext() if self.average is None else self.average.in_place_of(self.model)

    def restart(self, names: set[str]) -> None:
        """Forget what these parameters were: their moments, and their average."""
        for name, parameter in self.model.named_parameters():
            if name in names or self.recipe.curriculum.fresh_optimizer:
                self.optimizer.state.pop(parameter, None)
        if self.average is not None:
            self.average.restart(self.model, names)

    @torch.no_grad()
    def plain_loss(self, first: int, length: int) -> float:
        """The summed loss of a step's samples without anything random, with the weights and with their average."""
        batch = self.task.batch("train", range(first, first + self.recipe.samples(length)), length)
        tokens, targets = batch.tokens.to(self.device), batch.targets.to(self.device)
        with evaluating(self.model), autocast(self.device, self.recipe.precision):
            plain = float(self.loss(tokens, targets))
            with self.averaged():
                return plain + float(self.loss(tokens, targets))
