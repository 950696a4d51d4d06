"""One family under the Auto classes of `transformers`."""

from transformers import AutoConfig, AutoModel, AutoModelForCausalLM

from scannable.hf.cache import ScannableCache
from scannable.hf.causal_lm import ScannableForCausalLM
from scannable.hf.configuration import ScannableConfig
from scannable.hf.model import ScannableModel

__all__ = ["ScannableCache", "ScannableConfig", "ScannableForCausalLM", "ScannableModel", "register"]


def register() -> None:
    """Let `AutoConfig`, `AutoModel` and `AutoModelForCausalLM` know the classes."""
    AutoConfig.register(ScannableConfig.model_type, ScannableConfig, exist_ok=True)
    AutoModel.register(ScannableConfig, ScannableModel, exist_ok=True)
    AutoModelForCausalLM.register(ScannableConfig, ScannableForCausalLM, exist_ok=True)
