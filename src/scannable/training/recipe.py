"""What a run is: frozen dataclasses all the way down, every field of which can be set from the command line."""

from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Generic, Literal, TypeVar

from scannable.storage.checked_fields import check_fields
from scannable.storage.registry import configurable, is_model_configuration
from scannable.tasks.sample import PinnedTask
from scannable.training.callbacks import Callback

Weights = Literal["last", "best"]

M = TypeVar("M")
T = TypeVar("T")


@configurable
@dataclass(frozen=True)
class Optimizer:
    """How weights move. Which of them decay the modules say: matrices do; biases, norms, gains, rates, positions and
    identities do not.
    """

    learning_rate: float = 1e-3
    betas: tuple[float, float] = (0.9, 0.98)
    weight_decay: float = 0.01
    clip: float = 1.0
    """Largest norm of the gradient; 0 for none."""
    schedule: Literal["constant", "linear", "cosine", "late"] = "cosine"
    """How the learning rate goes from its peak to `final` times it; "late" is constant at first and falls linearly over
    the last third of the steps."""
    warmup: int = 100
    """Steps in which it rises to the peak."""
    final: float = 0.1
    algorithm: Literal["adamw", "muon"] = "adamw"
    """AdamW for everything; or Muon, with steps of the same size, for the matrices inside the model, and AdamW for the
    embedding, the output layer, and all that is no matrix."""

    def __post_init__(self) -> None:
        check_fields(self)
        positive("learning_rate", self.learning_rate)
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
        check_fields(self)
        if not self.lengths:
            raise ValueError("lengths is empty; give at least one length to train on")
        for length in self.lengths:
            positive("lengths", length)
        if not 0 <= self.revisit < 1:
            raise ValueError(f"revisit={self.revisit!r} must lie in [0, 1)")
        if self.steps is not None:
            positive("steps", self.steps)
        if self.patience is not None:
            positive("patience", self.patience)
        for name in ("below", "rates"):
            values = getattr(self, name)
            if len(values) not in (0, 1, len(self.lengths)):
                raise ValueError(f"{name}={values!r} must be one number, or one for each of {len(self.lengths)} stages")
            for value in values:
                positive(name, value)
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
    weights: Weights = "last"
    """Which weights are tested at the end, and loaded afterwards: those of the last step, or those with the best
    validation loss at the longest length reached."""

    def __post_init__(self) -> None:
        check_fields(self)
        positive("every", self.every)
        positive("samples", self.samples)
        for length in self.lengths:
            positive("lengths", length)
        if self.stop_below is not None:
            positive("stop_below", self.stop_below)
        if self.patience is not None:
            positive("patience", self.patience)


@configurable
@dataclass(frozen=True)
class Recipe(Generic[M, T]):
    """Everything that decides what a run computes; two runs of equal recipes are equal bit for bit on one machine.

    >>> from dataclasses import replace
    >>> from scannable.recipes import demo
    >>> replace(demo(), steps=10).steps
    10
    """

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
    callbacks: tuple[Any, ...] = ()
    """What changes the model on the way, beside the optimizer: each a `Callback`."""

    def __post_init__(self) -> None:
        check_fields(self)
        if not is_model_configuration(type(self.model)):
            raise ValueError(f"model={self.model!r:.60} is no configuration of a model that is known (register_model)")
        for callback in self.callbacks:
            if not isinstance(callback, Callback):
                raise ValueError(f"callbacks has {callback!r:.60}, which is no `Callback`")
        if not callable(getattr(self.task, "batch", None)):
            raise ValueError(f"task={self.task!r:.60} is no task: it has no `batch`")
        for name in ("steps", "batch_tokens", "accumulate", "checkpoint_every", "keep", "log_every"):
            positive(name, getattr(self, name))
        for name in ("batch_samples", "keep_every"):
            if getattr(self, name) is not None:
                positive(name, getattr(self, name))
        if self.keep_every is not None and self.keep_every % self.checkpoint_every:
            raise ValueError(
                f"keep_every={self.keep_every} must be a multiple of checkpoint_every={self.checkpoint_every}"
            )
        if not 0 <= self.ema < 1:
            raise ValueError(f"ema={self.ema!r} must lie in [0, 1)")
        if self.seed < 0:
            raise ValueError(f"seed={self.seed!r} must be a whole number from 0 to 2^63 - 1")

    def samples(self, length: int) -> int:
        """How many samples a step takes at a length."""
        return self.batch_samples or max(1, self.batch_tokens // length)


def pinned(recipe: Recipe[M, T], folder: Path) -> Recipe[M, T]:
    """The recipe for a run in `folder`, with everything written down that its task reads from elsewhere."""
    task: Any = recipe.task
    return replace(recipe, task=task.pinned(folder)) if isinstance(task, PinnedTask) else recipe


def positive(name: str, value: float) -> None:
    """Refuse what is not a number above 0."""
    if type(value) not in (int, float):
        raise ValueError(f"{name}={value!r} must be a number above 0")
    if not 0 < value < float("inf"):
        raise ValueError(f"{name}={value!r} must be above 0")
    if type(value) is int and value >= 2**63:
        raise ValueError(f"{name}={value!r:.60} is out of the range of 64 bits")
