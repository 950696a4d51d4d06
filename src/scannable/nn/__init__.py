"""The parts of Transformer blocks, for whole windows and piece by piece.

A part is imported when it is first asked for: a configuration may name options of blocks without waiting for torch.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from scannable.nn.block_config import BlockConfig
    from scannable.nn.cache import Continuation, KVCache
    from scannable.nn.transformer import Transformer, compile_transformers

__all__ = ["BlockConfig", "Continuation", "KVCache", "Transformer", "compile_transformers"]

_MODULES = {
    "BlockConfig": "block_config",
    "Continuation": "cache",
    "KVCache": "cache",
    "Transformer": "transformer",
    "compile_transformers": "transformer",
}


def __getattr__(name: str) -> Any:
    if name in _MODULES:
        return getattr(import_module(f"{__name__}.{_MODULES[name]}"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
