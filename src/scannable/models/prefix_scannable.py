"""Definition "Prefix-Scannable Model", for any three modules: Alg. 3 in parallel, Alg. 4 token by token."""

from typing import Any, ClassVar, Protocol, TypeVar, cast, runtime_checkable

import torch
from jaxtyping import Float, Int, Integer
from torch import Tensor, nn
from torch.nn import functional

from scannable.models.base import CausalModel, check_whole
from scannable.models.psm_state import HALF_WRITTEN, ChunkBuffers, PSMState
from scannable.models.stream_batch import StreamBatch, step_rows
from scannable.models.tokens import checked_tokens
from scannable.nn.cache import KVCache
from scannable.scan import empty, extend, scan
from scannable.scan.element_type import ElementType, spread
from scannable.scan.tree import flatten, tree_map, unflatten

S = TypeVar("S", PSMState, StreamBatch)


@runtime_checkable
class IncrementalInf(Protocol):
    """An Inf that can read a chunk piece by piece instead of from its start."""

    def new_cache(self, batch: int) -> KVCache: ...

    def cache_nbytes(self, batch: int) -> int: ...

    def begin(self, prefix: Any, cache: KVCache) -> None:
        """Put only the prefix of a chunk into an unfilled cache."""
        ...

    def read(self, prefix: Any, x: Tensor, cache: KVCache) -> Tensor:
        """The outputs for the next m positions `x` of a chunk; `prefix` only with the first ones, if not begun."""
        ...


