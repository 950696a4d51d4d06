"""A prefix-scannable layer in a stream (Alg. 4): any number of new positions for every row, wherever it is.

Letters: c positions make a chunk; k recent ones are seen as they were, before they go into the scan.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, cast

import numpy as np
import torch
from torch import Tensor

from scannable.layers import row_trees
from scannable.layers.incremental_inf import IncrementalInf
from scannable.layers.psm_state import HALF_WRITTEN, ChunkBuffers, PSMState
from scannable.scan import extend_many
from scannable.scan.many_streams import Numbers, on_device, runs
from scannable.scan.push import Push
from scannable.scan.tree import flatten, tree_map, unflatten

if TYPE_CHECKING:
    from scannable.layers.psm import PSMLayer

Switches = np.ndarray[Any, np.dtype[np.bool_]]


@dataclass(frozen=True)
class _Plan:
    """How the new positions of every row fall into chunks."""

    filled: Numbers
    """Positions that the chunk in progress has already."""
    first: Numbers
    """Positions that can be read at once: the rest of the chunk in progress, or a start that fills none."""
    begun: Switches
    """Whether these begin a chunk."""
    whole: Numbers
    """Chunks that follow and are whole."""
    rest: Numbers
    """Positions behind them, which begin another chunk."""
    finished: Numbers
    """Chunks that are finished, those above and the one in progress."""

    @staticmethod
    def of(positions: Sequence[int], counts: Numbers, c: int) -> _Plan:
        filled = np.array(positions, dtype=np.int64) % c
        begun = (filled == 0) & (counts > 0) & (counts < c)
        first = np.where(filled > 0, np.minimum(c - filled, counts), np.where(begun, counts, 0))
        whole, rest = np.divmod(counts - first, c)
        # A start that fills no chunk never comes to c.
        return _Plan(filled, first, begun, whole, rest, whole + (filled + first == c))


def go_on(layer: PSMLayer, x: Any, state: PSMState, counts: Numbers) -> tuple[Tensor, PSMState]:
    c = layer.chunk_length
    plan = _Plan.of(state.positions, counts, c)
    positions = tuple(int(p) for p in np.array(state.positions) + counts)
    buffers = state.buffers
    if torch.is_grad_enabled():
        buffers = ChunkBuffers(buffers.chunk, buffers.recent, buffers.cache, positions)
        buffers.recorded = True
    else:
        buffers.writable()
    buffers.written = HALF_WRITTEN
    outputs = _Outputs(len(counts), flatten(x)[0][0].shape[1])
    scans = list(state.scans)

    if plan.first.any():
        _read(layer, x, np.zeros_like(counts), plan.filled, plan.first, plan.begun, scans, buffers, outputs)
    if plan.finished.any():
        scans = _finish(layer, x, plan, state, scans, buffers, outputs)
    if plan.rest.any():
        start = plan.first + plan.whole * c
        _read(layer, x, start, np.zeros_like(counts), plan.rest, plan.rest > 0, scans, buffers, outputs)
    pushes: tuple[Push[Any] | None, ...] = ()
    if layer.recent and not torch.is_grad_enabled():
        rows = len(positions) // len(scans)
        under_way = [None if plan.finished[i * rows] else push for i, push in enumerate(state.pushes)]
        pushes = _push_ahead(layer, positions, under_way, scans, buffers)
    buffers.written = positions
    buffers.maker = layer.maker
    return outputs.woven(), PSMState(positions, tuple(scans), buffers, pushes)


def one_more(layer: PSMLayer, x: Any, state: PSMState) -> tuple[Tensor, PSMState] | None:
    """`go_on` by one position in the middle of a chunk, all rows at one place: what decoding does nearly all the time.
    None where it is something else.
    """
    buffers, positions = state.buffers, state.positions
    filled = positions[0] % layer.chunk_length if positions else 0
    if not 0 < filled < layer.chunk_length - 1 or not isinstance(x, Tensor) or buffers.cache is None:
        return None
    if positions.count(positions[0]) != len(positions) or len(state.scans) > 1:
        return None
    if buffers.chunk.is_inference() and not torch.is_inference_mode_enabled():
        return None
    buffers.writable()
    buffers.written = HALF_WRITTEN
    buffers.chunk[:, filled] = x[:, 0]
    inf: Any = layer.inf
    y, buffers.cache = inf.read(x, buffers.cache)
    after = (positions[0] + 1,) * len(positions)
    pushes = _push_ahead(layer, after, state.pushes, list(state.scans), buffers) if layer.recent else ()
    buffers.written = after
    buffers.maker = layer.maker
    return y, PSMState(after, state.scans, buffers, pushes)


def _push_ahead(
    layer: PSMLayer,
    positions: tuple[int, ...],
    pushes: Sequence[Push[Any] | None],
    scans: list[Any],
    buffers: ChunkBuffers,
) -> tuple[Push[Any] | None, ...]:
    """The oldest of the recent chunks on its way into the scan, one call for each position of the chunk in progress:
    that is all that Agg has to do until it is needed. How far it is depends on the position alone.
    """
    c = layer.chunk_length
    found: list[Push[Any] | None] = list(pushes) or [None] * len(scans)
    b = len(positions) // len(scans)
    starting = [positions[i * b] // c >= layer.recent and positions[i * b] % c > 0 for i in range(len(scans))]
    for i, starts in enumerate(starting):
        if starts and found[i] is None:
            found[i] = Push(tree_map(lambda leaf, i=i: leaf[i * b : (i + 1) * b, :c].clone(), buffers.recent))
    made = [0 if push is None else push.level + push.folded for push in found]
    while True:
        pairs: dict[int, tuple[Any, Any]] = {}
        for i, push in enumerate(found):
            if push is not None and made[i] < positions[i * b] % c:
                pair = push.pair(scans[i])
                if pair is not None:
                    pairs[i] = pair
        if not pairs:
            break
        answers = _aggregated(layer, list(pairs.values()))
        for i, answer in zip(pairs, answers, strict=True):
            found[i] = cast(Push[Any], found[i]).answered(scans[i], answer)
            made[i] += 1
    # Nothing is held that was not computed.
    return tuple(push if count else None for push, count in zip(found, made, strict=True))


def _aggregated(layer: PSMLayer, pairs: list[tuple[Any, Any]]) -> list[Any]:
    """Agg of some pairs in one call."""
    shape = [(leaf.shape, leaf.dtype) for leaf in flatten(pairs[0][1])[0]]

    def side(which: int) -> Any:
        each = [flatten(pair[which])[0] for pair in pairs]
        leaves = [
            torch.stack([leaf.expand(s).to(d) for leaf in leaves])
            for leaves, (s, d) in zip(zip(*each, strict=True), shape, strict=True)
        ]
        return unflatten(layer.structure, leaves)

    result = layer.agg(side(0), side(1))
    return [tree_map(lambda leaf, i=i: leaf[i].clone(), result) for i in range(len(pairs))]


def _read(
    layer: PSMLayer,
    x: Any,
    start: Numbers,
    filled: Numbers,
    counts: Numbers,
    begun: Switches,
    scans: list[Any],
    buffers: ChunkBuffers,
    outputs: _Outputs,
) -> None:
    """Inf's outputs for positions of chunks in progress: `counts` of each row from `start` on, behind `filled`."""
    b, m = len(counts), int(counts.max())
    alike = all((each == each[0]).all() for each in (counts, start, filled))
    if alike:
        new = tree_map(lambda leaf: leaf[:, int(start[0]) : int(start[0]) + m], x)
    else:
        place = np.minimum(start[:, None] + np.arange(m), flatten(x)[0][0].shape[1] - 1)
        flat = on_device((place + np.arange(b)[:, None] * flatten(x)[0][0].shape[1]).ravel(), flatten(x)[0][0].device)
        new = tree_map(lambda leaf: leaf.flatten(0, 1).index_select(0, flat).unflatten(0, (b, m)), x)
    buffers.chunk = _written(buffers.chunk, new, filled, counts, alike)
    inf: Any = layer.inf
    if isinstance(inf, IncrementalInf):
        rows = np.flatnonzero(begun).tolist()
        if rows:
            prefix = _prefixes(layer, scans, rows)
            recent = buffers.recent
            if len(rows) == b:
                buffers.cache = inf.begin(prefix, recent, buffers.cache)
            else:
                recent = None if recent is None else row_trees.take(recent, rows)
                buffers.cache = row_trees.put(buffers.cache, rows, inf.begin(prefix, recent))
        some = None if (counts == m).all() else counts.tolist()
        y, buffers.cache = inf.read(new, buffers.cache, some)
    else:
        # The places behind these positions hold old ones; an Inf that is causal does not look at them.
        window = buffers.chunk
        if buffers.recent is not None:
            window = tree_map(lambda *leaves: torch.cat(leaves, 1), buffers.recent, window)
        whole = layer.inf(_prefixes(layer, scans, list(range(b))), window)
        place = (
            np.minimum(filled[:, None] + np.arange(m), layer.chunk_length - 1)
            + np.arange(b)[:, None] * layer.chunk_length
        )
        y = whole.flatten(0, 1).index_select(0, on_device(place.ravel(), whole.device)).unflatten(0, (b, m))
    outputs.add(y, start, counts)


