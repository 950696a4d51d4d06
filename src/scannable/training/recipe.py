"""What a run is: frozen dataclasses all the way down, every field of which can be set from the command line."""

from dataclasses import dataclass, field
from typing import Any, Generic, Literal, TypeVar

from scannable.configuration import configurable

M = TypeVar("M")
T = TypeVar("T")


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
    below: float | None = None
    """Go on to the next length when the validation error of this one is below."""
    steps: int | None = None
    """Go on after so many steps, whatever the error."""
    revisit: float = 0.0
    """How often a step goes back to one of the lengths before."""

    def __post_init__(self) -> None:
        if not self.lengths:
            raise ValueError("lengths is empty; give at least one length to train on")
        for length in self.lengths:
            positive("lengths", length, int)
        if not 0 <= self.revisit < 1:
            raise ValueError(f"revisit={self.revisit!r} must lie in [0, 1)")
        if self.steps is not None:
            positive("steps", self.steps, int)
        if len(self.lengths) > 1 and self.below is None and self.steps is None:
            raise ValueError("a curriculum of several lengths needs `below` or `steps`, to know when to go on")


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
    log_every: int = 10

    def __post_init__(self) -> None:
        for name in ("steps", "batch_tokens", "accumulate", "checkpoint_every", "keep", "log_every"):
            positive(name, getattr(self, name), int)
        if not 0 <= self.ema < 1:
            raise ValueError(f"ema={self.ema!r} must lie in [0, 1)")
        if type(self.seed) is not int or not 0 <= self.seed < 2**63:
            raise ValueError(f"seed={self.seed!r} must be a whole number from 0 to 2^63 - 1")

    def samples(self, length: int) -> int:
        """How many samples a step takes at a length."""
        return max(1, self.batch_tokens // length)


def positive(name: str, value: Any, kind: type) -> None:
    if type(value) is bool or not isinstance(value, (int, float) if kind is float else int):
        raise ValueError(f"{name}={value!r} must be a number above 0")
    if not 0 < value < float("inf"):
        raise ValueError(f"{name}={value!r} must be above 0")
