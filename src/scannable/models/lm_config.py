"""The knobs of a `ZooLM`."""

from dataclasses import dataclass, field
from typing import Any

from scannable.layers import LAYERS
from scannable.storage.registry import register_model


@dataclass(frozen=True)
class ZooConfig:
    """The knobs of a `ZooLM`."""

    vocab_size: int
    row: str = "gla"
    """Which row of the zoo; `scannable.zoo.LAYERS` has them all."""
    layers: int = 4
    width: int = 256
    heads: int = 4
    mlp: bool | None = None
    """Whether an MLP of four times the width follows the row in each block; by default if the row's authors have it."""
    out_size: int | None = None
    """Outputs a position, for tasks that are not language modelling; the vocabulary, unless told."""
    tie_weights: bool = False
    """Use the embedding as the output layer; needs outputs that are the vocabulary."""
    dropout: float = 0.0
    eps: float = 1e-5
    """Of the norms between the blocks."""
    checkpoint: bool = False
    """Keep no activations of the blocks for backward; compute each of them twice."""
    options: dict[str, Any] = field(default_factory=dict)
    """Further arguments of the row's layer, such as state_size for Mamba."""

    def __post_init__(self) -> None:
        sizes = ("vocab_size", "layers", "width", "heads", *(() if self.out_size is None else ("out_size",)))
        for name in sizes:
            if type(getattr(self, name)) is not int or getattr(self, name) < 1:
                raise ValueError(f"{name}={getattr(self, name)!r} must be a whole number of at least 1")
        if self.row not in LAYERS:
            raise ValueError(f"row={self.row!r} is none of {', '.join(LAYERS)}")
        if type(self.dropout) not in (int, float) or not 0 <= self.dropout < 1:
            raise ValueError(f"dropout={self.dropout!r} must lie in [0, 1)")
        if self.tie_weights and self.out_size not in (None, self.vocab_size):
            raise ValueError(
                f"tie_weights needs one output for each token, but out_size={self.out_size} and "
                f"vocab_size={self.vocab_size}; drop one of the two"
            )


register_model("scannable.models.lm:ZooLM", ZooConfig)
