"""What the library really does, as things that can be drawn: an operator that writes down each of its calls."""

from dataclasses import dataclass, field

import torch
from torch import Tensor

import scannable as sc

LETTERS = "abcdefghijklmnop"

Block = tuple[int, int]
"""First element, and the one after the last."""


def bracket(older: str, newer: str) -> str:
    """An operator that hides nothing: the result shows what was combined with what."""
    return f"({older}{newer})"


@dataclass
class Calls:
    """The batched calls of Agg, in order; of each the pairs of blocks that it merged."""

    calls: list[list[tuple[Block, Block]]] = field(default_factory=list)

    def __call__(self, older: tuple[Tensor, Tensor], newer: tuple[Tensor, Tensor]) -> tuple[Tensor, Tensor]:
        older_blocks, newer_blocks = (
            list(zip(first.flatten().tolist(), last.flatten().tolist(), strict=True)) for first, last in (older, newer)
        )
        self.calls.append(list(zip(older_blocks, newer_blocks, strict=True)))
        return older[0], newer[1]


def calls_of_scan(n: int) -> list[list[tuple[Block, Block]]]:
    """Every call of Agg that `sc.scan` makes for n elements."""
    calls = Calls()
    starts = torch.arange(n)
    sc.scan(calls, (starts, starts + 1), identity=(torch.tensor(0), torch.tensor(0)))
    return calls.calls


def calls_of_extend(n: int) -> list[list[tuple[Block, Block]]]:
    """Every call of Agg that `sc.extend` makes for the first n elements: the state after them is wanted too."""
    calls = Calls()
    starts = torch.arange(n)
    sc.extend(calls, sc.empty((torch.tensor(0), torch.tensor(0))), (starts, starts + 1))
    return calls.calls


def prefixes_of_scan(n: int) -> list[Block]:
    """Which elements each exclusive prefix covers, from `sc.scan` itself; the first covers none."""
    starts = torch.arange(n)
    first, last = sc.scan(Calls(), (starts, starts + 1), identity=(torch.tensor(0), torch.tensor(0)))
    return list(zip(first.tolist(), last.tolist(), strict=True))


@dataclass(frozen=True)
class Push:
    """The counter after a push: what it holds at each level, what it emits, and the calls of Agg that this took."""

    t: int
    roots: dict[int, str]
    prefix: str
    calls: int


def pushes(letters: str) -> list[Push]:
    """`BinaryCounter`, letter by letter."""
    counted = 0

    def agg(older: str, newer: str) -> str:
        nonlocal counted
        counted += 1
        return bracket(older, newer)

    counter, found = sc.BinaryCounter(agg, identity="e"), list[Push]()
    for letter in letters:
        before = counted
        counter.push(letter)
        found.append(Push(counter.position, dict(counter.roots), counter.prefix(), counted - before))
    return found


def span(value: str) -> Block:
    """Which letters a bracketed value covers."""
    letters = [LETTERS.index(letter) for letter in value if letter in LETTERS]
    return letters[0], letters[-1] + 1
