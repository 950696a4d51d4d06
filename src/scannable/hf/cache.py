"""The stream of a batch, where `transformers` looks for a cache.

It has the methods that `generate` calls, and no class of `transformers` above it: those change with minor versions.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from scannable.hf.padding import RealTokens

if TYPE_CHECKING:
    from scannable.models.base import CausalModel

TAIL = 64
"""Candidates that are dropped again lie within so many columns of the end, usually."""


class ScannableCache:
    """O(log n) bytes where others hold n keys and values; of one batch, whose rows may have any padding.

        cache = ScannableCache()
        out = model.generate(ids, past_key_values=cache)     # goes on from where it is; fills it
        branch = copy.deepcopy(cache)                        # an independent one
        cache.state                                          # the stream: sc.save_state, state.row, ...

    `transformers` counts columns, padding included; the stream has only tokens, so `state.positions` are fewer.

    >>> from scannable.hf import ScannableCache, ScannableConfig, ScannableForCausalLM
    >>> model = ScannableForCausalLM(ScannableConfig(sc.LMConfig(vocab_size=50, width=16, heads=2, layers=("gla",))))
    >>> cache = ScannableCache()
    >>> _ = model.eval()(torch.randint(50, (1, 7)), past_key_values=cache, use_cache=True)
    >>> cache.get_seq_length(), cache.state.position
    (7, 7)
    """

    is_compileable = False
    is_croppable = True
    layers: tuple[()] = ()
    """None that others could look into."""

    def __init__(self, state: Any = None, columns: int | None = None) -> None:
        self.state: Any = state
        """Of the model, after all columns but those that wait."""
        self._columns: int = (0 if state is None else state.position) if columns is None else columns
        self._waiting: list[_Piece] = []
        """Columns that were kept when others behind them were dropped: read with what comes next."""
        self._recording: bool = False
        self._marks: list[tuple[int, Any]] = []
        """Columns and a fork of the state there, to go back to."""
        self._read: list[_Piece] = []
        """All that was read since the first mark."""

    # What transformers asks for.

    def get_seq_length(self, layer_idx: int = 0) -> int:
        """Columns consumed, padding included."""
        return self._columns + sum(piece.columns for piece in self._waiting)

    def get_max_cache_shape(self, layer_idx: int = 0) -> int:
        """There is no limit."""
        return -1

    def get_max_length(self) -> None:
        """There is no limit."""
        return None

    @property
    def is_initialized(self) -> bool:
        """Whether it has seen anything."""
        return self.get_seq_length() > 0

    @property
    def batch_size(self) -> int | None:
        """Its rows; None before the first token."""
        return None if self.state is None else self.state.batch_size

    @property
    def nbytes(self) -> int:
        """Bytes of the stream."""
        return 0 if self.state is None else self.state.nbytes

    def reorder_cache(self, beam_idx: Tensor) -> None:
        """Put these rows in place of all, as beam search does."""
        self.batch_select_indices(beam_idx)

    def batch_select_indices(self, indices: Tensor) -> None:
        """Keep these rows, in this order; a mask of rows will do."""
        rows = indices.nonzero()[:, 0].tolist() if indices.dtype == torch.bool else indices.tolist()
        if rows == list(range(self.batch_size or 0)):
            return
        if self.state is not None:
            self.state = self.state.select(rows)
        self._waiting = [piece.select(rows) for piece in self._waiting]
        self._marks = [(columns, state.select(rows)) for columns, state in self._marks]
        self._read = [piece.select(rows) for piece in self._read]

    def batch_repeat_interleave(self, repeats: int) -> None:
        """Each row so many times, as beam search needs it."""
        if self.batch_size is not None:
            self.batch_select_indices(torch.arange(self.batch_size).repeat_interleave(repeats))

    def reset(self) -> None:
        """Forget everything."""
        self.state, self._columns, self._waiting, self._marks, self._read = None, 0, [], [], []

    def activate_past_recording(self) -> None:
        """From now on remember enough for `crop`: assisted generation drops candidates."""
        self._recording = True

    def crop(self, max_length: int) -> None:
        """Keep the first `max_length` columns; if it is negative, drop so many."""
        kept = self.get_seq_length() + max_length if max_length <= 0 else max_length
        if kept >= self.get_seq_length():
            if not self._waiting:
                # What was accepted is never dropped later.
                self._marks, self._read = [], []
            return
        if kept >= self._columns:
            self._waiting = _cut(self._waiting, kept - self._columns)
            return
        mark = next((i for i, (columns, _) in reversed(list(enumerate(self._marks))) if columns <= kept), None)
        if mark is None:
            raise ValueError(
                f"this cache cannot go back to {kept} of its {self._columns} columns: a stream does not hold its past. "
                "Call activate_past_recording() before the tokens that may be dropped, or keep a copy.deepcopy of the "
                "cache"
            )
        first = self._marks[0][0]
        self._columns, self.state = self._marks[mark]
        self._waiting = _behind(_cut(self._read, kept - first), self._columns - first)
        self._marks, self._read = [], []

    def __deepcopy__(self, memo: dict[int, Any]) -> ScannableCache:
        copied = ScannableCache(None if self.state is None else self.state.fork(), self._columns)
        copied._waiting, copied._read, copied._recording = list(self._waiting), list(self._read), self._recording
        copied._marks = [(columns, state.fork()) for columns, state in self._marks]
        return copied

    def __repr__(self) -> str:
        rows = self.batch_size
        return f"ScannableCache({self.get_seq_length()} columns of {rows} rows)" if rows else "ScannableCache(empty)"

    # What the model does with it.

    def read(self, network: CausalModel[Any], tokens: Tensor, real: RealTokens | None) -> Tensor:
        """The hidden vectors of more columns, and the stream behind them."""
        rows, columns = tokens.shape
        if self.batch_size not in (None, rows):
            raise ValueError(
                f"this cache holds {self.batch_size} rows, the input has {rows}; a cache belongs to its batch. For "
                "beams or several sequences for each prompt, call cache.batch_repeat_interleave(n) first; for another "
                "batch, take a new cache"
            )
        if self.state is None:
            self.state = network.initial_state(rows)
        if not self._recording and not self._waiting:
            return self._extend(network, _Piece(tokens, real))
        if self._waiting:
            # What was accepted is read again, and is where one goes back to from now on.
            self._marks, self._read = [], []
            for piece in self._waiting:
                self._extend(network, piece)
            self._waiting = []
        piece = _Piece(tokens, real)
        if not self._recording:
            return self._extend(network, piece)
        if not self._marks:
            self._marks, self._read = [(self._columns, self.state.fork())], []
        if columns <= 2 * TAIL:
            self._read.append(piece)
            return self._extend(network, piece)
        # A long prompt is not to be read again for a few candidates behind it.
        start, end = piece.part(0, columns - TAIL), piece.part(columns - TAIL, columns)
        self._read += [start, end]
        hidden = self._extend(network, start)
        self._marks.append((self._columns, self.state.fork()))
        return torch.cat((hidden, self._extend(network, end)), 1)

    def _extend(self, network: CausalModel[Any], piece: _Piece) -> Tensor:
        if piece.real is None:
            hidden, self.state = network.extend(piece.tokens, self.state)
        else:
            tokens = piece.real.first(piece.tokens)
            hidden, self.state = network.extend(tokens, self.state, lengths=piece.real.lengths)
            hidden = piece.real.back(hidden)
        self._columns += piece.columns
        return hidden


class _Piece:
    """Some columns of a batch."""

    def __init__(self, tokens: Tensor, real: RealTokens | None) -> None:
        self.tokens = tokens
        self.real = real

    @property
    def columns(self) -> int:
        return self.tokens.shape[1]

    def part(self, start: int, end: int) -> _Piece:
        tokens = self.tokens[:, start:end]
        mask = None if self.real is None else self.real.real[:, start:end]
        return _Piece(tokens, RealTokens.of(mask, *tokens.shape))

    def select(self, rows: list[int]) -> _Piece:
        tokens = self.tokens[rows]
        return _Piece(tokens, None if self.real is None else RealTokens.of(self.real.real[rows], *tokens.shape))


def _cut(pieces: list[_Piece], columns: int) -> list[_Piece]:
    """The first so many columns."""
    kept: list[_Piece] = []
    for piece in pieces:
        if columns <= 0:
            break
        kept.append(piece if piece.columns <= columns else piece.part(0, columns))
        columns -= piece.columns
    return kept


def _behind(pieces: list[_Piece], columns: int) -> list[_Piece]:
    """All but the first so many columns."""
    kept: list[_Piece] = []
    for piece in pieces:
        if columns < piece.columns:
            kept.append(piece if columns <= 0 else piece.part(columns, piece.columns))
        columns = max(0, columns - piece.columns)
    return kept
