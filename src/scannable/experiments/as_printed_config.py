"""Switches that turn the corrections of PAPER.md off again, for measuring what they are worth. Not for use."""

from dataclasses import dataclass, fields
from typing import Any, Literal

from scannable.models.transformer_psm_config import TransformerPSMConfig
from scannable.storage.registry import register_model

Tree = Literal["right", "swapped", "forgetful"]


@dataclass(frozen=True, kw_only=True)
class AsPrintedConfig(TransformerPSMConfig):
    """A Transformer-PSM with one or several departures undone; those that the library itself has a switch for
    (`agg_causal`, `literal_identity`) are there too.
    """

    prefix_of: Literal["earlier", "own", "late"] = "earlier"
    """What Inf gets: the prefix of all chunks before its own, as in Def. PSM; the one with its own chunk in it, as
    Alg. 4 prints; or that of all chunks but the last before its own, which s_(i-1) is if s comes from Alg. 1."""
    tree: Tree = "right"
    """Which scan computes the prefixes: the right one, or one of the two of the released code (`wrong_scans.py`)."""
    absolute: int = 0
    """So many learned positions, counted from the start of the sequence and added to what Enc returns; 0 for none.
    Agg and Inf have none of their own then."""
    init_std: float = 0.0
    """GPT-2's initialisation with this deviation, which is 0.02 there; 0 for that of the library."""
    random_projection: bool = False
    """Whether the projection of Agg starts as torch starts a Linear; otherwise as the library starts it."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.absolute and self.positions != "none":
            raise ValueError(f"absolute={self.absolute} takes the place of local positions: set positions='none'")
        if self.random_projection and self.compress != "projection":
            raise ValueError(f"random_projection needs compress='projection', not {self.compress!r}")
        if self.tree != "right" and self.prefix_of != "earlier":
            raise ValueError(
                f"tree={self.tree!r} has prefixes of earlier chunks only, not prefix_of={self.prefix_of!r}"
            )


def as_printed(config: TransformerPSMConfig, **switches: Any) -> AsPrintedConfig:
    """The same model with these switches turned."""
    shared = {field.name: getattr(config, field.name) for field in fields(TransformerPSMConfig)}
    return AsPrintedConfig(**shared | switches)


register_model("scannable.experiments.as_printed:AsPrinted", AsPrintedConfig)
