"""GPT-2 and Mamba as people use them: the models of transformers, with the protocol that all models here have.

They are what ours are measured against; `sc.LM` has the same functions. transformers is imported when the first of them
is built; nothing else needs it.
"""

from scannable.baselines.gpt2 import GPT2Baseline, GPT2BaselineConfig
from scannable.baselines.transformers_mamba import MambaBaseline, MambaBaselineConfig

__all__ = ["GPT2Baseline", "GPT2BaselineConfig", "MambaBaseline", "MambaBaselineConfig"]