def _prefixes(layer: PSMLayer, scans: list[Any], rows: list[int]) -> Any:
    """What Inf is to see in front of the chunks that begin in these rows."""
    if len(scans) == 1:
        return _spread(layer, scans[0].prefix(), len(rows))
    each = [_spread(layer, scans[row].prefix(), 1) for row in rows]
    return tree_map(lambda *leaves: torch.cat(leaves), *each)


def _spread(layer: PSMLayer, prefix: Any, rows: int) -> Any:
    """A prefix with the axis of rows, which the identity lacks."""
    leaves = flatten(prefix)[0]
    return unflatten(
        layer.structure, [leaf.expand(rows, *shape) for leaf, shape in zip(leaves, layer.shapes, strict=True)]
    )


def _finish(
    layer: PSMLayer,
    x: Any,
    plan: _Plan,
    state: PSMState,
    scans: list[Any],
    buffers: ChunkBuffers,
    outputs: _Outputs,
) -> list[Any]:
    """Finished chunks go into the scan, k chunks late; those that are whole in `x` are read by Inf."""
    k, size = layer.recent, state.batch_size // len(scans)
    busy = [i for i in range(len(scans)) if plan.finished[i * size]]
    groups = [_Finished.of(layer, x, plan, buffers, state.positions, slice(i * size, (i + 1) * size)) for i in busy]
    # What was done ahead knows no gradients.
    pushes = [] if torch.is_grad_enabled() or not state.pushes else [state.pushes[i] for i in busy]
    prefixes, found = _absorb(layer, [scans[i] for i in busy], [group.absorbed for group in groups], pushes)
    after = list(scans)
    for i, scan in zip(busy, found, strict=True):
        after[i] = scan
    reading = [(group, seen) for group, seen in zip(groups, prefixes, strict=True) if group.whole]
    if reading:
        befores = [group.prefixes(layer, seen) for group, seen in reading]
        windows = [group.windows(k) for group, _ in reading]
        # All chunks of all rows in one call: as rows of chunks, or in one row if they are not equally many.
        before, window = (each[0] if len(each) == 1 else tree_map(_in_a_row, *each) for each in (befores, windows))
        y = layer.inf(before, window).flatten(1, 2)
        counts = plan.whole * layer.chunk_length
        outputs.add(y if len(scans) == 1 else _padded(y[0], counts), plan.first, counts)
    if k:
        last = row_trees.cat([group.last(k) for group in groups])
        buffers.recent = last if len(busy) == len(scans) else row_trees.put(buffers.recent, busy, last)
    return after


