"""Prefix-scannable models: Def. PSM for any three modules, and Transformer-PSM."""

from scannable.model_file import register_model
from scannable.psm.batch import StreamBatch, join
from scannable.psm.config import TransformerPSMConfig
from scannable.psm.model import PrefixScannableModel
from scannable.psm.stream import PSMState
from scannable.psm.transformer import TransformerPSM

register_model(TransformerPSM, TransformerPSMConfig)

__all__ = ["PSMState", "PrefixScannableModel", "StreamBatch", "TransformerPSM", "TransformerPSMConfig", "join"]
