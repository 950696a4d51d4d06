"""Definition "Prefix-Scannable Model" as a layer on vectors, for any Agg and Inf: Alg. 3 in parallel.

Letters: c positions make a chunk; a stream has seen t positions, and m are new.
"""

from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from scannable.layers import row_trees
from scannable.layers.affine.recurrence import Mode
from scannable.layers.incremental_inf import IncrementalInf
from scannable.layers.layer import SequenceLayer, check_mode, check_sizes, not_a_state
from scannable.layers.psm_state import ChunkBuffers, PSMState
from scannable.layers.psm_stream import go_on, one_more
from scannable.nn.decay import undecayed
from scannable.scan import empty, scan
from scannable.scan.documents import Documents, documents_of, whole_numbers
from scannable.scan.element_type import ElementType, spread
from scannable.scan.many_streams import Numbers, offsets, on_device, runs
from scannable.scan.push import calls_of_a_push
from scannable.scan.tree import Structure, flatten, tree_map, unflatten


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

    >>> class Newer(nn.Module):
    ...     def forward(self, older, newer):
    ...         return 0.5 * older + newer
    >>> class Shifted(nn.Module):
    ...     def forward(self, prefix, x):
    ...         return x + prefix
    >>> layer = sc.PSMLayer(Newer(), Shifted(), identity=torch.zeros(4, 8), chunk_length=4)
    >>> layer(torch.randn(2, 10, 8)).shape
    torch.Size([2, 10, 8])
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
        self.maker: object = object()
        """Another one when the layer's weights have moved or changed their type."""
        self.literal_identity: bool = literal_identity
        self.checkpoint: bool = checkpoint
        self.structure: Structure = structure
        """Of an element."""
        self.shapes: list[torch.Size] = shapes
        """Of the tensors of an element."""
        for i, (leaf, full) in enumerate(zip(leaves, whole, strict=True)):
            if isinstance(leaf, nn.Parameter):
                self.register_parameter(f"identity_{i}", leaf)
                undecayed(self, f"identity_{i}")
            else:
                self.register_buffer(f"identity_{i}", leaf if isinstance(leaf, Tensor) else full.clone())

    @property
    def identity(self) -> Any:
        """e, of the shape of one element; a view of the parameter if it was given as one."""
        kept = (getattr(self, f"identity_{i}") for i in range(len(self.shapes)))
        return unflatten(self.structure, [leaf.expand(shape) for leaf, shape in zip(kept, self.shapes, strict=True)])

    # In parallel: Alg. 3.

    def forward(self, x: Any, *, lengths: Any = None, starts: Any = None, mode: Mode = "chunkwise") -> Tensor:
        """All outputs: one scan, then one call of Inf for all chunks."""
        b, n = self._check_input(x, mode)
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
        if k:
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
        cache = self.inf.new_cache(batch_size) if isinstance(self.inf, IncrementalInf) else None
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
        if self.recent and position // self.chunk_length >= self.recent:
            merges, folds = calls_of_a_push(absorbed, literal=self.literal_identity)
            made = min(position % self.chunk_length, merges + folds)
            held += int(made > 0) + int(folds > 0 and made == merges + folds)
        return batch_size * (held + 1 + self.recent) * element + cache

    def check_state(self, state: object, rows: int) -> None:
        if not isinstance(state, PSMState):
            raise not_a_state(self, state, rows)
        buffers = state.current_buffers()
        if rows != state.batch_size:
            raise ValueError(f"{rows} rows for a state of {state.batch_size} streams; {_elsewhere(rows)}")
        if buffers.maker is self.maker:
            return
        for part, length in ((buffers.chunk, self.chunk_length), (buffers.recent, self.recent * self.chunk_length)):
            held = [] if part is None else [tuple(leaf.shape) for leaf in flatten(part)[0]]
            expected = [(rows, length, *shape[1:]) for shape in self.shapes] if length else []
            if held != expected:
                raise ValueError(f"the state has chunks of the shape {held}, expected {expected}; {_elsewhere(rows)}")
        kinds, expected_kinds = (
            ", ".join(str(leaf.dtype) for leaf in flatten(each)[0]) for each in (buffers.chunk, self.identity)
        )
        if kinds != expected_kinds:
            raise ValueError(f"the state holds {kinds}, expected {expected_kinds}; {_elsewhere(rows)}")
        expected_bytes = self.inf.cache_nbytes(rows) if isinstance(self.inf, IncrementalInf) else None
        held_bytes = None if buffers.cache is None else sum(leaf.nbytes for leaf in row_trees.tensors(buffers.cache))
        if held_bytes != expected_bytes:
            raise ValueError(
                f"the state holds {held_bytes} bytes of Inf's cache, expected {expected_bytes}; {_elsewhere(rows)}"
            )

    def extend(self, x: Any, state: Any, *, lengths: Any = None, mode: Mode = "chunkwise") -> tuple[Tensor, PSMState]:
        """The rest of the chunks in progress, whole chunks, the start of others; each row as far as it goes."""
        b, n = self._check_input(x, mode)
        self.check_state(state, b)
        x = self._in_its_type(x, state)
        if n == 1 and lengths is None and not torch.is_grad_enabled():
            step = one_more(self, x, state)
            if step is not None:
                return step
        counts = (
            np.full(b, n) if lengths is None else documents_of(b, n, lengths=whole_numbers(lengths, "lengths")).counts
        )
        if n == 0 or b == 0:
            return self.forward(x), state
        if not counts.any():
            nothing = self.forward(tree_map(lambda leaf: leaf[:, :0], x))
            return nothing.new_zeros(b, n, *nothing.shape[2:]), state
        state = state.usable()
        if len(set(zip(state.positions, counts.tolist(), strict=True))) == 1 and counts[0] == n:
            state = state.grouped()
        else:
            state = state.each_row()
            keep = on_device((np.arange(n) < counts[:, None]).astype(np.int64), flatten(x)[0][0].device).bool()
            x = tree_map(lambda leaf: leaf.where(keep.view(b, n, *(1,) * (leaf.ndim - 2)), 0), x)
        return go_on(self, x, state, counts)

    def _in_its_type(self, x: Any, state: PSMState) -> Any:
        """New positions in the type that the state has: autocast may have chosen another for them."""
        held, new = (flatten(each)[0] for each in (state.buffers.chunk, x))
        kinds = [(leaf.dtype, part.dtype) for leaf, part in zip(held, new, strict=True)]
        if all(mine == theirs for mine, theirs in kinds):
            return x
        if not torch.is_autocast_enabled(new[0].device.type):
            raise ValueError(f"x has {[theirs for _, theirs in kinds]}, this layer {[mine for mine, _ in kinds]}")
        return tree_map(lambda leaf, part: part.to(leaf.dtype), state.buffers.chunk, x)

    def _apply(self, fn: Any, recurse: bool = True) -> Any:
        self.maker = object()
        return super()._apply(fn, recurse)

    def _check_input(self, x: Any, mode: str) -> tuple[int, int]:
        check_mode(mode)
        if isinstance(x, Tensor) and self.structure.kind is Tensor and x.shape[2:] == self.shapes[0][1:]:
            return x.shape[0], x.shape[1]
        leaves, structure = flatten(x, "x")
        if structure != self.structure:
            raise ValueError(f"x has the structure {structure}, the identity {self.structure}; they must agree")
        for leaf, shape in zip(leaves, self.shapes, strict=True):
            if leaf.ndim != len(shape) + 1 or leaf.shape[2:] != shape[1:] or leaf.shape[:2] != leaves[0].shape[:2]:
                expected = ", ".join(map(str, ("batch", "length", *shape[1:])))
                raise ValueError(f"x has the shape {tuple(leaf.shape)}; expected ({expected})")
        return leaves[0].shape[0], leaves[0].shape[1]


def _elsewhere(rows: int) -> str:
    return f"another model or batch made it: start from this layer's initial_state({rows})"


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
