"""What a run is: frozen dataclasses all the way down, every field of which can be set from the command line."""

import os
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Generic, Literal, TypeVar

import torch
from torch import nn
from torch.nn.modules.module import register_module_parameter_registration_hook
from torch.overrides import TorchFunctionMode

from scannable import model_file
from scannable.configuration import ConfigurationError, configurable

M = TypeVar("M")
T = TypeVar("T")

MOST_TENSORS = 20_000
"""Of a model; each is an object, and takes time and memory even when it is small."""


@configurable
@dataclass(frozen=True)
class Optimizer:
    """AdamW; matrices decay, vectors (biases, norms, gates) do not."""

    learning_rate: float = 1e-3
    betas: tuple[float, float] = (0.9, 0.98)
    weight_decay: float = 0.01
    clip: float = 1.0
    """Largest norm of the gradient; 0 for none."""
    schedule: Literal["constant", "linear", "cosine"] = "cosine"
    """How the learning rate goes from its peak to `final` times it."""
    warmup: int = 100
    """Steps in which it rises to the peak."""
    final: float = 0.1

    def __post_init__(self) -> None:
        positive("learning_rate", self.learning_rate, float)
        for name in ("weight_decay", "clip", "final"):
            if not 0 <= getattr(self, name) < float("inf"):
                raise ValueError(f"{name}={getattr(self, name)!r} must be 0 or above")
        if not all(0 <= beta < 1 for beta in self.betas):
            raise ValueError(f"betas={self.betas!r} must lie in [0, 1)")
        if self.warmup < 0:
            raise ValueError(f"warmup={self.warmup!r} must be 0 or more steps")


@configurable
@dataclass(frozen=True)
class Curriculum:
    """Lengths to train on, one after the other."""

    lengths: tuple[int, ...] = (32,)
    below: tuple[float, ...] = ()
    """Go on to the next length when the validation error of this one is below: one number for all, or one for each."""
    steps: int | None = None
    """Go on after so many steps, whatever the error."""
    patience: int | None = None
    """Go on after so many evaluations at this length without a better loss."""
    revisit: float = 0.0
    """How often a step goes back to one of the lengths before."""
    rates: tuple[float, ...] = ()
    """Factors on the learning rate, likewise; 1 everywhere, unless told."""
    fresh_optimizer: bool = False
    """Forget the optimizer's moments when the length changes."""

    def __post_init__(self) -> None:
        if not self.lengths:
            raise ValueError("lengths is empty; give at least one length to train on")
        for length in self.lengths:
            positive("lengths", length, int)
        if not 0 <= self.revisit < 1:
            raise ValueError(f"revisit={self.revisit!r} must lie in [0, 1)")
        if self.steps is not None:
            positive("steps", self.steps, int)
        if self.patience is not None:
            positive("patience", self.patience, int)
        for name in ("below", "rates"):
            values = getattr(self, name)
            if len(values) not in (0, 1, len(self.lengths)):
                raise ValueError(f"{name}={values!r} must be one number, or one for each of {len(self.lengths)} stages")
            for value in values:
                positive(name, value, float)
        if len(self.lengths) > 1 and not (self.below or self.steps or self.patience):
            raise ValueError("a curriculum of several lengths needs `below`, `steps` or `patience`, to go from one on")


@configurable
@dataclass(frozen=True)
class Evaluation:
    """When to look, and at what."""

    every: int = 250
    """Steps between evaluations at the current length."""
    samples: int = 256
    lengths: tuple[int, ...] = ()
    """Lengths to evaluate at the end of the run, beside the last one of the curriculum."""
    stop_below: float | None = None
    """Stop early when the error at the last length of the curriculum is below."""
    patience: int | None = None
    """Stop early after so many evaluations at the last length without a better loss."""

    def __post_init__(self) -> None:
        positive("every", self.every, int)
        positive("samples", self.samples, int)
        for length in self.lengths:
            positive("lengths", length, int)
        if self.stop_below is not None:
            positive("stop_below", self.stop_below, float)
        if self.patience is not None:
            positive("patience", self.patience, int)


