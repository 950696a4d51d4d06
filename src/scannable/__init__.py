"""Prefix-scannable sequence models: train in parallel, stream in O(log n) state, and both are the same function."""

from scannable import zoo
from scannable.affine import ZooConfig, ZooLM
from scannable.generation import generate
from scannable.model_file import ModelFileError, load_model, save_model
from scannable.nn.loss import sliced_cross_entropy
from scannable.protocol import SequenceModel, StreamState
from scannable.psm import (
    PrefixScannableModel,
    PSMState,
    StreamBatch,
    TransformerPSM,
    TransformerPSMConfig,
    join,
)
from scannable.scan import BinaryCounter, ScanState, empty, extend, extend_many, scan
from scannable.spd import DualityReport, associativity_defect, verify_duality
from scannable.state_file import StateFileError, load_state, save_state

__version__ = "0.1.0"

__all__ = [
    "BinaryCounter",
    "DualityReport",
    "ModelFileError",
    "PSMState",
    "PrefixScannableModel",
    "ScanState",
    "SequenceModel",
    "StateFileError",
    "StreamBatch",
    "StreamState",
    "TransformerPSM",
    "TransformerPSMConfig",
    "ZooConfig",
    "ZooLM",
    "associativity_defect",
    "empty",
    "extend",
    "extend_many",
    "generate",
    "join",
    "load_model",
    "load_state",
    "save_model",
    "save_state",
    "scan",
    "sliced_cross_entropy",
    "verify_duality",
    "zoo",
]
