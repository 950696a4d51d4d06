"""Definition "Prefix-Scannable Model" as a layer on vectors, for any Agg and Inf: Alg. 3 in parallel, Alg. 4 in a stream.

Letters: c positions make a chunk; a stream has seen t positions, and m are new.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol, runtime_checkable

import numpy as np
import torch
from torch import Tensor, nn

from scannable.layers import row_trees
from scannable.layers.affine.recurrence import Mode
from scannable.layers.layer import SequenceLayer, check_sizes, not_a_state
from scannable.layers.psm_state import HALF_WRITTEN, ChunkBuffers, PSMState
from scannable.scan import empty, extend_many, scan
from scannable.scan.documents import Documents, documents_of, whole_numbers
from scannable.scan.element_type import ElementType, spread
from scannable.scan.many_streams import Numbers, offsets, on_device, runs
from scannable.scan.tree import flatten, tree_map, unflatten


@runtime_checkable
class IncrementalInf(Protocol):
    """An Inf that can read a chunk piece by piece instead of from its start.

    Its cache may be of any kind: a tree of tensors whose first axis are the rows, or an object with the methods of
    `nn.KVCache`. Under `no_grad` it may be written into; while gradients are recorded it must not be.
    """

    def begin(self, prefix: Any, recent: Any = None, reuse: Any = None) -> Any:
        """A cache whose rows have read their prefixes and, behind each, the recent chunks. `reuse` is a cache that
        nobody needs any more.
        """
        ...

    def read(self, x: Any, cache: Any, counts: Sequence[int] | None = None) -> tuple[Tensor, Any]:
        """The outputs for the next m positions of each row, and the cache behind them; with `counts`, only the first
        so many of each row count.
        """
        ...

    def cache_nbytes(self, batch: int) -> int:
        """Bytes of a cache for so many rows."""
        ...


@dataclass(frozen=True)
class _Plan:
    """How the new positions of every row fall into chunks."""

    filled: Numbers
    """Positions that the chunk in progress has already."""
    first: Numbers
    """Positions that can be read at once: the rest of the chunk in progress, or a start that fills none."""
    begun: Numbers
    """Whether these begin a chunk."""
    whole: Numbers
    """Chunks that follow and are whole."""
    rest: Numbers
    """Positions behind them, which begin another chunk."""
    finished: Numbers
    """Chunks that are finished, those above and the one in progress."""

    @staticmethod
    def of(positions: Sequence[int], counts: Numbers, c: int) -> "_Plan":
        filled = np.array(positions, dtype=np.int64) % c
        begun = (filled == 0) & (counts > 0) & (counts < c)
        first = np.where(filled > 0, np.minimum(c - filled, counts), np.where(begun, counts, 0))
        whole, rest = np.divmod(counts - first, c)
        return _Plan(filled, first, begun, whole, rest, whole + ((filled > 0) & (filled + first == c)))


class PSMLayer(SequenceLayer):
    """Agg, Inf and an identity, over chunks of c vectors (Def. PSM).

        s = Scan(x, Agg, e), exclusive        y_i = Inf(s_i, x_i)

    where s_i aggregates the chunks *before* i. The paper's Alg. 4 hands Inf the state that already holds its own
    chunk; that would leak, and predict nothing before a chunk is full. Here every position has its output as it comes.

    Args:
        agg: `agg(older, newer)`, every leading axis a batch.
        inf: `inf(prefix, x)` to outputs (..., c, out); output j may depend on the prefix and on x_0 to x_j only. If it
            is an `IncrementalInf`, a step costs one position; if not, one chunk.
        identity: e, what Inf sees before the first chunk: of the structure of one element, each tensor of its shape
            (c, d) or broadcasting to it, or a number; a parameter is learned.
        chunk_length: c.
        like: one element, where the identity does not show its shape.
        recent: k, how many of the last chunks Inf sees as they were, between the prefix of those before them and its
            own: y_i = Inf(s_(i-k), [x_(i-k) | ... | x_i]), the outputs for the last c of these. Before the first chunk
            it sees e. With k > 0 a finished chunk is not needed in the prefix before k chunks later, so that no
            position waits for its merges.
        literal_identity: call Agg(e, x) instead of taking it for x.
        checkpoint: keep no activations of Agg for backward.

    Lengths need not be multiples of c anywhere.
    """

    title = "prefix-scannable"
    action = "any Agg"
    spd_class = "(n, log n)"

    def __init__(
        self,
        agg: nn.Module,
        inf: nn.Module,
        identity: Any,
        chunk_length: int,
        *,
        like: Any = None,
        recent: int = 0,
        literal_identity: bool = False,
        checkpoint: bool = False,
    ) -> None:
        check_sizes(chunk_length=chunk_length)
        if type(recent) is not int or recent < 0:
            raise ValueError(f"recent={recent!r} must be a whole number of at least 0")
        leaves, structure = flatten(identity, "the identity", numbers=True)
        if like is None:
            like = unflatten(structure, [_element(leaf, chunk_length) for leaf in leaves])
        element = ElementType.of(*flatten(like))
        whole = spread(identity, element)
        shapes = list(element.shapes)
        super().__init__(shapes[0][-1], 1)
        self.agg = agg
        self.inf = inf
        self.chunk_length: int = chunk_length
        self.recent: int = recent
        self.literal_identity: bool = literal_identity
        self.checkpoint: bool = checkpoint
        self._structure = structure
        self._shapes: list[torch.Size] = shapes
        for i, (leaf, full) in enumerate(zip(leaves, whole, strict=True)):
            if isinstance(leaf, nn.Parameter):
                self.register_parameter(f"identity_{i}", leaf)
            else:
                self.register_buffer(f"identity_{i}", leaf if isinstance(leaf, Tensor) else full.clone())

    @property
    def identity(self) -> Any:
        """e, of the shape of one element; a view of the parameter if it was given as one."""
        kept = (getattr(self, f"identity_{i}") for i in range(len(self._shapes)))
        return unflatten(self._structure, [leaf.expand(shape) for leaf, shape in zip(kept, self._shapes, strict=True)])

    # In parallel: Alg. 3.

    def forward(self, x: Any, *, lengths: Any = None, starts: Any = None, mode: Mode = "chunkwise") -> Tensor:
        """All outputs: one scan, then one call of Inf for all chunks."""
        b, n = self._check_input(x)
        if lengths is not None or starts is not None:
            return self._over_documents(x, documents_of(b, n, lengths=lengths, starts=starts))
        chunks = tree_map(lambda leaf: into_chunks(leaf, self.chunk_length), x)
        r = -(-n // self.chunk_length)
        k = min(self.recent, r)
        scanned = tree_map(lambda leaf: leaf[:, : r - k], chunks) if k else chunks
        prefixes = self._scan(scanned, dim=1)
        if self.recent:
            e = tree_map(lambda leaf, of: of.expand(leaf.shape[0], 1, *of.shape), chunks, self.identity)
            before = tree_map(lambda e, p: torch.cat((*[e] * k, p), 1), e, prefixes)
            padded = tree_map(lambda e, leaf: torch.cat((*[e.to(leaf.dtype)] * self.recent, leaf), 1), e, chunks)
            windows = tree_map(lambda leaf: torch.cat([leaf[:, j : j + r] for j in range(self.recent + 1)], 2), padded)
            return self.inf(before, windows).flatten(1, 2)[:, :n]
        return self.inf(prefixes, chunks).flatten(1, 2)[:, :n]

    def _scan(self, chunks: Any, *, dim: int, starts: Any = None) -> Any:
        return scan(
            self.agg,
            chunks,
            identity=self.identity,
            dim=dim,
            starts=starts,
            literal=self.literal_identity,
            checkpoint=self.checkpoint and self.training,
        )

    def _over_documents(self, x: Any, documents: Documents) -> Tensor:
        """Every document its own tree, and no chunk that holds nothing: all chunks of all documents in a row."""
        c, k = self.chunk_length, self.recent
        documents = documents.in_all_rows()
        device = flatten(x)[0][0].device
        counts = documents.counts
        chunks = -(-counts // c)
        first = offsets(chunks)
        begin = documents.row * documents.length + documents.start
        place = runs(begin, chunks, c)[:, None] + np.arange(c)
        inside = place < np.repeat(begin + counts, chunks)[:, None]
        index = on_device(np.where(inside, place, 0).ravel(), device)
        keep = on_device(inside.ravel().astype(np.int64), device).bool()

        def cut(leaf: Tensor) -> Tensor:
            flat = leaf.flatten(0, 1).index_select(0, index)
            # Times 0 what is no number would stay so.
            return flat.where(keep.view(-1, *(1,) * (flat.ndim - 1)), 0).unflatten(0, (-1, c))

        elements = tree_map(cut, x)
        prefixes = self._scan(elements, dim=0, starts=first)
        if k and len(place):
            e = tree_map(lambda of, leaf: of[None].to(leaf.dtype), self.identity, elements)
            number = runs(np.zeros_like(chunks), chunks)
            own = np.arange(len(number))
            back = [np.where(number >= j, own - j + 1, 0) for j in range(k, -1, -1)]  # 0 is the identity

            def picked(value: Any, which: Numbers) -> Any:
                at = on_device(which, device)
                return tree_map(lambda one, leaf: torch.cat((one, leaf)).index_select(0, at), e, value)

            windows = [picked(elements, which) for which in back]
            elements = tree_map(lambda *leaves: torch.cat(leaves, 1), *windows)
            prefixes = picked(prefixes, back[0])
        y = self.inf(prefixes, elements)
        y = y.flatten(0, 1).index_select(0, on_device(np.flatnonzero(inside.ravel()), device))
        rows, length = documents.rows, documents.length
        whole = y.new_zeros(rows * length, *y.shape[1:])
        return whole.index_copy(0, on_device(place[inside], device), y).unflatten(0, (rows, length))

    # In a stream: Alg. 4.

    def initial_state(self, batch_size: int) -> PSMState:
        check_sizes(batch_size=batch_size)
        identity = self.identity
        if not torch.is_grad_enabled():
            identity = tree_map(Tensor.detach, identity)
        rows = tree_map(lambda leaf: leaf.expand(batch_size, *leaf.shape), identity)
        chunk = tree_map(torch.zeros_like, tree_map(lambda leaf: leaf.detach().contiguous(), rows))
        recent = tree_map(lambda leaf: torch.cat([leaf] * self.recent, 1), rows) if self.recent else None
        cache = None
        if isinstance(self.inf, IncrementalInf):
            with torch.no_grad():
                cache = self.inf.begin(rows, recent)
        positions = (0,) * batch_size
        buffers = ChunkBuffers(chunk, recent, cache, positions)
        return PSMState(positions, (empty(identity, literal=self.literal_identity),), buffers)

    def state_nbytes(self, position: int, batch_size: int = 1) -> int:
        """A root and a fold for each set bit of the number of chunks in the scan (the topmost fold is its root, by
        law), the chunk in progress, the recent ones, and the cache of Inf.
        """
        absorbed = max(0, position // self.chunk_length - self.recent)
        held = 2 * absorbed.bit_count() - (1 if absorbed and not self.literal_identity else 0)
        element = sum(leaf.nbytes for leaf in flatten(self.identity)[0])
        cache = self.inf.cache_nbytes(batch_size) if isinstance(self.inf, IncrementalInf) else 0
        return batch_size * (held + 1 + self.recent) * element + cache

    def check_state(self, state: object, rows: int) -> None:
        if not isinstance(state, PSMState):
            raise not_a_state(self, state, rows)
        buffers = state.current_buffers()
        if rows != state.batch_size:
            raise ValueError(f"{rows} rows for a state of {state.batch_size} streams; give one row for each stream")
        for part, length in ((buffers.chunk, self.chunk_length), (buffers.recent, self.recent * self.chunk_length)):
            held = [] if part is None else [tuple(leaf.shape) for leaf in flatten(part)[0]]
            expected = [(rows, length, *shape[1:]) for shape in self._shapes] if length else []
            if held != expected:
                raise ValueError(
                    f"the state has chunks of the shape {held}, this layer of {expected}; another layer made it: start "
                    f"from this layer's initial_state({rows})"
                )
        kinds = [leaf.dtype for leaf in flatten(buffers.chunk)[0]]
        expected_kinds = [leaf.dtype for leaf in flatten(self.identity)[0]]
        if kinds != expected_kinds:
            raise ValueError(f"the state holds {kinds}, this layer {expected_kinds}; state.to(...) converts it")
        expected_bytes = self.inf.cache_nbytes(rows) if isinstance(self.inf, IncrementalInf) else None
        held_bytes = None if buffers.cache is None else sum(leaf.nbytes for leaf in row_trees.tensors(buffers.cache))
        if held_bytes != expected_bytes:
            raise ValueError(
                f"the state holds {held_bytes} bytes of Inf's cache, this layer {expected_bytes}; another layer made "
                "it, or this one in another dtype"
            )

    def extend(self, x: Any, state: Any, *, lengths: Any = None, mode: Mode = "chunkwise") -> tuple[Tensor, PSMState]:
        """The rest of the chunks in progress, whole chunks, the start of others; each row as far as it goes."""
        b, n = self._check_input(x)
        self.check_state(state, b)
        counts = (
            np.full(b, n) if lengths is None else documents_of(b, n, lengths=whole_numbers(lengths, "lengths")).counts
        )
        if n == 0 or b == 0:
            return self.forward(x), state
        state = state.usable()
        if len(set(zip(state.positions, counts.tolist(), strict=True))) == 1 and counts[0] == n:
            state = state.grouped()
        else:
            state = state.each_row()
            keep = on_device((np.arange(n) < counts[:, None]).astype(np.int64), flatten(x)[0][0].device).bool()
            x = tree_map(lambda leaf: leaf.where(keep.view(b, n, *(1,) * (leaf.ndim - 2)), 0), x)
        return self._go_on(x, state, counts)

    def _go_on(self, x: Any, state: PSMState, counts: Numbers) -> tuple[Tensor, PSMState]:
        c = self.chunk_length
        plan = _Plan.of(state.positions, counts, c)
        positions = tuple(int(p) for p in np.array(state.positions) + counts)
        buffers = state.buffers
        if torch.is_grad_enabled():
            buffers = ChunkBuffers(buffers.chunk, buffers.recent, buffers.cache, positions)
        buffers.written = HALF_WRITTEN
        n = int(counts.max())
        outputs = _Outputs(len(counts), n)
        scans = list(state.scans)

        if plan.first.any():
            self._read(x, np.zeros_like(counts), plan.filled, plan.first, plan.begun, scans, buffers, outputs)
        if plan.finished.any():
            scans = self._finish(x, plan, state, scans, buffers, outputs)
        if plan.rest.any():
            start = plan.first + plan.whole * c
            self._read(x, start, np.zeros_like(counts), plan.rest, plan.rest > 0, scans, buffers, outputs)
        buffers.written = positions
        return outputs.woven(), PSMState(positions, tuple(scans), buffers)

    def _read(
        self,
        x: Any,
        start: Numbers,
        filled: Numbers,
        counts: Numbers,
        begun: Numbers,
        scans: list[Any],
        buffers: ChunkBuffers,
        outputs: "_Outputs",
    ) -> None:
        """Inf's outputs for positions of chunks in progress: `counts` of each row from `start` on, behind `filled`."""
        b, m = len(counts), int(counts.max())
        alike = (counts == m).all() and (start == start[0]).all() and (filled == filled[0]).all()
        if alike:
            new = tree_map(lambda leaf: leaf[:, int(start[0]) : int(start[0]) + m], x)
        else:
            place = np.minimum(start[:, None] + np.arange(m), flatten(x)[0][0].shape[1] - 1)
            flat = on_device(
                (place + np.arange(b)[:, None] * flatten(x)[0][0].shape[1]).ravel(), flatten(x)[0][0].device
            )
            new = tree_map(lambda leaf: leaf.flatten(0, 1).index_select(0, flat).unflatten(0, (b, m)), x)
        buffers.chunk = _written(buffers.chunk, new, filled, counts, alike)
        if isinstance(self.inf, IncrementalInf):
            rows = np.flatnonzero(begun).tolist()
            if rows:
                prefix = self._prefixes(scans, rows)
                recent = None if buffers.recent is None else buffers.recent
                if len(rows) == b:
                    buffers.cache = self.inf.begin(prefix, recent, buffers.cache)
                else:
                    recent = None if recent is None else row_trees.take(recent, rows)
                    buffers.cache = row_trees.put(buffers.cache, rows, self.inf.begin(prefix, recent))
            some = None if (counts == m).all() else counts.tolist()
            y, buffers.cache = self.inf.read(new, buffers.cache, some)
        else:
            # The places behind these positions hold old ones; an Inf that is causal does not look at them.
            window = buffers.chunk
            if buffers.recent is not None:
                window = tree_map(lambda *leaves: torch.cat(leaves, 1), buffers.recent, window)
            whole = self.inf(self._prefixes(scans, list(range(b))), window)
            place = (
                np.minimum(filled[:, None] + np.arange(m), self.chunk_length - 1)
                + np.arange(b)[:, None] * self.chunk_length
            )
            y = whole.flatten(0, 1).index_select(0, on_device(place.ravel(), whole.device)).unflatten(0, (b, m))
        outputs.add(y, start, counts)

    def _prefixes(self, scans: list[Any], rows: list[int]) -> Any:
        """What Inf is to see in front of the chunks that begin in these rows."""
        shapes = [(len(rows), *shape) for shape in self._shapes]
        if len(scans) == 1:
            leaves = flatten(scans[0].prefix())[0]
            return unflatten(self._structure, [leaf.expand(shape) for leaf, shape in zip(leaves, shapes, strict=True)])
        each = [flatten(scans[row].prefix())[0] for row in rows]
        parts = [
            torch.cat([leaf.expand(1, *shape[1:]) for leaf in leaves])
            for leaves, shape in zip(zip(*each, strict=True), shapes, strict=True)
        ]
        return unflatten(self._structure, parts)

    def _finish(
        self, x: Any, plan: _Plan, state: PSMState, scans: list[Any], buffers: ChunkBuffers, outputs: "_Outputs"
    ) -> list[Any]:
        """Finished chunks go into the scan, k chunks late; those that are whole in `x` are read by Inf."""
        c, k = self.chunk_length, self.recent
        groups = [list(range(state.batch_size))] if len(scans) == 1 else [[row] for row in range(state.batch_size)]
        queues: list[Any] = []  # for each group, the recent chunks and those that are finished now
        absorbed: list[Any] = []
        for rows in groups:
            row = rows[0]
            some = slice(row, row + len(rows))
            parts = (
                []
                if buffers.recent is None
                else [tree_map(lambda leaf: leaf[some].unflatten(1, (-1, c)), buffers.recent)]
            )
            if plan.finished[row] > plan.whole[row]:
                parts.append(tree_map(lambda leaf: leaf[some, None], buffers.chunk))
            first, count = int(plan.first[row]), int(plan.whole[row])
            parts.append(tree_map(lambda leaf: leaf[some, first : first + count * c].unflatten(1, (count, c)), x))
            queue = tree_map(lambda *leaves: torch.cat(leaves, 1), *parts) if len(parts) > 1 else parts[0]
            before = state.positions[row] // c
            after = before + int(plan.finished[row])
            # Of the recent chunks, those before the stream began are the identity, and never in the scan.
            missing = max(0, k - before)
            number = max(0, after - k) - max(0, before - k)
            queues.append(queue)
            absorbed.append(tree_map(lambda leaf: leaf[:, missing : missing + number], queue))
        prefixes, scans_after = extend_many(self.agg, scans, absorbed, dim=1)

        befores: list[Any] = []
        windows: list[Any] = []
        for rows, queue, found in zip(groups, queues, prefixes, strict=True):
            row = rows[0]
            count = int(plan.whole[row])
            if not count:
                continue
            total = int(plan.finished[row])
            before = state.positions[row] // c
            # Whole chunk j of the stream sees the prefix of place j - k, or e before the first.
            early = min(max(0, k - (before + total - count)), count)
            late = count - early
            start = max(0, before + total - count - k) - max(0, before - k)
            seen = tree_map(lambda leaf: leaf[:, start : start + late], found)
            if early:
                seen = tree_map(
                    lambda leaf, e: torch.cat((e.to(leaf.dtype).expand(len(rows), early, *e.shape), leaf), 1),
                    seen,
                    self.identity,
                )
            befores.append(seen)
            at = k + total - count
            windows.append(
                tree_map(lambda leaf: torch.cat([leaf[:, at - j : at - j + count] for j in range(k, -1, -1)], 2), queue)
                if k
                else tree_map(lambda leaf: leaf[:, at:], queue)
            )
        if windows:
            if len(groups) > 1:
                befores, windows = (
                    [tree_map(lambda *leaves: torch.cat(leaves, 1), *each)] for each in (befores, windows)
                )
            y = self.inf(befores[0], windows[0]).flatten(1, 2)
            if len(groups) > 1:
                y = _padded(y[0], plan.whole * c)
            outputs.add(y, plan.first, plan.whole * c)
        if k:
            # Rows that finish nothing keep theirs.
            kept = [tree_map(lambda leaf: leaf[:, leaf.shape[1] - k :].flatten(1, 2), queue) for queue in queues]
            buffers.recent = row_trees.cat(kept)
        return scans_after

    def _check_input(self, x: Any) -> tuple[int, int]:
        leaves, structure = flatten(x, "x")
        if structure != self._structure:
            raise ValueError(f"x has the structure {structure}, the identity {self._structure}; they must agree")
        for leaf, shape in zip(leaves, self._shapes, strict=True):
            if leaf.ndim != len(shape) + 1 or leaf.shape[2:] != shape[1:] or leaf.shape[:2] != leaves[0].shape[:2]:
                expected = ", ".join(map(str, ("batch", "length", *shape[1:])))
                raise ValueError(f"x has the shape {tuple(leaf.shape)}; expected ({expected})")
        return leaves[0].shape[0], leaves[0].shape[1]


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


def into_chunks(x: Tensor, chunk_length: int) -> Tensor:
    """(b, n, ...) as whole chunks (b, r, c, ...); the last is filled up with zeros, which no causal output looks at."""
    missing = -x.shape[1] % chunk_length
    if missing:
        x = torch.cat((x, x.new_zeros(x.shape[0], missing, *x.shape[2:])), 1)
    return x.unflatten(1, (-1, chunk_length))


def _element(leaf: Any, chunk_length: int) -> Tensor:
    """One element, as far as its identity shows it."""
    if not isinstance(leaf, Tensor) or leaf.ndim == 0:
        raise ValueError(
            f"the identity {leaf!r:.40} does not show the shape of an element; give like=, or a tensor "
            f"({chunk_length}, d)"
        )
    return leaf.detach().new_zeros(chunk_length, *(leaf.shape if leaf.ndim == 1 else leaf.shape[1:]))