@configurable
@dataclass(frozen=True)
class Recipe(Generic[M, T]):
    """Everything that decides what a run computes; two runs of equal recipes are equal bit for bit on one machine."""

    model: M
    task: T
    steps: int = 1000
    batch_tokens: int = 4096
    """Tokens in a step, all processes together: as many samples as fit the current length, and at least one."""
    batch_samples: int | None = None
    """Samples in a step, whatever their length, instead of a number of tokens."""
    optimizer: Optimizer = field(default_factory=Optimizer)
    curriculum: Curriculum = field(default_factory=Curriculum)
    evaluation: Evaluation = field(default_factory=Evaluation)
    seed: int = 0
    """Of the initial weights and of dropout; the task has its own."""
    accumulate: int = 1
    """Parts that a step's samples are cut into, for memory."""
    precision: Literal["float32", "bfloat16"] = "float32"
    """bfloat16 computes under autocast; weights stay float32."""
    ema: float = 0.0
    """Decay of the moving average of the weights that is evaluated and kept; 0 for none."""
    compile: bool = False
    checkpoint_every: int = 500
    keep: int = 2
    """Newest checkpoints to keep, beside the best."""
    keep_every: int | None = None
    """Keep those of every so many steps too."""
    log_every: int = 10

    def __post_init__(self) -> None:
        if all(type(self.model) is not kind for _, kind in model_file._models.values()):
            raise ValueError(f"model={self.model!r:.60} is no configuration of a model that is known (register_model)")
        if not callable(getattr(self.task, "batch", None)):
            raise ValueError(f"task={self.task!r:.60} is no task: it has no `batch`")
        for name in ("steps", "batch_tokens", "accumulate", "checkpoint_every", "keep", "log_every"):
            positive(name, getattr(self, name), int)
        for name in ("batch_samples", "keep_every"):
            if getattr(self, name) is not None:
                positive(name, getattr(self, name), int)
        if self.keep_every is not None and self.keep_every % self.checkpoint_every:
            raise ValueError(
                f"keep_every={self.keep_every} must be a multiple of checkpoint_every={self.checkpoint_every}"
            )
        if not 0 <= self.ema < 1:
            raise ValueError(f"ema={self.ema!r} must lie in [0, 1)")
        if type(self.seed) is not int or not 0 <= self.seed < 2**63:
            raise ValueError(f"seed={self.seed!r} must be a whole number from 0 to 2^63 - 1")

    def samples(self, length: int) -> int:
        """How many samples a step takes at a length."""
        return self.batch_samples or max(1, self.batch_tokens // length)


def positive(name: str, value: Any, kind: type) -> None:
    if type(value) is bool or not isinstance(value, (int, float) if kind is float else int):
        raise ValueError(f"{name}={value!r} must be a number above 0")
    if not 0 < value < float("inf"):
        raise ValueError(f"{name}={value!r} must be above 0")
    if kind is int and value >= 2**63:
        raise ValueError(f"{name}={value!r:.60} is out of the range of 64 bits")


def check_memory(recipe: Recipe[Any, Any], device: str | torch.device = "cpu") -> None:
    """Refuse a run that cannot fit, before anything of it is allocated: the bounds are what it needs at the least."""
    # Weights, their gradient, the two moments of AdamW, and the average.
    check_model_memory(recipe.model, 5 if recipe.ema else 4, device)
    check_batch_memory(recipe, (*recipe.curriculum.lengths, *recipe.evaluation.lengths), device)


def check_model_memory(config: Any, copies: int = 1, device: str | torch.device = "cpu") -> None:
    """Refuse a model of whose weights this many copies do not fit; it is built without memory to count them."""
    too_large = f"the model of this {type(config).__name__} is too large"
    limit, held, tensors = memory_of(device), 0, 0

    def compare(nbytes: int, times: int) -> None:
        if times * nbytes > limit:
            every = f", {times} times with gradient and optimizer" if times > 1 else ""
            raise ConfigurationError(
                f"{too_large}: its weights take {nbytes / 1e9:,.1f} GB or more{every}; there are {limit / 1e9:,.1f} GB"
            )

    def count(module: nn.Module, name: str, parameter: nn.Parameter) -> None:
        nonlocal held, tensors
        held, tensors = held + parameter.nbytes, tensors + 1
        compare(held, 1)
        if tensors > MOST_TENSORS:
            raise ConfigurationError(f"{too_large}: its weights are more than {MOST_TENSORS:,} tensors")

    # At every parameter and not at the end, which a model of a billion layers would never reach.
    hook = register_module_parameter_registration_hook(count)
    try:
        with torch.device("meta"), _WithoutValues():
            model: nn.Module = model_file.build_model(config)
        # Tied weights count once.
        compare(sum(parameter.nbytes for parameter in model.parameters()), copies)
    except ConfigurationError:
        raise
    except Exception as error:
        # Whatever else is wrong will be said by the one who builds the model in earnest.
        if "overflow" in str(error).lower():
            raise ConfigurationError(f"{too_large}: {str(error).splitlines()[0]}") from error
    finally:
        hook.remove()


class _WithoutValues(TorchFunctionMode):
    """Leaves out `normal_`, for which torch would import half of its compiler on the meta device."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if getattr(func, "__name__", None) == "normal_":
            return args[0] if args else kwargs["tensor"]
        return func(*args, **(kwargs or {}))


def check_batch_memory(recipe: Recipe[Any, Any], lengths: Iterable[int], device: str | torch.device = "cpu") -> None:
    """Refuse a length of which not even tokens and targets of a step, or the outputs of an evaluation, fit."""
    outputs = getattr(recipe.model, "out_size", None) or getattr(recipe.model, "vocab_size", 0)
    limit = memory_of(device)
    for length in lengths:
        rows = recipe.samples(length)
        needed = length * max(16 * rows, (16 + 4 * outputs) * min(rows, recipe.evaluation.samples))
        if needed > limit:
            raise ConfigurationError(
                f"a batch of {rows:,} x {length:,} tokens takes {needed / 1e9:,.1f} GB or more, and there are "
                f"{limit / 1e9:,.1f} GB; choose a smaller length or batch_tokens"
            )


def check_samples(recipe: Recipe[Any, Any]) -> None:
    """Let the task say now what it cannot give, instead of at the end of a long run."""
    task, trained = recipe.task, recipe.curriculum.lengths
    for split, lengths in (
        ("train", trained),
        ("validation", trained),
        ("test", (*recipe.evaluation.lengths, trained[-1])),
    ):
        for length in lengths:
            # A text is evaluated in windows, the last of which may be longer than what is left.
            if split == "train" or not hasattr(task, "windows"):
                task.batch(split, range(1), length)


def memory_of(device: str | torch.device) -> int:
    """Bytes that the device has, used or not; no more than this process may have."""
    if torch.device(device).type == "cuda":
        return torch.cuda.get_device_properties(device).total_memory
    whole = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    allowed = Path("/sys/fs/cgroup/memory.max")
    text = allowed.read_text().strip() if allowed.is_file() else ""
    return min(whole, int(text)) if text.isdigit() else whole
