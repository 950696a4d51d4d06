"""What a block of a Transformer is made of. Nothing here needs torch: a configuration is read before that is there."""

from dataclasses import dataclass
from typing import Any, Literal, get_args

Positions = Literal["learned", "rotary", "none"]
Norm = Literal["layer", "rms"]
MLP = Literal["gelu", "swiglu", "relu2"]


@dataclass(frozen=True)
class BlockConfig:
    """Options of the blocks of Agg, Inf and attention layers; every default is the paper's choice, GPT-2's block."""

    positions: Positions = "learned"
    """A learned vector for each place of the window; rotated queries and keys (arXiv 2104.09864), counted from the
    start of the window; or nothing but the causal mask."""
    norm: Norm = "layer"
    """LayerNorm, or RMSNorm, which neither centres nor shifts."""
    mlp: MLP = "gelu"
    """GELU(W x) of four times the width; SwiGLU, silu(W x) * V x, of about as many parameters; or relu(W x)^2."""
    qk_norm: bool = False
    """Bring queries and keys to a mean square of 1, and learn how much they count: one gain for each head."""
    convolution: int = 0
    """Positions that a short causal convolution looks at, itself included: x + conv(x), for each channel by itself, at
    the four points of Canon layers (arXiv 2512.17351): before attention, on queries, keys and values, before the MLP
    and inside it. 0 for none; the paper of Canon layers has 4."""

    def __post_init__(self) -> None:
        check_block(self)

    def inner(self, width: int) -> int:
        """The width inside the MLP."""
        # Three matrices instead of two; a multiple of 8, which kernels like.
        return -(-8 * width // 24) * 8 if self.mlp == "swiglu" else 4 * width


def check_block(config: Any) -> None:
    """Refuse options that no block has, in any configuration with these fields."""
    for name, choices in (("positions", Positions), ("norm", Norm), ("mlp", MLP)):
        value = getattr(config, name)
        if value not in get_args(choices):
            raise ValueError(f"{name}={value!r} is none of {', '.join(map(repr, get_args(choices)))}")
    if type(config.qk_norm) is not bool:
        raise ValueError(f"qk_norm={config.qk_norm!r} must be True or False")
    length = config.convolution
    if type(length) is not int or length < 0 or length == 1:
        raise ValueError(f"convolution={length!r} must be 0 for none, or a whole number of at least 2 positions")


def check_rotary(positions: Positions, width: int, heads: int, name: str = "heads") -> None:
    """Refuse heads whose channels do not come in pairs, where pairs are rotated."""
    if positions == "rotary" and width // heads % 2:
        raise ValueError(
            f"positions='rotary' rotates pairs of channels, but width={width} and {name}={heads} make heads of "
            f"{width // heads}; choose heads of an even size"
        )
