"""The knobs of a Transformer-PSM."""

from dataclasses import dataclass
from typing import Any

from scannable.layers.psm_choices import PSMChoices
from scannable.models.config_checks import (
    check_choice,
    check_dropout,
    check_heads,
    check_number,
    check_outputs,
    check_sizes,
    check_switches,
)
from scannable.nn.block_config import check_block, check_rotary
from scannable.storage.registry import register_model


@dataclass(frozen=True)
class TransformerPSMConfig(PSMChoices):
    """Sizes and variants of Sec. "Transformer-PSM"; every default is the paper's choice where it makes one.

    >>> config = sc.TransformerPSMConfig(vocab_size=50, width=16, heads=2, positions="rotary", mlp="swiglu", recent=1)
    >>> config.agg_layers, config.inf_layers
    (2, 2)
    """

    vocab_size: int
    width: int = 256
    """d, the same for Enc, Agg and Inf."""
    heads: int = 4
    out_size: int | None = None
    """Outputs a position, for tasks that are not language modelling; the vocabulary, unless told."""
    tie_weights: bool = False
    """Use the embedding as the output layer; needs outputs that are the vocabulary."""

    def __post_init__(self) -> None:
        check_sizes(self, "width", "heads")
        check_outputs(self)
        check_psm(self, self.width, self.heads)


def check_psm(choices: Any, width: int, heads: int) -> None:
    """Refuse choices that no Transformer-PSM of this width and so many heads has."""
    check_sizes(choices, "chunk_length", "agg_layers", "inf_layers", "agg_heads")
    check_heads(width, heads)
    check_heads(width, choices.agg_heads or heads, "agg_heads")
    check_switches(choices, "agg_causal", "sinusoids", "literal_identity", "checkpoint", "unit_states")
    check_dropout(choices)
    check_number(choices, "state_noise", lambda noise: noise >= 0, "be 0 or above")
    check_choice(choices, "compress", "right_half", "projection")
    check_choice(choices, "prefix", "carried", "memory")
    check_block(choices)
    for name, count in (("heads", heads), ("agg_heads", choices.agg_heads or heads)):
        check_rotary(choices.positions, width, count, name)
    if choices.sinusoids and choices.positions != "learned":
        raise ValueError(
            f"sinusoids=True needs learned positions to start so, but positions={choices.positions!r}; drop one of the "
            "two"
        )
    if type(choices.recent) is not int or choices.recent < 0:
        raise ValueError(f"recent={choices.recent!r} must be a whole number of chunks, 0 or above")


register_model("scannable.models.transformer_psm:TransformerPSM", TransformerPSMConfig)
