"""The models that others use, with the protocol that all models here have: GPT-2, a sliding window, Mamba.

GPT-2 and Mamba are those of transformers, which is imported when the first of them is built; nothing else needs it.
"""

from scannable.baselines.gpt2 import GPT2Baseline, GPT2BaselineConfig, GPT2State
from scannable.baselines.sliding_window import SlidingWindowConfig, SlidingWindowState, SlidingWindowTransformer
from scannable.baselines.transformers_mamba import MambaBaseline, MambaBaselineConfig, MambaState

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
