"""What can be chosen of each layer in a stack: a frozen configuration for each; the field names are the layers' own."""

from dataclasses import dataclass, fields, replace
from typing import Any, ClassVar, Literal

from scannable.layers.psm_choices import PSMChoices
from scannable.models.config_checks import check_number, check_sizes
from scannable.models.transformer_psm_config import check_psm
from scannable.storage.checked_fields import check_fields
from scannable.storage.registry import configurable

OPTIONS: "dict[str, type[LayerOptions]]" = {}
"""The options of each layer, by its name."""


@dataclass(frozen=True, kw_only=True)
class LayerOptions:
    """What every layer has."""

    layer: ClassVar[str]

    heads: int | None = None
    """Where they are not those of the model."""
    with_mlp: bool | None = None
    """Whether an MLP follows the layer in its block; None: as the model says, or else as its authors have it."""

    def __init_subclass__(cls) -> None:
        OPTIONS[cls.layer] = cls

    def __post_init__(self) -> None:
        if type(self) is LayerOptions:
            raise ValueError(f"LayerOptions are those of no layer; choose among {', '.join(OPTIONS)}")
        check_fields(self)
        check_sizes(self, "heads")

    def within(self, model: Any) -> "LayerOptions":
        """The same with what the configuration of the model decides filled in."""
        return self

    def arguments(self) -> dict[str, Any]:
        """Further arguments of the layer's class."""
        common = {field.name for field in fields(LayerOptions)}
        return {field.name: getattr(self, field.name) for field in fields(self) if field.name not in common}


@configurable
@dataclass(frozen=True, kw_only=True)
class LinearAttentionOptions(LayerOptions):
    """Of `scannable.zoo.LinearAttention`."""

    layer: ClassVar[str] = "linear_attention"


@configurable
@dataclass(frozen=True, kw_only=True)
class DeltaNetOptions(LayerOptions):
    """Of `scannable.zoo.DeltaNet`."""

    layer: ClassVar[str] = "deltanet"

    negative_eigenvalues: bool = False
    """Let a key flip what it recalls: eigenvalues down to -1."""
    key_size: int | None = None
    """Of a head; None: width / heads."""
    value_size: int | None = None
    """Of a head; None: width / heads."""
    convolution: int = 4
    eps: float = 1e-5
    """Of the norm of each head."""


@configurable
@dataclass(frozen=True, kw_only=True)
class GatedDeltaNetOptions(DeltaNetOptions):
    """Of `scannable.zoo.GatedDeltaNet`: those of DeltaNet."""

    layer: ClassVar[str] = "gated_deltanet"


@configurable
@dataclass(frozen=True, kw_only=True)
class DeltaProductOptions(LayerOptions):
    """Of `scannable.zoo.DeltaProduct`."""

    layer: ClassVar[str] = "deltaproduct"

    steps_per_token: int = 2
    """Householder steps a token."""
    negative_eigenvalues: bool = True
    """Reflections, not projections only."""
    gated: bool = False
    """A decay, once a token."""


@configurable
@dataclass(frozen=True, kw_only=True)
class RetNetOptions(LayerOptions):
    """Of `scannable.zoo.RetNet`."""

    layer: ClassVar[str] = "retnet"


@configurable
@dataclass(frozen=True, kw_only=True)
class MLSTMOptions(LayerOptions):
    """Of `scannable.zoo.MLSTM`."""

    layer: ClassVar[str] = "mlstm"


@configurable
@dataclass(frozen=True, kw_only=True)
class GatedRFAOptions(LayerOptions):
    """Of `scannable.zoo.GatedRFA`."""

    layer: ClassVar[str] = "gated_rfa"

    features: int | None = None
    """Random features a head; None: the head's size."""


@configurable
@dataclass(frozen=True, kw_only=True)
class S4Options(LayerOptions):
    """Of `scannable.zoo.S4`."""

    layer: ClassVar[str] = "s4"

    state_size: int = 64


@configurable
@dataclass(frozen=True, kw_only=True)
class S6Options(LayerOptions):
    """Of `scannable.zoo.S6`."""

    layer: ClassVar[str] = "s6"

    state_size: int = 16


@configurable
@dataclass(frozen=True, kw_only=True)
class MambaOptions(LayerOptions):
    """Of `scannable.zoo.Mamba`."""

    layer: ClassVar[str] = "mamba"

    state_size: int = 16
    expand: int = 2
    """Width inside over width outside."""
    step_rank: int | None = None
    """Rank of the step sizes; None: width / 16."""
    convolution: int = 4
    convolution_bias: bool = True
    bias: bool = False


