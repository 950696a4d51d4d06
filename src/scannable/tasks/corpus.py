"""Documents, and the split each belongs to."""

import codecs
import hashlib
import json
import os
import sysconfig
import warnings
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from itertools import accumulate
from pathlib import Path
from typing import NamedTuple

from scannable.tasks.sample import Split

PIECE = 2**20
"""Bytes of text held at once. A longer document comes in pieces cut at ends of lines, where there are any."""

NOT_STDLIB = frozenset({"test", "tests", "idle_test", "site-packages", "dist-packages"})
"""Folders beside the standard library, or of its tests."""


class Piece(NamedTuple):
    """A part of a document."""

    text: str
    ends: bool
    """Whether the document ends here."""


@dataclass(frozen=True)
class Corpus:
    """Text in three splits."""

    identity: str
    """A SHA-256 of names, sizes and content."""
    size: int
    """Bytes of UTF-8 in all splits together."""
    pieces: Callable[[Split], Iterator[Piece]]
    """The documents of a split, one after another."""


class TextFile(NamedTuple):
    """A file that is UTF-8 throughout."""

    name: str
    path: Path
    size: int
    sha256: str


class Part(NamedTuple):
    """A document: a file, or what lies between two of its bytes."""

    path: Path
    start: int
    stop: int


def stdlib_corpus() -> Corpus:
    """The sources of the standard library of the Python that runs this, without its tests; a file is a document.

    Each version of Python has others, so that numbers compare only within one.
    """
    root = Path(sysconfig.get_path("stdlib"))
    names = [name for name in _names(root, NOT_STDLIB) if name.endswith(".py")]
    return _file_corpus(root, names)


def folder_corpus(root: Path) -> Corpus:
    """All files in the folder and those within it, but for hidden ones; a file is a document."""
    return _file_corpus(root, _names(root))


def single_file_corpus(path: Path) -> Corpus:
    """One file: one document, cut into its first 90%, the next 5% and the last 5%."""
    return _file_corpus(path.parent, [path.name])


def identity(contents: Iterable[tuple[str, int, str]]) -> str:
    """A hash of (name, size, hash of the content), one after another."""
    return hashlib.sha256(json.dumps(list(contents)).encode()).hexdigest()


def examine(name: str, path: Path) -> TextFile | None:
    """Read a file once, without holding it; None if it is not UTF-8."""
    digest, size = hashlib.sha256(), 0
    decoder = codecs.getincrementaldecoder("utf-8")()
    with path.open("rb") as file:
        try:
            while chunk := file.read(PIECE):
                decoder.decode(chunk)
                digest.update(chunk)
                size += len(chunk)
            decoder.decode(b"", final=True)
        except UnicodeDecodeError:
            return None
    return TextFile(name, path, size, digest.hexdigest())


def split_of(name: str) -> Split:
    """The split of the document with this name: 90% train, 5% validation, 5% test, whatever other documents exist."""
    digest = hashlib.blake2b(name.encode("utf-8", "surrogateescape"), digest_size=8, key=b"scannable split").digest()
    share = int.from_bytes(digest) / 2**64
    return "train" if share < 0.9 else "validation" if share < 0.95 else "test"


def split_files(files: list[TextFile]) -> dict[Split, list[Part]]:
    """Each document in the split its name asks for. If that leaves a split without any, the documents are too few:
    then all of them in a row are cut at 90% and 95% of their bytes, through a document if need be.
    """
    parts: dict[Split, list[Part]] = {"train": [], "validation": [], "test": []}
    for file in files:
        parts[split_of(file.name)].append(Part(file.path, 0, file.size))
    if all(parts.values()):
        return parts
    starts = list(accumulate((file.size for file in files), initial=0))
    cuts = [0, *(_character_start(files, starts, starts[-1] * share // 20) for share in (18, 19)), starts[-1]]
    for split, low, high in zip(parts, cuts, cuts[1:], strict=False):
        spans = [
            Part(file.path, max(low - start, 0), min(high - start, file.size))
            for file, start in zip(files, starts, strict=False)
        ]
        parts[split] = [span for span in spans if span.start < span.stop]
    return parts


def _names(root: Path, without: frozenset[str] = frozenset()) -> list[str]:
    """The files of a folder and of those within it, as sorted relative names with slashes; hidden ones left out, and
    folders called as in `without`.
    """
    found = []
    for folder, folders, files in os.walk(root):
        folders[:] = [name for name in folders if not name.startswith(".") and name not in without]
        paths = [Path(folder, name) for name in files if not name.startswith(".")]
        found += [path.relative_to(root).as_posix() for path in paths if path.is_file()]
    return sorted(found)


def _file_corpus(root: Path, names: list[str]) -> Corpus:
    examined = {name: examine(name, root / name) for name in names}
    skipped = [name for name, file in examined.items() if file is None]
    if skipped:
        warnings.warn(
            f"{len(skipped):,} of {len(names):,} files in {root} are not UTF-8 and were left out, the first "
            f"{skipped[0]!r}",
            stacklevel=2,
        )
    files = [file for file in examined.values() if file is not None and file.size]
    if not files:
        raise ValueError(
            f"{root} holds no text: of {len(names):,} files {len(skipped):,} are not UTF-8 and the others empty; pass "
            "a file or a folder with text as data="
        )
    parts = split_files(files)
    for split, some in parts.items():
        if not some:
            size = sum(file.size for file in files)
            raise ValueError(f"{root} holds {size} bytes of text, which leaves none for {split!r}; pass more text")
    return Corpus(
        identity((file.name, file.size, file.sha256) for file in files),
        sum(file.size for file in files),
        lambda split: (piece for part in parts[split] for piece in _pieces(part)),
    )


def _character_start(files: list[TextFile], starts: list[int], position: int) -> int:
    """The first byte at or after `position`, of all files in a row, that begins a character."""
    for file, start in zip(files, starts, strict=False):
        if start <= position < start + file.size:
            with file.path.open("rb") as content:
                content.seek(position - start)
                following = content.read(4)
            return position + next((i for i, byte in enumerate(following) if byte & 0xC0 != 0x80), len(following))
    return position


def _pieces(part: Part) -> Iterator[Piece]:
    decoder = codecs.getincrementaldecoder("utf-8")()
    held, left = "", part.stop - part.start
    with part.path.open("rb") as file:
        file.seek(part.start)
        while left:
            chunk = file.read(min(left, PIECE))
            if not chunk:
                raise ValueError(f"{part.path} became shorter while it was read; try again when nothing writes to it")
            left -= len(chunk)
            held += decoder.decode(chunk, final=not left)
            cut = (held.rfind("\n") + 1 or len(held)) if left else len(held)
            yield Piece(held[:cut], ends=not left)
            held = held[cut:]
