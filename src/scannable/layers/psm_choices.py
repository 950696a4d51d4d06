"""What can be chosen of a Transformer-PSM, as a layer and as a model. Nothing here needs torch."""

from dataclasses import dataclass
from typing import Literal

from scannable.nn.block_config import MLP, Norm, Positions


@dataclass(frozen=True, kw_only=True)
class PSMChoices:
    """Variants of Sec. "Transformer-PSM"; every default is the paper's choice where it makes one."""

    chunk_length: int = 64
    """c, tokens in a chunk; also the tokens in one state of the scan."""
    agg_layers: int = 2
    inf_layers: int = 2
    agg_heads: int | None = None
    """Heads of Agg where they are not those of Inf."""
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
