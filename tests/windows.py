"""Small causal Transformers with every option of their blocks, and rows to read."""

from typing import Any

import pytest
import torch
from torch import Tensor

from scannable.nn import BlockConfig, Transformer

WINDOW, WIDTH = 12, 8
OPTIONS: dict[str, dict[str, Any]] = {
    "gpt2": {},
    "rotary": {"positions": "rotary"},
    "no positions": {"positions": "none"},
    "rms": {"norm": "rms"},
    "swiglu": {"mlp": "swiglu"},
    "relu2": {"mlp": "relu2"},
    "qk_norm": {"qk_norm": True},
    "convolution": {"convolution": 3},
    "all": {"positions": "rotary", "norm": "rms", "mlp": "swiglu", "qk_norm": True, "convolution": 4},
}
every_option = pytest.mark.parametrize("options", OPTIONS.values(), ids=OPTIONS)


def make(window: int = WINDOW, layers: int = 2, **options: Any) -> Transformer:
    torch.manual_seed(0)
    block = BlockConfig(**options)
    model = Transformer(width=WIDTH, layers=layers, heads=2, window=window, causal=True, block=block).double()
    with torch.no_grad():
        for name, weight in model.named_parameters():
            # Not what it starts as, which may hide that it is not used.
            weight.add_(0.1 * torch.randn_like(weight) if weight.ndim == 1 or "positions" in name else 0)
    return model


def rows_of(*lengths: int) -> list[Tensor]:
    torch.manual_seed(1)
    return [torch.randn(length, WIDTH, dtype=torch.float64, requires_grad=True) for length in lengths]
