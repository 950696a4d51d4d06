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
from scannable.nn.block_config import MLP, Norm, Positions, check_block, check_rotary
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
    positions: Positions = "learned"
    """Of Agg and Inf, counted from the start of their windows: a learned vector for each place, rotated queries and
    keys, or none, where only the causal mask tells places apart."""
    norm: Norm = "layer"
    """LayerNorm or RMSNorm."""
    mlp: MLP = "gelu"
    """GELU of four times the width, SwiGLU of about as many parameters, or a squared ReLU."""
    qk_norm: bool = False
    """Bring queries and keys to a mean square of 1, with a learned gain for each head."""
    convolution: int = 0
    """Positions that the short causal convolutions of Canon layers look at (arXiv 2512.17351, where it is 4); 0 for
    none."""
    prefix: Literal["carried", "memory"] = "carried"
    """How Inf sees its prefix: carried through all layers beside the chunk, or as keys and values that every layer
    makes of it as it is, which is half of Inf's work."""
    recent: int = 0
    """How many whole chunks before its own Inf sees beside the prefix, which then ends before them."""

    def __post_init__(self) -> None:
        check_sizes(self, "width", "chunk_length", "agg_layers", "inf_layers", "heads", "agg_heads")
        check_outputs(self)
        check_heads(self.width, self.heads)
        check_heads(self.width, self.agg_heads or self.heads, "agg_heads")
        check_switches(self, "agg_causal", "sinusoids", "literal_identity", "checkpoint", "unit_states")
        check_dropout(self)
        check_number(self, "state_noise", lambda noise: noise >= 0, "be 0 or above")
        check_choice(self, "compress", "right_half", "projection")
        check_choice(self, "prefix", "carried", "memory")
        check_block(self)
        for name, heads in (("heads", self.heads), ("agg_heads", self.agg_heads or self.heads)):
            check_rotary(self.positions, self.width, heads, name)
        if self.sinusoids and self.positions != "learned":
            raise ValueError(
                f"sinusoids=True needs learned positions to start so, but positions={self.positions!r}; drop one of "
                "the two"
            )
        if type(self.recent) is not int or self.recent < 0:
            raise ValueError(f"recent={self.recent!r} must be a whole number of chunks, 0 or above")


register_model("scannable.models.transformer_psm:TransformerPSM", TransformerPSMConfig)
