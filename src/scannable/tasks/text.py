"""Language modelling over text."""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, fields, replace
from functools import cached_property
from pathlib import Path
from typing import Any, ClassVar, Self

import numpy as np
from numpy.typing import NDArray

from scannable.storage.cache_folder import default_cache
from scannable.storage.checked_fields import check_fields
from scannable.storage.files import write_whole
from scannable.storage.registry import configurable
from scannable.tasks import tokenizer as tokenizers
from scannable.tasks.corpus import Corpus, folder_corpus, single_file_corpus, stdlib_corpus
from scannable.tasks.sample import (
    IGNORED,
    Batch,
    Split,
    check_length,
    check_seed,
    check_split,
    checked_indices,
    random_bits,
)
from scannable.tasks.token_files import Counts, TokenFiles, open_token_files, token_folder
from scannable.tasks.wikitext import HUB, is_wikitext, wikitext_folder, wikitext_from_hub

BPE_SIZE = 4096
SMALLEST_BPE = 257
"""All bytes and the end of a document."""


@configurable
@dataclass(frozen=True)
class TextTask:
    """Predict the next token of a text.

    Documents stand one after another, each with an end-of-document token behind it. A sample is a window of them at a
    random place. Tokens are computed once and kept in a cache; every use reads all of the text again, to see whether
    it is still the same.
    """

    data: str = "stdlib"
    """Where the text is from, UTF-8 throughout:

    - "stdlib": the sources of Python's standard library without its tests; a file is a document.
    - a folder: all files in it, at any depth, that are not hidden; a file is a document, and one that is not UTF-8 is
      left out with a warning.
    - a file: one document.
    - a folder with wiki.{train,valid,test}.raw or .tokens: WikiText; an article is a document.
    - "Salesforce/wikitext:wikitext-2-raw-v1" or "...:wikitext-103-raw-v1": the same through the package datasets.

    WikiText has its splits. Elsewhere a hash of a document's relative name puts it into train (90%), validation (5%)
    or test (5%), so that it stays there when others are added. If the documents are so few that a split has none, all
    of them in a row are cut into the first 90%, the next 5% and the last 5% of their bytes.
    """
    tokenizer: str = "bytes"
    """ "bytes", "bpe" (byte-level, trained on the training split), or a folder with a tokenizer.json."""
    bpe_size: int | None = None
    """Tokens of "bpe", 4096 unless told; fewer, if the text has no more pairs to merge."""
    seed: int = 0
    cache: Path | None = None
    """The folder for token files; `scannable` in the user's cache folder unless told."""
    text: str | None = None
    """The SHA-256 that the text must have: any other is refused. A run writes down that of its own."""
    vocabulary: str | None = None
    """The identity that the tokenizer must have, likewise."""

    _home: ClassVar[Path | None] = None  # where the tokenizer of a run is kept; set on an instance

    def __post_init__(self) -> None:
        check_fields(self)
        check_seed(self.seed)
        if self.data != "stdlib" and not self.data.startswith(f"{HUB}:"):
            # A run may be resumed from another folder.
            object.__setattr__(self, "data", str(Path(self.data).expanduser().absolute()))
        if self.tokenizer not in ("bytes", "bpe"):
            object.__setattr__(self, "tokenizer", str(Path(self.tokenizer).expanduser().absolute()))
        if self.cache is not None:
            object.__setattr__(self, "cache", self.cache.expanduser().absolute())
        if self.bpe_size is not None:
            if self.tokenizer != "bpe":
                raise ValueError(f"bpe_size={self.bpe_size!r} is for tokenizer='bpe', not {self.tokenizer!r}; drop one")
            if type(self.bpe_size) is not int or self.bpe_size < SMALLEST_BPE:
                raise ValueError(
                    f"bpe_size={self.bpe_size!r} must be a whole number of at least {SMALLEST_BPE}: every byte and the "
                    "end of a document have a token"
                )

    @property
    def vocab_size(self) -> int:
        return self._tokenizer.vocab_size

    @property
    def loaded_tokenizer(self) -> tokenizers.Tokenizer:
        """The tokenizer itself."""
        return self._tokenizer

    @property
    def out_size(self) -> int:
        return self._tokenizer.vocab_size

    def batch(self, split: Split, indices: Sequence[int] | np.ndarray, length: int) -> Batch:
        """Windows at random places, each a function of (seed, split, index)."""
        tokens = self._split(split)
        check_length(length)
        if len(tokens) <= length:
            raise ValueError(
                f"{split!r} holds {len(tokens):,} tokens, but a sample of length={length} needs {length + 1:,}; take "
                "shorter samples or more text"
            )
        starts = random_bits(self.seed, f"text/{split}", indices, 1)[:, 0] % np.uint64(len(tokens) - length)
        window = np.empty((len(starts), length + 1), np.int64)
        for row, start in enumerate(starts.tolist()):
            window[row] = tokens[start : start + length + 1]
        return Batch.of(window[:, :-1].copy(), window[:, 1:].copy())

    def windows(self, split: Split, length: int) -> int:
        """How many windows of `window_batch` cover a split."""
        check_length(length)
        return -(-(len(self._split(split)) - 1) // length)

    def window_batch(self, split: Split, indices: Sequence[int] | np.ndarray, length: int) -> Batch:
        """Windows side by side: together their targets are every token of the split but the first, each once.

        The last window is filled up with the end-of-document token, and its targets with IGNORED.
        """
        tokens, count = self._split(split), self.windows(split, length)
        rows = checked_indices(indices, 63)
        if rows.size and rows.max() >= count:
            raise ValueError(f"window {rows.max()} of {split!r} is not in 0 .. {count - 1}, all there are of {length=}")
        inputs = np.full((len(rows), length), self._tokenizer.end, np.int64)
        targets = np.full((len(rows), length), IGNORED, np.int64)
        for row, start in enumerate((rows * length).tolist()):
            window = tokens[start : start + length + 1]
            inputs[row, : len(window) - 1] = window[:-1]
            targets[row, : len(window) - 1] = window[1:]
        return Batch.of(inputs, targets)

    def bytes_per_token(self, split: Split) -> float:
        """Bytes of text for each token that `window_batch` scores, so that tokenizers compare:

        bits per byte = mean loss in nats / ln 2 / bytes per token

        The ends of documents cost bits but are no bytes, with every tokenizer alike.
        """
        counts = self.counts(split)
        return counts.bytes / (counts.tokens - 1)

    def counts(self, split: Split) -> Counts:
        """Documents, tokens and bytes of a split."""
        check_split(split)
        return self._files.counts[split]

    def encode(self, text: str) -> list[int]:
        """The tokens of a text, without an end of the document."""
        return self._tokenizer.encode(text).tolist()

    def decode(self, tokens: Iterable[int]) -> str:
        """The text of tokens; ends of documents are no text, and half a character becomes U+FFFD."""
        return self._tokenizer.decode(tokens)

    def decode_stream(self, tokens: Iterable[int]) -> Iterator[str]:
        """The text of tokens that come one by one, as soon as its characters are whole."""
        return tokenizers.decode_stream(self._tokenizer.decode, tokens)

    def pinned(self, folder: Path) -> Self:
        """This task with the identities of its text and tokenizer. A BPE that the folder of a run holds is not trained
        anew: on another text it would give other tokens.
        """
        task = self.kept(folder) if self.tokenizer == "bpe" and (folder / tokenizers.FILE).exists() else self
        found = replace(task, text=task._corpus.identity, vocabulary=task._tokenizer.identity)
        for name in ("_home", "_corpus", "_tokenizer"):
            if name in task.__dict__:  # already read, and the same
                object.__setattr__(found, name, task.__dict__[name])
        return found

    def keep(self, folder: Path) -> None:
        """Write the tokenizer into the folder of a run."""
        for name, content in self._tokenizer.files().items():
            write_whole(folder / name, content)

    def kept(self, folder: Path) -> Self:
        """This task with the tokenizer that the folder of a run holds."""
        task = replace(self)
        if self.tokenizer != "bytes":
            object.__setattr__(task, "_home", folder)
        return task

    def __getstate__(self) -> dict[str, Any]:
        # For workers in other processes: each opens the files itself, instead of getting a copy of their content.
        return {name: getattr(self, name) for name in ("_home", *(field.name for field in fields(self)))}

    def _split(self, split: Split) -> NDArray[np.integer]:
        check_split(split)
        return self._files.tokens[split]

    @cached_property
    def _corpus(self) -> Corpus:
        corpus = open_corpus(self.data)
        if self.text not in (None, corpus.identity):
            raise ValueError(
                f"data={self.data!r} is not the text that was trained on: its SHA-256 is {corpus.identity[:16]}..., "
                f"not {self.text[:16]}...; put the old text back, or begin a new run"
            )
        return corpus

    @cached_property
    def _tokenizer(self) -> tokenizers.Tokenizer:
        if self.tokenizer == "bytes":
            return tokenizers.ByteTokenizer()
        if self._home is not None:
            folder = self._home
        else:
            folder = self._files.folder if self.tokenizer == "bpe" else Path(self.tokenizer)
        found = tokenizers.load_tokenizer(folder)
        if self.vocabulary not in (None, found.identity):
            raise ValueError(
                f"{folder / tokenizers.FILE} is not the tokenizer that was trained with; put the old one back, or "
                "begin a new run"
            )
        return found

    @cached_property
    def _files(self) -> TokenFiles:
        cache = self.cache or default_cache()
        _check_apart(cache, self.data)
        corpus, size = self._corpus, self.bpe_size or BPE_SIZE
        if self.tokenizer != "bpe" or self._home is not None:
            made = self._tokenizer
            trained_here = token_folder(cache, corpus, f"bpe {size}") / tokenizers.FILE
            if not trained_here.is_file() or trained_here.read_bytes() != made.files().get(tokenizers.FILE):
                return open_token_files(cache, corpus, made.identity, made.vocab_size, lambda _: made)

        def trained(folder: Path) -> tokenizers.Tokenizer:
            content = tokenizers.train_bpe((piece.text for piece in corpus.pieces("train")), size)
            write_whole(folder / tokenizers.FILE, content)
            return tokenizers.load_tokenizer(folder)

        return open_token_files(cache, corpus, f"bpe {size}", size, trained)


def open_corpus(data: str) -> Corpus:
    """The text that `data` names, as `TextTask.data` describes."""
    if data == "stdlib":
        return stdlib_corpus()
    if data.startswith(f"{HUB}:"):
        return wikitext_from_hub(data)
    path = Path(data).expanduser()
    if path.is_dir():
        return wikitext_folder(path) if is_wikitext(path) else folder_corpus(path)
    if path.is_file():
        return single_file_corpus(path)
    raise FileNotFoundError(
        f"data={data!r} is neither a file nor a folder, nor 'stdlib' or '{HUB}:wikitext-2-raw-v1'; pass one of these"
    )


def _check_apart(cache: Path, data: str) -> None:
    """An error, if the cache lies where it would be read as text."""
    text, files = Path(data).expanduser().resolve(), cache.resolve()
    if data == "stdlib" or not text.is_dir() or is_wikitext(text) or not files.is_relative_to(text):
        return
    # Hidden folders are not read.
    if not any(name.startswith(".") for name in files.relative_to(text).parts):
        raise ValueError(
            f"cache={str(cache)!r} lies in data={data!r} and would become part of the text; pass a folder elsewhere"
        )
