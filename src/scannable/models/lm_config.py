"""The knobs of a `ZooLM`."""

from dataclasses import dataclass, field
from typing import Any

from scannable.layers import LAYERS
from scannable.models.config_checks import (
    check_dropout,
    check_number,
    check_outputs,
    check_sizes,
    check_switches,
)
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
        check_sizes(self, "layers", "width", "heads")
        check_outputs(self)
        check_switches(self, "mlp", "checkpoint")
        check_dropout(self)
        check_number(self, "eps", lambda eps: eps > 0, "be above 0")
        # A tuple of names: to look a layer up in the mapping would import it, and torch with it.
        if self.row not in tuple(LAYERS):
            raise ValueError(f"row={self.row!r} is none of {', '.join(LAYERS)}")
        if type(self.options) is not dict:
            raise ValueError(f"options={self.options!r} must be a dict of further arguments of the row's layer")


register_model("scannable.models.lm:ZooLM", ZooConfig)
