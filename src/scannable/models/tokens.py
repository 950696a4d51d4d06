"""What a model accepts as tokens."""

import torch
from torch import Tensor


def checked_tokens(tokens: Tensor, axes: int, vocab_size: int | None) -> Tensor:
    """The tokens as int32 or int64, or an error that says what is wrong with them.

    Args:
        axes: 2 for (batch, length), 1 for (batch,).
        vocab_size: None if it is not known.
    """
    expected = "(batch, length)" if axes == 2 else "(batch,)"
    if not isinstance(tokens, Tensor):
        raise TypeError(
            f"tokens are a {type(tokens).__name__}; expected a tensor of integers of shape {expected}: "
            "torch.tensor(tokens) makes one"
        )
    if tokens.ndim != axes or tokens.is_floating_point() or tokens.is_complex() or tokens.dtype == torch.bool:
        raise ValueError(
            f"tokens have the shape {tuple(tokens.shape)} and dtype {tokens.dtype}; "
            f"expected integers of shape {expected}"
        )
    if tokens.dtype not in (torch.int32, torch.int64):
        tokens = tokens.long()
    # Before anything is written. Elsewhere than on a CPU a look at the values would wait for the device, and a
    # compiled graph cannot look.
    look = tokens.device.type == "cpu" and not torch.compiler.is_compiling()
    if vocab_size is not None and look and tokens.numel():
        low, high = (int(bound) for bound in tokens.aminmax())
        if low < 0 or high >= vocab_size:
            raise ValueError(
                f"token {low if low < 0 else high} is outside the vocabulary of {vocab_size}; "
                "is this the tokenizer the model was trained with?"
            )
    return tokens
