"""The models that others use, with the protocol that all models here have: GPT-2, a sliding window, Mamba.

GPT-2 and Mamba are those of transformers, which is imported when the first of them is built; nothing else needs it.
"""

from scannable.baselines.gpt2 import GPT2Baseline, GPT2BaselineConfig, GPT2State
from scannable.baselines.mamba import MambaBaseline, MambaBaselineConfig, MambaState
from scannable.baselines.sliding_window import SlidingWindowConfig, SlidingWindowState, SlidingWindowTransformer
from scannable.model_file import register_model

register_model(GPT2Baseline, GPT2BaselineConfig)
register_model(SlidingWindowTransformer, SlidingWindowConfig)
register_model(MambaBaseline, MambaBaselineConfig)

__all__ = [
    "GPT2Baseline",
    "GPT2BaselineConfig",
    "GPT2State",
    "MambaBaseline",
    "MambaBaselineConfig",
    "MambaState",
    "SlidingWindowConfig",
    "SlidingWindowState",
    "SlidingWindowTransformer",
]
