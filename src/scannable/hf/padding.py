"""Rows with padding anywhere: their real tokens first, and back."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor


@dataclass(frozen=True)
class RealTokens:
    """Which columns of a batch are tokens, the others being padding."""

    real: Bool[Tensor, "b n"]
    order: Int[Tensor, "b n"]
    """The columns of each row, real ones first, each kind in its order."""
    lengths: list[int]
    """How many are real."""

    @staticmethod
    def of(mask: Tensor | None, rows: int, columns: int) -> RealTokens | None:
        """What the last `columns` of an attention mask say; None if all of them are tokens."""
        if mask is None:
            return None
        if mask.ndim != 2:
            raise ValueError(
                f"attention_mask has the shape {tuple(mask.shape)}; expected (batch, length) with 1 for tokens and 0 "
                "for padding: a model here is causal by construction, and has no other masks"
            )
        if mask.shape[0] != rows or mask.shape[1] < columns:
            raise ValueError(
                f"attention_mask has the shape {tuple(mask.shape)} for input_ids of {rows, columns}; expected as many "
                "rows, and at least as many columns"
            )
        real = mask[:, mask.shape[1] - columns :] != 0
        if bool(real.all()):
            return None
        order = (~real).to(torch.uint8).argsort(dim=1, stable=True)
        return RealTokens(real, order, real.sum(1).tolist())

    def first(self, tokens: Int[Tensor, "b n"]) -> Int[Tensor, "b n"]:
        """Each row with its real tokens first, behind them a token that every vocabulary has."""
        # The token of padding need not be in the vocabulary.
        return tokens.where(self.real, 0).gather(1, self.order)

    def back(self, hidden: Float[Tensor, "b n d"]) -> Float[Tensor, "b n d"]:
        """Vectors where their tokens stood; zeros for padding."""
        index = self.order.argsort(1)[..., None].expand_as(hidden)
        return hidden.gather(1, index).where(self.real[..., None], 0)
