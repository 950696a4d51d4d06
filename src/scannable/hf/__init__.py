"""Bridges to Hugging Face: any model of this library under the Auto classes of `transformers`, and weights of others.

`import scannable.hf` is all that `transformers.AutoModelForCausalLM.from_pretrained(folder)` needs.
"""

from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from scannable.hf.cache import ScannableCache
    from scannable.hf.causal_lm import ScannableForCausalLM
    from scannable.hf.configuration import ScannableConfig
    from scannable.hf.model import ScannableModel

__all__ = ["ScannableCache", "ScannableConfig", "ScannableForCausalLM", "ScannableModel"]

# Weights of others are read without transformers, so the package is there without it.
if find_spec("transformers") is not None:
    from scannable.hf.registration import (
        ScannableCache,
        ScannableConfig,
        ScannableForCausalLM,
        ScannableModel,
        register,
    )

    register()


def __getattr__(name: str) -> Any:
    if name in __all__:
        raise ImportError(f"scannable.hf.{name} needs transformers; install it with: pip install 'scannable[hf]'")
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
