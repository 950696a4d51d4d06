"""The knobs of a Transformer-PSM."""

from dataclasses import dataclass
from typing import Literal

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
    absorb small errors, which otherwise grow from level to level of the tree."""
    state_noise_over: float = 0.5
    """The share of a training run over which that noise grows from nothing."""
    unit_states: bool = False
    """Bring what Agg returns to a mean square of 1, the size of what it reads first. Otherwise the gain of its last
    LayerNorm may grow, and with it the share of a state, errors included, that goes through Agg unchanged."""
    agg_from_inf: bool = False
    """When a curriculum leaves its first length, start Agg's Transformer from Inf's weights."""

    def __post_init__(self) -> None:
        for name in ("vocab_size", "width", "chunk_length", "agg_layers", "inf_layers", "heads"):
            _positive(name, getattr(self, name))
        for name in ("agg_heads", "out_size"):
            if getattr(self, name) is not None:
                _positive(name, getattr(self, name))
        for name, heads in (("heads", self.heads), ("agg_heads", self.agg_heads or self.heads)):
            if self.width % heads:
                raise ValueError(f"width={self.width} is not a multiple of {name}={heads}; choose heads that divide it")
        for name in (
            "tie_weights", "agg_causal", "sinusoids", "literal_identity", "checkpoint", "unit_states", "agg_from_inf",
        ):  # fmt: skip
            if type(getattr(self, name)) is not bool:
                raise ValueError(f"{name}={getattr(self, name)!r} must be True or False")
        if type(self.dropout) not in (int, float) or not 0 <= self.dropout < 1:
            raise ValueError(f"dropout={self.dropout!r} must lie in [0, 1)")
        if type(self.state_noise) not in (int, float) or not 0 <= self.state_noise < float("inf"):
            raise ValueError(f"state_noise={self.state_noise!r} must be 0 or above")
        if type(self.state_noise_over) not in (int, float) or not 0 < self.state_noise_over <= 1:
            raise ValueError(f"state_noise_over={self.state_noise_over!r} must lie in (0, 1]")
        if self.agg_from_inf and (self.agg_layers, self.agg_heads or self.heads) != (self.inf_layers, self.heads):
            raise ValueError("agg_from_inf needs an Agg with the layers and heads of Inf")
        if self.compress not in ("right_half", "projection"):
            raise ValueError(f"compress={self.compress!r} is neither 'right_half' nor 'projection'")
        if self.tie_weights and self.out_size not in (None, self.vocab_size):
            raise ValueError(
                f"tie_weights needs one output for each token, but out_size={self.out_size} and "
                f"vocab_size={self.vocab_size}; drop one of the two"
            )


def _positive(name: str, value: object) -> None:
    if type(value) is not int or value < 1:
        raise ValueError(f"{name}={value!r} must be a whole number of at least 1")


register_model("scannable.models.transformer_psm:TransformerPSM", TransformerPSMConfig)
