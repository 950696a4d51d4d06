"""One family under the Auto classes of `transformers`."""

from transformers import AutoConfig, AutoModel, AutoModelForCausalLM
from transformers.models.auto import modeling_auto

from scannable.hf.cache import ScannableCache
from scannable.hf.causal_lm import ScannableForCausalLM
from scannable.hf.configuration import ScannableConfig
from scannable.hf.model import ScannableModel
from scannable.hf.serving import let_serve_find

__all__ = ["ScannableCache", "ScannableConfig", "ScannableForCausalLM", "ScannableModel", "register"]


def register() -> None:
    """Let `AutoConfig`, `AutoModel` and `AutoModelForCausalLM` know the classes."""
    AutoConfig.register(ScannableConfig.model_type, ScannableConfig, exist_ok=True)
    AutoModel.register(ScannableConfig, ScannableModel, exist_ok=True)
    AutoModelForCausalLM.register(ScannableConfig, ScannableForCausalLM, exist_ok=True)
    # By these names Trainer knows whose labels it has to shift when it smooths them, and pipelines who can write.
    names = modeling_auto.MODEL_FOR_CAUSAL_LM_MAPPING_NAMES
    names[ScannableConfig.model_type] = ScannableForCausalLM.__name__
    let_serve_find(ScannableForCausalLM)