@configurable
@dataclass(frozen=True, kw_only=True)
class GLAOptions(LayerOptions):
    """Of `scannable.zoo.GLA`."""

    layer: ClassVar[str] = "gla"

    key_size: int | None = None
    """Of a head; None: half of width / heads."""
    value_size: int | None = None
    """Of a head; None: width / heads."""
    eps: float = 1e-5
    """Of the norm of each head."""


@configurable
@dataclass(frozen=True, kw_only=True)
class DenseLTIOptions(LayerOptions):
    """Of `scannable.zoo.DenseLTI`."""

    layer: ClassVar[str] = "lti"


@configurable
@dataclass(frozen=True, kw_only=True)
class Mamba2Options(LayerOptions):
    """Of `scannable.zoo.Mamba2`."""

    layer: ClassVar[str] = "mamba2"

    state_size: int = 128
    expand: int = 2
    """Width inside over width outside."""
    groups: int = 1
    convolution: int = 4
    convolution_bias: bool = True
    bias: bool = False
    eps: float = 1e-5
    step_size_limits: tuple[float, float | None] = (0.0, None)
    """Between which step sizes are kept; None: no upper limit."""


@configurable
@dataclass(frozen=True, kw_only=True)
class RWKV7Options(LayerOptions):
    """Of `scannable.zoo.RWKV7`."""

    layer: ClassVar[str] = "rwkv7"

    rank: int = 32
    """Of its low-rank maps."""


@configurable
@dataclass(frozen=True, kw_only=True)
class GatedRNNOptions(LayerOptions):
    """Of `scannable.zoo.GatedRNN`."""

    layer: ClassVar[str] = "gated_rnn"


@configurable
@dataclass(frozen=True, kw_only=True)
class LogLinearAttentionOptions(LayerOptions):
    """Of `scannable.zoo.LogLinearAttention`."""

    layer: ClassVar[str] = "log_linear"

    levels: int = 20
    """Weights a head; levels beyond share the last."""
    chunk: int = 64


@configurable
@dataclass(frozen=True, kw_only=True)
class LSTMOptions(LayerOptions):
    """Of `scannable.zoo.LSTM`."""

    layer: ClassVar[str] = "lstm"

    state_noise: float = 0.0
    """On the state that each position starts from, in training only, as a fraction of its size."""

    def __post_init__(self) -> None:
        super().__post_init__()
        check_number(self, "state_noise", lambda noise: noise >= 0, "be 0 or above")


@configurable
@dataclass(frozen=True, kw_only=True)
class AttentionOptions(LayerOptions):
    """Of `scannable.zoo.Attention`."""

    layer: ClassVar[str] = "attention"

    window: int | None = None
    """Positions that each looks at, itself included; None: all."""
    positions: Literal["rotary", "none"] | None = None
    """Rotated queries and keys, or nothing but the causal mask; None: rotary, unless the model learns positions."""
    qk_norm: bool = False
    """Bring queries and keys to a mean square of 1, with a learned gain for each head."""
    convolution: int = 0
    """Positions of short convolutions of the input and of queries, keys and values; 0 for none."""
    bias: bool = True
    """Of the projections."""
    dropout: float | None = None
    """Of the attention weights; None: as the model says."""

    def within(self, model: Any) -> "AttentionOptions":
        positions = self.positions or ("none" if model.positions else "rotary")
        return replace(self, positions=positions, dropout=model.dropout if self.dropout is None else self.dropout)


@configurable
@dataclass(frozen=True, kw_only=True)
class ConvolvedMLPOptions(LayerOptions):
    """Of `scannable.zoo.ConvolvedMLP`."""

    layer: ClassVar[str] = "convolved_mlp"

    activation: Literal["gelu", "swiglu", "relu2"] = "gelu"
    """SwiGLU has as many parameters as the others."""
    convolution: int = 4
    """Positions of the short convolutions before the MLP and inside it."""
    bias: bool = True
    """Of the projections."""


@configurable
@dataclass(frozen=True, kw_only=True)
class PSMOptions(PSMChoices, LayerOptions):
    """Of `scannable.TransformerPSMLayer`."""

    layer: ClassVar[str] = "psm"

    agg_layers: int = 1
    inf_layers: int = 1

    def within(self, model: Any) -> "PSMOptions":
        check_psm(self, model.width, self.heads or model.heads)
        return self
