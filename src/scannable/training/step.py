"""One step of the optimizer: samples to gradient to weights, whichever processes have the samples."""

import contextlib
import math
from collections.abc import Iterator
from typing import Any

import torch
from torch import nn

from scannable.distributed.model import check_model
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
from scannable.training.sharding import last_of_step, noticing_gradients, put_away, shard


class NotFiniteError(ArithmeticError):
    """A loss or a gradient that no step can be made from; the weights have not moved."""

    def __init__(self, loss: float, norm: float) -> None:
        super().__init__(f"the loss is {loss} and the gradient's norm {norm}")
        self.loss, self.norm = loss, norm


class Optimisation:
    """A recipe's model, its optimizer and the average of its weights."""

    def __init__(
        self, recipe: Recipe[Any, Any], processes: Processes, device: torch.device, *, sharded: bool = False
    ) -> None:
        self.recipe, self.processes, self.device = recipe, processes, device
        self.task: Task = recipe.task
        torch.manual_seed(recipe.seed)
        self.model: nn.Module = build_model(recipe.model).to(device)
        check_parallel(recipe, self.model, processes, sharded=sharded)
        if sharded:
            shard(self.model, device, processes.count, alike=processes.sequence is None)
        self.optimizer = build_optimizer(self.model, recipe.optimizer)
        loss = SummedLoss(self.model, processes.sequence)
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
        spare = not indices[processes.share]
        mine = indices[:1] if spare else indices[processes.share]
        batch = self.task.batch("train", mine, length)
        tokens, targets = batch.tokens, torch.full_like(batch.targets, IGNORED) if spare else batch.targets
        split = None
        if processes.sequence is not None:
            split = processes.sequence.part(self.model, tokens.shape[1])
            tokens, targets = (part[:, split.first : split.stop] for part in (tokens, targets))
        asked = max(1.0, float(processes.total(float((targets != IGNORED).sum()))[0]))
        self.model.train()
        for callback in recipe.callbacks:
            callback.before_step(self.model, progress.step / recipe.steps)
        self.optimizer.zero_grad(set_to_none=True)
        samples = torch.tensor(list(mine))
        total, reached = 0.0, set[str]()
        parts = list(zip(*(part.chunk(recipe.accumulate) for part in (tokens, targets, samples)), strict=True))
        for i, (some, wanted, numbers) in enumerate(parts):
            # For every part and every process alike: what is random belongs to a sample. A compiled graph draws for
            # itself, and differently in every process.
            seed = self.seed(progress)
            torch.manual_seed((seed * 4096 + processes.rank) % 2**63 if recipe.compile else self._of_part(seed))
            seeded = contextlib.nullcontext() if recipe.compile else SeededBySample(numbers, self.device)
            # Backward too: activations that are computed once more draw their noise once more.
            last_of_step(self.model, i == len(parts) - 1)
            with seeded:
                with autocast(self.device, recipe.precision):
                    loss = self.loss(*(x.to(self.device) for x in (some, wanted)), *([split] if split else [])) / asked
                with noticing_gradients(self.model) if split else contextlib.nullcontext(reached) as found:
                    loss.backward()
            reached |= found
            total += float(loss.detach())
        put_away(self.model)
        total = float(processes.total(total)[0])
        sum_over_processes(self.model, processes, reached)
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

    def _of_part(self, seed: int) -> int:
        """Another seed for each part of a sample: the places in it are counted from the part's first."""
        sequence = self.processes.sequence
        return seed if sequence is None else (seed * 4096 + sequence.rank) % 2**63

    @contextlib.contextmanager
    def averaged(self) -> Iterator[None]:
        """The averaged weights in the model for a while, if there are any."""
        put_away(self.model)
        with contextlib.nullcontext() if self.average is None else self.average.in_place_of(self.model):
            try:
                yield
            finally:
                put_away(self.model)

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
            put_away(self.model)
            plain = float(self.loss(tokens, targets))
            with self.averaged():
                return plain + float(self.loss(tokens, targets))


def check_parallel(recipe: Recipe[Any, Any], model: nn.Module, processes: Processes, *, sharded: bool) -> None:
    """Refuse what cannot be spread over processes in this way; all of them say so alike."""
    if processes.sequence is not None:
        check_model(model)
    if (sharded or processes.sequence is not None) and recipe.compile:
        raise ValueError("compile=True does not go with sharded weights or a split sequence; leave out one of the two")
    if sharded and recipe.optimizer.algorithm == "muon":
        raise ValueError(
            "Muon takes whole matrices, and sharded weights have none; choose --optimizer.algorithm adamw, or leave "
            "out --parallel.shard"
        )
