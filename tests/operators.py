"""The strictest operators there are: they tell every tree, every order of operands and every element apart."""

import torch
from torch import Tensor, nn


class Brackets:
    """Agg(a, b) = "(ab)", on strings and on tensors of integers that stand for strings.

    Equal integers mean the same string, so a tensor scan can be checked bracket by bracket.
    """

    def __init__(self) -> None:
        self.number_of: dict[str | tuple[int, int], int] = {}
        self.parts: list[str | tuple[int, int]] = []

    def _number(self, key: str | tuple[int, int]) -> int:
        if key not in self.number_of:
            self.number_of[key] = len(self.parts)
            self.parts.append(key)
        return self.number_of[key]

    def letters(self, count: int, start: int = 0) -> Tensor:
        return torch.tensor([self._number(f"x{i}") for i in range(start, start + count)], dtype=torch.int64)

    @property
    def identity(self) -> Tensor:
        return torch.tensor(self._number("e"))

    def one(self, older: int, newer: int) -> int:
        return self._number((older, newer))

    def __call__(self, older: Tensor, newer: Tensor) -> Tensor:
        pairs = zip(older.flatten().tolist(), newer.flatten().tolist(), strict=True)
        return torch.tensor([self.one(*pair) for pair in pairs], dtype=torch.int64).view(older.shape)

    def string(self, number: int) -> str:
        part = self.parts[number]
        return part if isinstance(part, str) else f"({self.string(part[0])}{self.string(part[1])})"


def two_three(older: Tensor, newer: Tensor) -> Tensor:
    """Exact in int64 (it wraps), neither associative nor commutative."""
    return 2 * older + 3 * newer


class TanhMLP(nn.Module):
    """A learned Agg: tanh(W [older | newer] + b)."""

    def __init__(self, width: int, dtype: torch.dtype = torch.float64, dropout: float = 0.0) -> None:
        super().__init__()
        self.linear = nn.Linear(2 * width, width, dtype=dtype)
        self.dropout = nn.Dropout(dropout)

    def forward(self, older: Tensor, newer: Tensor) -> Tensor:
        return self.dropout(torch.tanh(self.linear(torch.cat((older, newer), -1))))


def evaluations_after(n: int, *, literal: bool = False) -> int:
    """Agg evaluations for the first n elements, whatever way they are absorbed: merges, then folds."""
    merges = n - n.bit_count()
    return merges + (n if literal else n - n.bit_length())