class PrefixScannableModel(CausalModel[PSMState]):
    """Enc, Agg, Inf and an identity, over chunks of c tokens (Def. PSM).

        x_i = Enc(C_i)        s = Scan(x, Agg, e), exclusive        y_i = Inf(s_i, x_i)

    where s_i aggregates the chunks *before* i. The paper's Alg. 4 hands Inf the state that already holds its own
    chunk; that would leak, and predict nothing before a chunk is full. Here every token is predicted as it arrives.

    Args:
        enc: tokens (..., c) to elements (..., c, d), token by token (an embedding).
        agg: `agg(older, newer)`, every leading axis a batch.
        inf: `inf(prefix, x)` to outputs (..., c, out); output j may depend on the prefix and on x_0 to x_j only. If it
            is an `IncrementalInf`, a step costs one position; if not, one chunk.
        identity: e, what Inf sees before the first chunk: of the structure of one element, each tensor of its shape
            (c, d) or broadcasting to it, or a number; a parameter is learned.
        chunk_length: c.
        head: applied to Inf's outputs last, and only where outputs are wanted.
        literal_identity: call Agg(e, x) instead of taking it for x.
        checkpoint: keep no activations of Agg for backward.

    Lengths need not be multiples of c anywhere.
    """

    state_kind: ClassVar[type] = PSMState

    def __init__(
        self,
        enc: nn.Module,
        agg: nn.Module,
        inf: nn.Module,
        identity: Any,
        chunk_length: int,
        *,
        head: nn.Module | None = None,
        literal_identity: bool = False,
        checkpoint: bool = False,
    ) -> None:
        super().__init__()
        check_whole("chunk_length", chunk_length, 1)
        self.enc = enc
        self.agg = agg
        self.inf = inf
        self.head: nn.Module = nn.Identity() if head is None else head
        self.chunk_length: int = chunk_length
        self.literal_identity: bool = literal_identity
        self.checkpoint: bool = checkpoint
        self._set_identity(identity)

    @torch.no_grad()
    def _set_identity(self, identity: Any) -> None:
        """Keep e, which must fit the elements that Enc makes."""
        leaves, self._identity_structure = flatten(identity, "the identity", numbers=True)
        device = next((leaf.device for leaf in (*self.enc.parameters(), *leaves) if isinstance(leaf, Tensor)), None)
        one = self.enc(torch.zeros(1, self.chunk_length, dtype=torch.int64, device=device))
        element = ElementType.of(*flatten(tree_map(lambda leaf: leaf[0], one)))
        whole = spread(identity, element)
        self._element_shapes: tuple[torch.Size, ...] = element.shapes
        for i, (leaf, full) in enumerate(zip(leaves, whole, strict=True)):
            if isinstance(leaf, nn.Parameter):
                self.register_parameter(f"identity_{i}", leaf)
            else:
                self.register_buffer(f"identity_{i}", leaf if isinstance(leaf, Tensor) else full.clone())

    @property
    def identity(self) -> Any:
        """e, of the shape of one element; a view of the parameter if it was given as one."""
        kept = (getattr(self, f"identity_{i}") for i in range(len(self._element_shapes)))
        leaves = [leaf.expand(shape) for leaf, shape in zip(kept, self._element_shapes, strict=True)]
        return unflatten(self._identity_structure, leaves)

    @property
    def vocab_size(self) -> int | None:
        """The size of Enc's table, if it has one."""
        return getattr(self.enc, "num_embeddings", None)

    # In parallel: Alg. 3.

    def hidden(self, tokens: Integer[Tensor, "b n"]) -> Float[Tensor, "b n d"]:
        """What `forward` gives to the head: one scan, then one call of Inf for all chunks."""
        tokens = checked_tokens(tokens, 2, self.vocab_size)
        x = self.enc(into_chunks(tokens, self.chunk_length))  # b r c d
        s = scan(
            self.agg,
            x,
            identity=self.identity,
            dim=1,
            literal=self.literal_identity,
            checkpoint=self.checkpoint and self.training,
        )
        return self.inf(s, x).flatten(1, 2)[:, : tokens.shape[1]]

    # Token by token: Alg. 4.

    def _empty(self, batch_size: int) -> PSMState:
        tokens = torch.zeros(batch_size, self.chunk_length, dtype=torch.int64, device=self._device)
        cache = self.inf.new_cache(batch_size) if isinstance(self.inf, IncrementalInf) else None
        identity = tree_map(Tensor.detach, self.identity)
        return PSMState(0, empty(identity, literal=self.literal_identity), ChunkBuffers(tokens, cache))

    def _nbytes(self, position: int, batch_size: int) -> int:
        """A root and a fold for each set bit of the number of finished chunks (the topmost fold is its root, by law),
        the tokens of one chunk, and the cache of Inf.
        """
        roots = (position // self.chunk_length).bit_count()
        held = 2 * roots - (1 if roots and not self.literal_identity else 0)
        element = sum(leaf.nbytes for leaf in flatten(self.identity)[0])
        cache = self.inf.cache_nbytes(batch_size) if isinstance(self.inf, IncrementalInf) else 0
        return batch_size * (held * element + 8 * self.chunk_length) + cache

    @torch.no_grad()
    def step(self, token: Integer[Tensor, " b"], state: S) -> tuple[Float[Tensor, "b out"], S]:
        """Consume one token: one Inf position, and a push when it completes its chunk.

        The rows of a `StreamBatch` may be at different positions.
        """
        if isinstance(state, StreamBatch):
            return step_rows(cast(Any, self), checked_tokens(token, 1, self.vocab_size), state)
        return super().step(token, state)

    def _check_kind(self, state: object) -> None:
        if isinstance(state, StreamBatch):
            raise TypeError(
                "prefill goes on from a PSMState, whose rows are all at one position, not from a StreamBatch; take it "
                "apart with batch.row(i), or step"
            )
        super()._check_kind(state)

    def _check_state(self, state: PSMState, rows: int) -> None:
        self.check_buffers(state.current_buffers())
        if rows != state.batch_size:
            raise ValueError(
                f"{rows} rows of tokens for a state of {state.batch_size} streams; give one row for each stream"
            )

    def _consume(self, tokens: Int[Tensor, "b m"], state: PSMState) -> tuple[Float[Tensor, "b m d"], PSMState]:
        """The rest of the chunk in progress, whole chunks, the start of another one."""
        buffers, c, m = state.buffers, self.chunk_length, tokens.shape[1]
        if m == 0:
            return self.hidden(tokens), state
        buffers.position = HALF_WRITTEN
        filled = state.position % c
        started = min(c - filled, m) if filled else 0
        whole = (m - started) // c
        rest = started + whole * c
        scanned, finished, hidden = state.scan, [], []

        if started:
            hidden.append(self._read(scanned.prefix(), tokens[:, :started], filled, buffers))
            if filled + started == c:
                finished.append(self.enc(buffers.tokens[:, None]))
        if whole:
            finished.append(self.enc(into_chunks(tokens[:, started:rest], c)))
        if finished:
            x = tree_map(lambda *parts: torch.cat(parts, 1), *finished)
            prefixes, scanned = extend(self.agg, scanned, x, dim=1)
            if whole:
                # Inf has read the chunk in progress already; its prefix and element come first.
                last = lambda leaf: leaf[:, leaf.shape[1] - whole :]  # noqa: E731
                hidden.append(self.inf(tree_map(last, prefixes), tree_map(last, x)).flatten(1, 2))
        if rest < m:
            hidden.append(self._read(scanned.prefix(), tokens[:, rest:], 0, buffers))
        buffers.position = state.position + m
        outputs = hidden[0] if len(hidden) == 1 else torch.cat(hidden, 1)
        return outputs, PSMState(state.position + m, scanned, buffers)

    def _read(
        self, prefix: Any, tokens: Int[Tensor, "b m"], filled: int, buffers: ChunkBuffers
    ) -> Float[Tensor, "b m d"]:
        """Inf's outputs for the next tokens of the chunk in progress, which has `filled` already."""
        m = tokens.shape[1]
        buffers.tokens[:, filled : filled + m] = tokens
        if buffers.cache is not None and isinstance(self.inf, IncrementalInf):
            if filled == 0:
                buffers.cache.length = 0
            return self.inf.read(None if filled else prefix, self.enc(tokens), buffers.cache)
        # The places after these tokens hold old ones; an Inf that is causal does not look at them.
        x = self.enc(buffers.tokens)
        prefix = tree_map(lambda e, leaf: e.expand_as(leaf), prefix, x)
        return self.inf(prefix, x)[:, filled : filled + m]

    def check_buffers(self, buffers: ChunkBuffers) -> None:
        """Refuse the buffers of a model of another shape. (One of the same shape with other weights goes unnoticed.)"""
        batch, c = buffers.tokens.shape
        if c != self.chunk_length:
            raise ValueError(
                f"the state has chunks of {c} tokens, this model of {self.chunk_length}; another model made it"
            )
        expected = self.inf.cache_nbytes(batch) if isinstance(self.inf, IncrementalInf) else None
        cache = buffers.cache
        held = None if cache is None else cache.keys.nbytes + cache.values.nbytes
        if held != expected:
            raise ValueError(
                f"the state holds {held} bytes of keys and values, this model {expected}; another model made it, "
                "or this one in another dtype"
            )

    @property
    def _device(self) -> torch.device:
        return flatten(self.identity)[0][0].device


def into_chunks(tokens: Int[Tensor, "b n"], chunk_length: int) -> Int[Tensor, "b r c"]:
    """Rows of whole chunks; the last one is filled up with zeros, which no causal output looks at."""
    missing = -tokens.shape[1] % chunk_length
    return functional.pad(tokens, (0, missing)).unflatten(1, (-1, chunk_length))
