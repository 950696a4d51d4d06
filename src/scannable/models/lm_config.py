"""The knobs of an `LM`: a stack of any layers."""

from dataclasses import dataclass
from typing import Literal

from scannable.models.config_checks import (
    check_choice,
    check_dropout,
    check_number,
    check_outputs,
    check_sizes,
    check_switches,
)
from scannable.models.layer_options import OPTIONS, LayerOptions
from scannable.storage.registry import register_model

GPT2_INIT_STD = 0.02
"""For widths of 768 and more."""


@dataclass(frozen=True)
class LMConfig:
    """The knobs of an `LM`.

    >>> from scannable.models.layer_options import MambaOptions
    >>> config = sc.LMConfig(vocab_size=50, width=16, heads=2, layers=(MambaOptions(state_size=8), "psm"))
    >>> config.layers[0].state_size, sc.LM(config)(torch.randint(50, (2, 10))).shape
    (8, torch.Size([2, 10, 50]))
    """

    vocab_size: int
    layers: tuple[str | LayerOptions, ...] = ("gla",) * 4
    """One for each block: a name takes the layer's defaults, an object of `models.layer_options` says more (on a
    command line: mamba:state_size=32).
    """
    width: int = 256
    heads: int = 4
    mlp: bool | None = None
    """Whether an MLP follows the layer in each block; by default if its authors have it."""
    activation: Literal["gelu", "swiglu", "relu2"] = "gelu"
    """Of the MLPs; SwiGLU has as many parameters as the others."""
    mlp_width: int | None = None
    """Width inside the MLPs; None: four times the width, or two thirds of that with SwiGLU."""
    mlp_bias: bool = True
    """Whether the projections of the MLPs have biases."""
    norm: Literal["rms", "layer"] = "rms"
    """Before every layer and MLP, and before the output."""
    positions: int = 0
    """Learned positions up to this length are added to the embedding; 0 for none, and no limit."""
    sinusoids: bool = False
    """Start them as sinusoids instead of noise."""
    out_size: int | None = None
    """Outputs a position, for tasks that are not language modelling; the vocabulary, unless told."""
    tie_weights: bool = False
    """Use the embedding as the output layer; needs outputs that are the vocabulary."""
    dropout: float = 0.0
    """Of the embedding, of what each layer and MLP adds, and of attention weights."""
    eps: float = 1e-5
    """Of the norms."""
    init_std: float | None = None
    """Deviation at the start, as GPT-2 has it (0.02), of embedding, positions, output layer, attention and MLPs; None:
    as each fan-in has it. What writes to the residual stream starts lower by the square root of how many do."""
    checkpoint: bool = False
    """Keep no activations of the blocks for backward; compute each of them twice."""

    def __post_init__(self) -> None:
        check_sizes(self, "width", "heads", "mlp_width")
        check_outputs(self)
        check_switches(self, "mlp", "mlp_bias", "checkpoint", "sinusoids")
        check_dropout(self)
        check_number(self, "eps", lambda eps: eps > 0, "be above 0")
        if self.init_std is not None:
            check_number(self, "init_std", lambda std: std > 0, "be above 0, or None")
        check_choice(self, "activation", "gelu", "swiglu", "relu2")
        check_choice(self, "norm", "rms", "layer")
        if type(self.positions) is not int or self.positions < 0:
            raise ValueError(f"positions={self.positions!r} must be a whole number of at least 0")
        if isinstance(self.layers, list):
            object.__setattr__(self, "layers", tuple(self.layers))
        if not isinstance(self.layers, tuple) or not self.layers:
            raise ValueError(f"layers={self.layers!r} must be a tuple of at least one layer, such as ('mamba', 'gla')")
        for i, layer in enumerate(self.layers):
            if not isinstance(layer, LayerOptions) and not (isinstance(layer, str) and layer in OPTIONS):
                raise ValueError(f"layers[{i}]={layer!r} is none of {', '.join(OPTIONS)}, nor options of one")

    def options(self) -> tuple[LayerOptions, ...]:
        """What each layer is, spelled out."""
        chosen = (layer if isinstance(layer, LayerOptions) else OPTIONS[layer]() for layer in self.layers)
        return tuple(options.within(self) for options in chosen)


register_model("scannable.models.lm:LM", LMConfig)