def _in_a_row(*leaves: Tensor) -> Tensor:
    return torch.cat(leaves, 1)


@dataclass(frozen=True)
class _Finished:
    """The chunks of rows at one position that are finished now."""

    queue: Any
    """The k recent chunks and those that are finished now, (rows, chunks, c, ...)."""
    before: int
    """Chunks that were finished before."""
    total: int
    """Chunks that are finished now."""
    whole: int
    """The last so many of them are whole in the new positions."""
    absorbed: Any
    """Those that go into the scan now."""

    @staticmethod
    def of(
        layer: PSMLayer, x: Any, plan: _Plan, buffers: ChunkBuffers, positions: tuple[int, ...], rows: slice
    ) -> _Finished:
        c, k, row = layer.chunk_length, layer.recent, rows.start
        first, whole, total = int(plan.first[row]), int(plan.whole[row]), int(plan.finished[row])
        before = positions[row] // c
        parts: list[Any] = []
        if k:
            parts.append(tree_map(lambda leaf: leaf[rows].unflatten(1, (k, c)), buffers.recent))
        if total > whole:
            parts.append(tree_map(lambda leaf: leaf[rows, None], buffers.chunk))
        if whole or not parts:
            parts.append(tree_map(lambda leaf: leaf[rows, first : first + whole * c].unflatten(1, (whole, c)), x))
        queue = parts[0] if len(parts) == 1 else tree_map(_in_a_row, *parts)
        # Of the recent chunks, those before the stream began are the identity, and never in the scan.
        missing = max(0, k - before)
        count = max(0, before + total - k) - max(0, before - k)
        absorbed = tree_map(lambda leaf: leaf[:, missing : missing + count], queue)
        return _Finished(queue, before, total, whole, absorbed)

    def prefixes(self, layer: PSMLayer, found: Any) -> Any:
        """What Inf sees in front of the whole chunks: chunk j the prefix at place j - k, or e before the first."""
        k, first = layer.recent, self.before + self.total - self.whole
        early = min(max(0, k - first), self.whole)
        start = max(0, first - k) - max(0, self.before - k)
        seen = tree_map(lambda leaf: leaf[:, start : start + self.whole - early], found)
        if not early:
            return seen
        return tree_map(
            lambda leaf, e: torch.cat((e.to(leaf.dtype).expand(leaf.shape[0], early, *e.shape), leaf), 1),
            seen,
            layer.identity,
        )

    def windows(self, k: int) -> Any:
        """The whole chunks, each behind the k before it."""
        at = k + self.total - self.whole
        if not k:
            return tree_map(lambda leaf: leaf[:, at:], self.queue)
        return tree_map(
            lambda leaf: torch.cat([leaf[:, at - j : at - j + self.whole] for j in range(k, -1, -1)], 2), self.queue
        )

    def last(self, k: int) -> Any:
        """The k chunks before the one in progress."""
        return tree_map(lambda leaf: leaf[:, leaf.shape[1] - k :].flatten(1, 2), self.queue)


