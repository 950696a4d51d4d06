"""The parts of a GPT-2-style Transformer, for whole windows and token by token."""

from scannable.nn.cache import Continuation, KVCache
from scannable.nn.transformer import Transformer, compile_transformers

__all__ = ["Continuation", "KVCache", "Transformer", "compile_transformers"]
