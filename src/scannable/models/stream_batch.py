"""Streams at different positions in one batch: join, advance together, leave, change places."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

import torch
from jaxtyping import Float, Int
from torch import Tensor

from scannable.models.psm_state import HALF_WRITTEN, ChunkBuffers, PSMState
from scannable.nn.cache import KVCache
from scannable.scan import ScanState, extend_many
from scannable.scan.tree import flatten, tree_map
from scannable.storage.registry import storable

if TYPE_CHECKING:
    from scannable.models.prefix_scannable import PrefixScannableModel


@storable
@dataclass(frozen=True)
class StreamBatch:
    """Rows that each have their own position; `model.step` advances them all by one token in one go.

    batch = sc.join([state_a, state_b])            # states of any positions and batch sizes
    logits, batch = model.step(tokens, batch)      # each row as if it were alone
    batch = batch.select([1])                      # keep, drop, repeat and reorder rows
    batch = sc.join([batch.row(0), state_c])       # add a stream
    """

    positions: tuple[int, ...]
    scans: tuple[ScanState[Any], ...]
    buffers: ChunkBuffers = field(repr=False)

    @property
    def position(self) -> int:
        """Tokens consumed by the row that is furthest."""
        return max(self.positions, default=0)

    @property
    def nbytes(self) -> int:
        """Bytes held by all rows."""
        # Rows that were selected twice share their roots until they push.
        held = [value for scan in self.scans for value in (*scan.roots.values(), *scan.folds.values())]
        leaves = {id(leaf): leaf for element in held for leaf in flatten(element)[0]}
        return sum(leaf.nbytes for leaf in leaves.values()) + self.buffers.nbytes

    @property
    def batch_size(self) -> int:
        return len(self.positions)

    def fork(self) -> StreamBatch:
        """Independent streams that go on from here: share the roots, copy the chunks in progress."""
        return replace(self, buffers=self.current_buffers().clone())

    def select(self, rows: Sequence[int]) -> StreamBatch:
        """The streams of these rows, in this order; the buffers are copied."""
        buffers = self.current_buffers()
        index = torch.tensor(self._checked(rows), dtype=torch.int64, device=buffers.tokens.device)
        cache = buffers.cache
        if cache is not None and cache.lengths is not None:
            cache = KVCache(cache.keys[:, index], cache.values[:, index], 0, cache.lengths[index])
        positions = tuple(self.positions[row] for row in rows)
        chosen = ChunkBuffers(buffers.tokens[index], cache, sum(positions))
        return StreamBatch(positions, tuple(self.scans[row] for row in rows), chosen)

    def row(self, row: int) -> PSMState:
        """One stream, as a state of its own with a batch of one."""
        alone = self.select([row])
        scan = alone.scans[0].map(lambda leaf: leaf.unsqueeze(0))
        cache = alone.buffers.cache
        if cache is not None and cache.lengths is not None:
            cache = KVCache(cache.keys, cache.values, int(cache.lengths[0]))
        position = alone.positions[0]
        buffers = replace(alone.buffers, cache=cache, position=position)
        return PSMState(position, scan, buffers)

    def current_buffers(self) -> ChunkBuffers:
        """The buffers, unless another branch has gone on with them."""
        return self.buffers.at(sum(self.positions))

    def _checked(self, rows: Sequence[int]) -> list[int]:
        for row in rows:
            if not 0 <= row < self.batch_size:
                raise IndexError(f"row {row} of a batch of {self.batch_size} streams; rows count from 0")
        return list(rows)


def join(states: Sequence[PSMState | StreamBatch]) -> StreamBatch:
    """One batch of all the rows of `states`, in order. The states stay as they were."""
    if not states:
        raise ValueError("join needs at least one state; start with model.initial_state(1)")
    parts = [state if isinstance(state, StreamBatch) else _rows(state) for state in states]
    caches = [part.current_buffers().cache for part in parts]
    cache = None
    if all(one is not None for one in caches):
        filled = [one for one in caches if one is not None]
        cache = KVCache(
            torch.cat([one.keys for one in filled], 1),
            torch.cat([one.values for one in filled], 1),
            0,
            torch.cat([one.lengths for one in filled if one.lengths is not None]),
        )
    positions = tuple(position for part in parts for position in part.positions)
    tokens = torch.cat([part.buffers.tokens for part in parts])
    scans = tuple(scan for part in parts for scan in part.scans)
    return StreamBatch(positions, scans, ChunkBuffers(tokens, cache, sum(positions)))


def _rows(state: PSMState) -> StreamBatch:
    """A batch at one position, seen as rows that each have their own."""
    b = state.batch_size
    buffers = state.current_buffers()
    cache = buffers.cache
    if cache is not None:
        lengths = torch.full((b,), cache.length, dtype=torch.int64, device=cache.keys.device)
        cache = KVCache(cache.keys, cache.values, 0, lengths)
    scans = tuple(
        # A view of one row would keep the others alive.
        state.scan.map(lambda leaf, row=row: leaf[row].clone())
        for row in range(b)
    )
    positions = (state.position,) * b
    return StreamBatch(positions, scans, replace(buffers, cache=cache, position=sum(positions)))


def step_rows(
    model: PrefixScannableModel, token: Int[Tensor, " b"], batch: StreamBatch
) -> tuple[Float[Tensor, "b out"], StreamBatch]:
    """Alg. 4 for rows at different positions: one Inf position for all, and one round of pushes for those that fill."""
    if len(token) != batch.batch_size or not len(token):
        raise ValueError(f"{len(token)} tokens for a batch of {batch.batch_size} streams; each takes exactly one")
    buffers, c = batch.current_buffers(), model.chunk_length
    model.check_buffers(buffers)
    buffers.position = HALF_WRITTEN
    rows = range(batch.batch_size)
    filled = [position % c for position in batch.positions]
    places = torch.tensor(filled, device=token.device)
    every = torch.arange(len(token), device=token.device)
    buffers.tokens[every, places] = token
    fresh = [row for row in rows if filled[row] == 0]

    def chunks(chosen: Sequence[int]) -> Any:
        return model.enc(buffers.tokens[torch.tensor(chosen, device=token.device)])

    def prefixes(chosen: Sequence[int], like: Any) -> Any:
        each = [tree_map(lambda e, leaf: e.expand(leaf.shape[1:]), batch.scans[row].prefix(), like) for row in chosen]
        return tree_map(lambda *leaves: torch.stack(leaves), *each)

    if buffers.cache is None:
        chunk = chunks(rows)
        hidden = model.inf(prefixes(rows, chunk), chunk)[every, places]
    else:
        if fresh:
            _begin(model.inf, prefixes(fresh, chunks(fresh)), fresh, buffers.cache, c)
        inf: Any = model.inf
        hidden = inf.read(None, model.enc(token[:, None]), buffers.cache)[:, 0]

    scans = list(batch.scans)
    full = [row for row in rows if filled[row] + 1 == c]
    if full:
        finished = chunks(full)
        elements = [tree_map(lambda leaf, i=i: leaf[i : i + 1], finished) for i in range(len(full))]
        _, pushed = extend_many(model.agg, [scans[row] for row in full], elements)
        for row, scan in zip(full, pushed, strict=True):
            scans[row] = scan
    positions = tuple(position + 1 for position in batch.positions)
    buffers.position = sum(positions)
    return model.head(hidden), StreamBatch(positions, tuple(scans), buffers)


def _begin(inf: Any, prefix: Any, rows: list[int], cache: KVCache, c: int) -> None:
    """Start a chunk in these rows: the keys and values of its prefix."""
    fresh = inf.new_cache(len(rows))
    inf.begin(prefix, fresh)
    index = torch.tensor(rows, device=cache.keys.device)
    cache.keys[:, index, :, :c] = fresh.keys[:, :, :, :c]
    cache.values[:, index, :, :c] = fresh.values[:, :, :, :c]
    if cache.lengths is not None:
        cache.lengths[index] = fresh.length
