"""What log-linear attention remembers: a counter and a chunk in progress for each position that rows stand at.

Rows at one position share every call, so they are kept together; a batch whose rows are all at one position is a single
group. How a counter looks depends on its position alone, so rows at different positions have nothing to share.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor

from scannable.layers.affine.monoid import Affine
from scannable.layers.state import State, checked_rows
from scannable.scan import Roots
from scannable.scan.tree import flatten, tree_map


@dataclass(frozen=True, eq=False)
class RowsAtOnePosition:
    """Rows of a batch with as many positions behind them, in the order of their numbers."""

    rows: tuple[int, ...]
    counter: Roots[Affine]
    """Of whole chunks."""
    key: Float[Tensor, "b m h k"]
    """Of the m positions that fill no chunk yet, as are values and decays."""
    value: Float[Tensor, "b m h v"]
    log_decay: Float[Tensor, "b m h"]

    def position(self, chunk: int) -> int:
        """How many positions came before."""
        return self.counter.position * chunk + self.key.shape[1]

    def on_tensors(self, function: Callable[..., Tensor], *others: "RowsAtOnePosition") -> "RowsAtOnePosition":
        """`function` on the tensors at each place of this and others, which are at the same position."""
        counters = [one.counter.roots for one in (self, *others)]
        roots = {k: tree_map(function, *(roots[k] for roots in counters)) for k in self.counter.roots}
        buffers = [function(*(getattr(one, name) for one in (self, *others))) for name in ("key", "value", "log_decay")]
        return RowsAtOnePosition(self.rows, Roots(self.counter.position, roots), *buffers)

    def select(self, places: Sequence[int], rows: Sequence[int]) -> "RowsAtOnePosition":
        """The rows at these places, under new numbers."""
        index = torch.tensor(places, dtype=torch.int64, device=self.key.device)
        chosen = self.on_tensors(lambda x: x.index_select(0, index))
        return RowsAtOnePosition(tuple(rows), chosen.counter, chosen.key, chosen.value, chosen.log_decay)


@dataclass(frozen=True, eq=False)
class LogLinearState(State):
    """All rows of a batch, in groups that share a position. Never changed: going on from it twice is a fork."""

    chunk: int
    """Positions that one element of the counters stands for."""
    groups: tuple[RowsAtOnePosition, ...]

    @property
    def positions(self) -> tuple[int, ...]:  # pyright: ignore[reportIncompatibleVariableOverride]
        """How many positions came before, for each row."""
        found = {row: group.position(self.chunk) for group in self.groups for row in group.rows}
        return tuple(found[row] for row in sorted(found))

    def tensors(self) -> Iterator[Tensor]:
        for group in self.groups:
            for root in group.counter.roots.values():
                yield from flatten(root)[0]
            yield from (group.key, group.value, group.log_decay)

    def map(self, function: Callable[[Tensor], Tensor]) -> "LogLinearState":
        return LogLinearState(self.chunk, tuple(group.on_tensors(function) for group in self.groups))

    def fork(self) -> "LogLinearState":
        return self

    def select(self, rows: Sequence[int]) -> "LogLinearState":
        rows = checked_rows(rows, self.batch_size)
        where = {row: (group, place) for group in self.groups for place, row in enumerate(group.rows)}
        chosen: list[RowsAtOnePosition] = []
        for group in self.groups:
            new = [i for i, row in enumerate(rows) if where[row][0] is group]
            if new:
                chosen.append(group.select([where[rows[i]][1] for i in new], new))
        return LogLinearState(self.chunk, tuple(chosen))

    @classmethod
    def joined(cls, states: Sequence["LogLinearState"]) -> "LogLinearState":
        chunks = {state.chunk for state in states}
        if len(chunks) != 1:
            raise ValueError(f"states over chunks of {sorted(chunks)} positions do not join; one layer makes one kind")
        before, groups = 0, list[RowsAtOnePosition]()
        for state in states:
            groups += [_renumbered(group, [row + before for row in group.rows]) for group in state.groups]
            before += state.batch_size
        return regrouped(chunks.pop(), groups)


def regrouped(chunk: int, groups: Iterable[RowsAtOnePosition]) -> LogLinearState:
    """Groups of different rows as a state: those that meet at one position become one."""
    meeting: dict[int, list[RowsAtOnePosition]] = {}
    for group in groups:
        meeting.setdefault(group.position(chunk), []).append(group)
    return LogLinearState(chunk, tuple(_merged(meeting[position]) for position in sorted(meeting)))


def _merged(groups: list[RowsAtOnePosition]) -> RowsAtOnePosition:
    first, *others = groups
    rows = [row for group in groups for row in group.rows]
    if others:
        first = _renumbered(first.on_tensors(lambda *x: torch.cat(x), *others), rows)
    order = sorted(range(len(rows)), key=rows.__getitem__)
    return first if order == list(range(len(rows))) else first.select(order, sorted(rows))


def _renumbered(group: RowsAtOnePosition, rows: Sequence[int]) -> RowsAtOnePosition:
    return RowsAtOnePosition(tuple(rows), group.counter, group.key, group.value, group.log_decay)