def _absorb(
    layer: PSMLayer, scans: list[Any], absorbed: list[Any], pushes: Sequence[Push[Any] | None]
) -> tuple[list[Any], list[Any]]:
    """`extend_many`, taking up what was done ahead where that is all there is to do."""
    counts = [flatten(elements)[0][0].shape[1] for elements in absorbed]
    if not any(pushes) or max(counts) > 1:
        return extend_many(layer.agg, scans, absorbed, dim=1)
    updates = {i: pushes[i] or Push(tree_map(lambda leaf: leaf[:, 0], absorbed[i])) for i, m in enumerate(counts) if m}
    while pairs := {i: pair for i, push in updates.items() if (pair := push.pair(scans[i])) is not None}:
        for i, answer in zip(pairs, _aggregated(layer, list(pairs.values())), strict=True):
            updates[i] = updates[i].answered(scans[i], answer)
    after = [updates[i].done(scan) if i in updates else scan for i, scan in enumerate(scans)]
    before = [
        tree_map(lambda leaf: leaf[:, None], _spread(layer, scan.prefix(), len(flatten(elements)[0][0])))
        if m
        else elements
        for scan, elements, m in zip(scans, absorbed, counts, strict=True)
    ]
    return before, after


class _Outputs:
    """Pieces of the outputs, and where in time each row's part of a piece goes."""

    def __init__(self, rows: int, length: int) -> None:
        self.rows, self.length = rows, length
        self.pieces: list[tuple[Tensor, Numbers, Numbers]] = []

    def add(self, y: Tensor, start: Numbers, counts: Numbers) -> None:
        """`counts[i]` outputs of row i, the first ones of y[i], which go to `start[i]` and on."""
        self.pieces.append((y, start, counts))

    def woven(self) -> Tensor:
        """All outputs; zeros where there are none."""
        ends = np.zeros(self.rows, dtype=np.int64)
        for y, start, counts in self.pieces:
            if (start != ends).any() or (counts != y.shape[1]).any():
                break
            ends = ends + counts
        else:
            if (ends == self.length).all():
                return self.pieces[0][0] if len(self.pieces) == 1 else torch.cat([y for y, _, _ in self.pieces], 1)
        first = self.pieces[0][0]
        flat = first.new_zeros(self.rows * self.length, *first.shape[2:])
        for y, start, counts in self.pieces:
            rows = np.arange(self.rows)
            source = on_device(runs(rows * y.shape[1], counts), y.device)
            target = on_device(runs(rows * self.length + start, counts), y.device)
            flat = flat.index_copy(0, target, y.flatten(0, 1).index_select(0, source))
        return flat.unflatten(0, (self.rows, self.length))


def _written(chunk: Any, new: Any, filled: Numbers, counts: Numbers, alike: bool) -> Any:
    """Chunks in progress with the new positions in them: the same buffers, unless gradients may be recorded."""
    recording = torch.is_grad_enabled()

    def alike_rows(buffer: Tensor, x: Tensor) -> Tensor:
        start = int(filled[0])
        if recording:
            return buffer.slice_scatter(x.to(buffer.dtype), 1, start, start + x.shape[1])
        buffer[:, start : start + x.shape[1]] = x
        return buffer

    if alike:
        return tree_map(alike_rows, chunk, new)
    rows = np.arange(len(counts))

    def each_row(buffer: Tensor, x: Tensor) -> Tensor:
        source = on_device(runs(rows * x.shape[1], counts), x.device)
        target = on_device(runs(rows * buffer.shape[1] + filled, counts), x.device)
        flat, some = buffer.flatten(0, 1), x.flatten(0, 1).index_select(0, source).to(buffer.dtype)
        if recording:
            return flat.index_copy(0, target, some).view_as(buffer)
        flat.index_copy_(0, target, some)
        return buffer

    return tree_map(each_row, chunk, new)


def _padded(flat: Tensor, counts: Numbers) -> Tensor:
    """Rows that lie one after another, padded with zeros to the longest."""
    longest = int(counts.max())
    whole = flat.new_zeros(len(counts) * longest, *flat.shape[1:])
    target = on_device(runs(np.arange(len(counts)) * longest, counts), flat.device)
    return whole.index_copy(0, target, flat).unflatten(0, (len(counts), longest))
