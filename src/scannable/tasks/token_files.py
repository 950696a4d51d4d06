"""A corpus as tokens on disk: one file a split, mapped into memory when it is read."""

import hashlib
import json
from collections.abc import Callable, Iterable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from scannable.storage.cache_folder import check_space, open_cached
from scannable.tasks.corpus import Corpus, Piece
from scannable.tasks.sample import Split
from scannable.tasks.tokenizer import Tokenizer

FORMAT = "text-1"
"""Changes when the same text would give other files: rules for splits, documents or tokens."""
SPLITS: tuple[Split, ...] = ("train", "validation", "test")


@dataclass(frozen=True)
class Counts:
    """How much a split holds."""

    documents: int
    tokens: int
    bytes: int
    """Of the text as UTF-8, whatever a tokenizer makes of it."""


@dataclass(frozen=True, eq=False)
class TokenFiles:
    """The tokens of each split, documents one after another, each with the end-of-document token behind it."""

    folder: Path
    tokens: dict[Split, NDArray[np.integer]]
    counts: dict[Split, Counts]


def open_token_files(
    cache: Path, corpus: Corpus, identity: str, vocab_size: int, tokenizer: Callable[[Path], Tokenizer]
) -> TokenFiles:
    """The token files of a corpus in `cache`, built if need be.

    Args:
        identity: different for tokenizers that differ.
        vocab_size: tokens of the tokenizer, or more.
        tokenizer: called when the files are built, with a folder in which it may leave files.
    """
    dtype = np.dtype("<u2" if vocab_size <= 2**16 else "<u4")

    def build(folder: Path) -> dict[str, Any]:
        # No piece of text gives more tokens than it has bytes; a sixteenth more for the ends of documents.
        check_space(folder, (corpus.size + corpus.size // 16) * dtype.itemsize)
        made = tokenizer(folder)
        written = {split: _write(folder / f"{split}.bin", corpus.pieces(split), made, dtype) for split in SPLITS}
        return {"dtype": dtype.str, "splits": {split: asdict(counts) for split, counts in written.items()}}

    folder = token_folder(cache, corpus, identity)
    about = open_cached(folder, build)
    return TokenFiles(
        folder,
        {split: np.memmap(folder / f"{split}.bin", about["dtype"], mode="r") for split in SPLITS},
        {split: Counts(**about["splits"][split]) for split in SPLITS},
    )


def token_folder(cache: Path, corpus: Corpus, identity: str) -> Path:
    """Where the token files of a corpus are, or would be."""
    key = hashlib.sha256(json.dumps([FORMAT, corpus.identity, identity]).encode()).hexdigest()
    return cache / f"text-{key[:32]}"


def _write(path: Path, pieces: Iterable[Piece], tokenizer: Tokenizer, dtype: np.dtype) -> Counts:
    end = np.array([tokenizer.end], dtype).tobytes()
    documents = tokens = size = 0
    with path.open("wb") as file:
        for text, ends in pieces:
            encoded = tokenizer.encode(text).astype(dtype)
            file.write(encoded.tobytes())
            tokens += len(encoded)
            size += len(text.encode())
            if ends:
                file.write(end)
                documents += 1
    return Counts(documents, tokens + documents, size)
