"""Prefix-scannable sequence models: train in parallel, stream in O(log n) state, and both are the same function."""

import sys
from importlib import import_module
from types import ModuleType
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from scannable import zoo
    from scannable.layers.psm import PSMLayer
    from scannable.layers.psm_state import PSMState
    from scannable.layers.state import State, join
    from scannable.layers.transformer_psm import TransformerPSMLayer
    from scannable.models.generation import generate
    from scannable.models.lm import LM
    from scannable.models.lm_config import LMConfig
    from scannable.models.prefix_scannable import PrefixScannableModel
    from scannable.models.protocol import SequenceModel, StreamState
    from scannable.models.transformer_psm import TransformerPSM
    from scannable.models.transformer_psm_config import TransformerPSMConfig
    from scannable.nn.loss import sliced_cross_entropy
    from scannable.scan import BinaryCounter, ScanState, empty, extend, extend_many, scan
    from scannable.spd import DualityReport, associativity_defect, verify_duality
    from scannable.storage.model_file import ModelFileError, load_model, save_model
    from scannable.storage.registry import configurable, register_model, storable
    from scannable.storage.state_file import StateFileError, load_state, save_state

__version__ = "0.1.0"

__all__ = [
    "LM",
    "BinaryCounter",
    "DualityReport",
    "LMConfig",
    "ModelFileError",
    "PSMLayer",
    "PSMState",
    "PrefixScannableModel",
    "ScanState",
    "SequenceModel",
    "State",
    "StateFileError",
    "StreamState",
    "TransformerPSM",
    "TransformerPSMConfig",
    "TransformerPSMLayer",
    "associativity_defect",
    "configurable",
    "empty",
    "extend",
    "extend_many",
    "generate",
    "join",
    "load_model",
    "load_state",
    "register_model",
    "save_model",
    "save_state",
    "scan",
    "sliced_cross_entropy",
    "storable",
    "verify_duality",
    "zoo",
]

_HOME = {
    "scannable.layers.psm": ("PSMLayer",),
    "scannable.layers.psm_state": ("PSMState",),
    "scannable.layers.state": ("State", "join"),
    "scannable.layers.transformer_psm": ("TransformerPSMLayer",),
    "scannable.models.generation": ("generate",),
    "scannable.models.lm": ("LM",),
    "scannable.models.lm_config": ("LMConfig",),
    "scannable.models.prefix_scannable": ("PrefixScannableModel",),
    "scannable.models.protocol": ("SequenceModel", "StreamState"),
    "scannable.models.transformer_psm": ("TransformerPSM",),
    "scannable.models.transformer_psm_config": ("TransformerPSMConfig",),
    "scannable.nn.loss": ("sliced_cross_entropy",),
    "scannable.scan": ("BinaryCounter", "ScanState", "empty", "extend", "extend_many", "scan"),
    "scannable.spd": ("DualityReport", "associativity_defect", "verify_duality"),
    "scannable.storage.model_file": ("ModelFileError", "load_model", "save_model"),
    "scannable.storage.registry": ("configurable", "register_model", "storable"),
    "scannable.storage.state_file": ("StateFileError", "load_state", "save_state"),
}


class _Package(ModuleType):
    """Names are imported when they are first used, so that the command line answers before torch is there."""

    def __getattr__(self, name: str) -> Any:
        for module, names in _HOME.items():
            if name in names:
                value = getattr(import_module(module), name)
                setattr(self, name, value)
                return value
        if name == "zoo":
            return import_module("scannable.zoo")
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")

    def __setattr__(self, name: str, value: Any) -> None:
        # `scannable.scan` is the function; an import of the folder of that name would put the folder in its place.
        if name != "scan" or not isinstance(value, ModuleType):
            super().__setattr__(name, value)

    def __dir__(self) -> list[str]:
        return sorted({*super().__dir__(), *__all__})


sys.modules[__name__].__class__ = _Package
