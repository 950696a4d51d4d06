"""The knobs of a Transformer-PSM."""

from dataclasses import dataclass
from typing import Literal

from scannable.models.config_checks import (
    check_choice,
    check_dropout,
    check_heads,
    check_number,
    check_outputs,
    check_sizes,
    check_switches,
)
from scannable.storage.registry import register_model


@dataclass(frozen=True)
class TransformerPSMConfig:
    """Sizes and variants of Sec. "Transformer-PSM"; every default is the paper's choice where it makes one."""

    vocab_size: int
    width: int = 256
    """d, the same for Enc, Agg and Inf."""
    chunk_length: int = 64
    """c, tokens in a chunk; also the tokens in one state of the scan."""
    agg_layers: int = 2
    inf_layers: int = 2
    heads: int = 4
    agg_heads: int | None = None
    """Heads of Agg where they are not those of Inf."""
    out_size: int | None = None
    """Outputs a position, for tasks that are not language modelling; the vocabulary, unless told."""
    tie_weights: bool = False
    """Use the embedding as the output layer; needs outputs that are the vocabulary."""
    dropout: float = 0.0
    compress: Literal["right_half", "projection"] = "right_half"
    """How Agg turns 2c tokens into c: keep the right half, or a learned projection over tokens (the paper's MQAR)."""
    agg_causal: bool = False
    """Causal attention inside Agg, as the paper's released code has it; the paper says bidirectional."""
    sinusoids: bool = False
    """Start the learned positions of Agg and Inf as sinusoids instead of noise."""
    literal_identity: bool = False
    """Call Agg(e, x) as Alg. 1 and 2 print it, instead of taking it for x."""
    checkpoint: bool = False
    """Keep no activations of Agg for backward; compute each level of the scan twice."""
    state_noise: float = 0.0
    """Gaussian noise on what Agg returns, in training only, as a fraction of its size: states then learn to
    absorb small errors, which otherwise grow from level to level of the tree. `model.agg.noise` is the noise of now;
    `recipes.aids.GrowingStateNoise` lets it grow from nothing."""
    unit_states: bool = False
    """Bring what Agg returns to a mean square of 1, the size of what it reads first. Otherwise the gain of its last
    LayerNorm may grow, and with it the share of a state, errors included, that goes through Agg unchanged."""

    def __post_init__(self) -> None:
        check_sizes(self, "width", "chunk_length", "agg_layers", "inf_layers", "heads", "agg_heads")
        check_outputs(self)
        check_heads(self.width, self.heads)
        check_heads(self.width, self.agg_heads or self.heads, "agg_heads")
        check_switches(self, "agg_causal", "sinusoids", "literal_identity", "checkpoint", "unit_states")
        check_dropout(self)
        check_number(self, "state_noise", lambda noise: noise >= 0, "be 0 or above")
        check_choice(self, "compress", "right_half", "projection")


register_model("scannable.models.transformer_psm:TransformerPSM", TransformerPSMConfig)
