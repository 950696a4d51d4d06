"""Sequence layers: the rows of Table 1 in its order, those that the paper's text and appendix name, an LSTM,
attention, and the MLP that goes with it where blocks have short convolutions.

A layer is imported when it is first asked for: a configuration may name one without waiting for torch.
"""

from collections.abc import Iterator, Mapping
from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from scannable.layers.attention import Attention
    from scannable.layers.convolved_mlp import ConvolvedMLP
    from scannable.layers.deltanet import DeltaNet
    from scannable.layers.deltaproduct import DeltaProduct
    from scannable.layers.gated_deltanet import GatedDeltaNet
    from scannable.layers.gated_rfa import GatedRFA
    from scannable.layers.gated_rnn import GatedRNN
    from scannable.layers.gla import GLA
    from scannable.layers.layer import SequenceLayer
    from scannable.layers.linear_attention import LinearAttention
    from scannable.layers.log_linear import LogLinearAttention
    from scannable.layers.lstm import LSTM
    from scannable.layers.lti import DenseLTI
    from scannable.layers.mamba import Mamba
    from scannable.layers.mamba2 import Mamba2
    from scannable.layers.mlstm import MLSTM
    from scannable.layers.retnet import RetNet
    from scannable.layers.rwkv7 import RWKV7
    from scannable.layers.s4 import S4
    from scannable.layers.s6 import S6
    from scannable.layers.transformer_psm import TransformerPSMLayer

__all__ = [
    "GLA",
    "LAYERS",
    "LSTM",
    "MLSTM",
    "RWKV7",
    "S4",
    "S6",
    "Attention",
    "ConvolvedMLP",
    "DeltaNet",
    "DeltaProduct",
    "DenseLTI",
    "GatedDeltaNet",
    "GatedRFA",
    "GatedRNN",
    "LinearAttention",
    "LogLinearAttention",
    "Mamba",
    "Mamba2",
    "RetNet",
    "SequenceLayer",
    "TransformerPSMLayer",
]

_CLASSES = {
    "linear_attention": "LinearAttention",
    "deltanet": "DeltaNet",
    "gated_deltanet": "GatedDeltaNet",
    "deltaproduct": "DeltaProduct",
    "retnet": "RetNet",
    "mlstm": "MLSTM",
    "gated_rfa": "GatedRFA",
    "s4": "S4",
    "s6": "S6",
    "mamba": "Mamba",
    "gla": "GLA",
    "lti": "DenseLTI",
    "mamba2": "Mamba2",
    "rwkv7": "RWKV7",
    "gated_rnn": "GatedRNN",
    "log_linear": "LogLinearAttention",
    "lstm": "LSTM",
    "attention": "Attention",
    "convolved_mlp": "ConvolvedMLP",
    "psm": "TransformerPSMLayer",
}
"""Each layer's class."""
_ELSEWHERE = {"psm": "transformer_psm"}
"""The modules of those that are not in one of their name."""


class _Layers(Mapping[str, "type[SequenceLayer]"]):
    def __getitem__(self, name: str) -> "type[SequenceLayer]":
        kind = _CLASSES[name]
        return getattr(import_module(f"{__name__}.{_ELSEWHERE.get(name, name)}"), kind)

    def __contains__(self, name: object) -> bool:
        # Without importing it.
        return name in _CLASSES

    def __iter__(self) -> Iterator[str]:
        return iter(_CLASSES)

    def __len__(self) -> int:
        return len(_CLASSES)


LAYERS: Mapping[str, "type[SequenceLayer]"] = _Layers()
"""Every layer by its name in a configuration."""


def __getattr__(name: str) -> Any:
    if name == "SequenceLayer":
        return import_module(f"{__name__}.layer").SequenceLayer
    for module, kind in _CLASSES.items():
        if name == kind:
            return LAYERS[module]
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
