"""WikiText, whose splits are given; a document is an article."""

import hashlib
import importlib
import re
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

from scannable.tasks.corpus import PIECE, Corpus, Piece, TextFile, examine, identity
from scannable.tasks.sample import Split

HUB = "Salesforce/wikitext"
CONFIGS = ("wikitext-2-raw-v1", "wikitext-103-raw-v1", "wikitext-2-v1", "wikitext-103-v1")
FILES: dict[Split, str] = {"train": "wiki.train", "validation": "wiki.valid", "test": "wiki.test"}

# " = Title = ", but not " = = Section = = ".
_HEADING = re.compile(r" = (?!= ).+(?<! =) = \s*")


def is_wikitext(folder: Path) -> bool:
    return any((folder / f"wiki.train.{ending}").is_file() for ending in ("raw", "tokens"))


def wikitext_folder(folder: Path) -> Corpus:
    """The three files that WikiText unpacks to, wiki.{train,valid,test}.raw or .tokens."""
    ending = "raw" if (folder / "wiki.train.raw").is_file() else "tokens"
    files: dict[Split, TextFile] = {}
    for split, stem in FILES.items():
        path = folder / f"{stem}.{ending}"
        if not path.is_file():
            raise FileNotFoundError(f"{path} is missing beside wiki.train.{ending}; WikiText has three such files")
        file = examine(split, path)
        if file is None:
            raise ValueError(f"{path} is not UTF-8; unpack WikiText again")
        if not file.size:
            raise ValueError(f"{path} is empty; unpack WikiText again")
        files[split] = file

    def pieces(split: Split) -> Iterator[Piece]:
        with files[split].path.open(encoding="utf-8", newline="\n") as lines:
            yield from articles(lines)

    return Corpus(
        identity((file.name, file.size, file.sha256) for file in files.values()),
        sum(file.size for file in files.values()),
        pieces,
    )


def wikitext_from_hub(data: str) -> Corpus:
    """`Salesforce/wikitext:<config>` through the package datasets, the same text as that of the files."""
    config = data.removeprefix(f"{HUB}:")
    if config not in CONFIGS:
        raise ValueError(f"data={data!r}: {HUB} has no {config!r}; it has {', '.join(CONFIGS)}")
    try:
        datasets = importlib.import_module("datasets")
    except ImportError as error:
        raise ImportError(
            f"data={data!r} needs the package datasets: pip install datasets; or unpack WikiText and pass its folder "
            "as data="
        ) from error
    loaded = datasets.load_dataset(HUB, config)

    def lines(split: Split) -> Iterator[str]:
        for batch in loaded[split].iter(batch_size=1000):
            # There blank lines are stored as nothing.
            yield from (line or " \n" for line in batch["text"])

    contents = [_examine_lines(split, lines) for split in FILES]
    return Corpus(identity(contents), sum(size for _, size, _ in contents), lambda split: articles(lines(split)))


def articles(lines: Iterable[str]) -> Iterator[Piece]:
    """One document from each title, a heading of the first level after a blank line, to the next."""
    held: list[str] = []
    size, begun, after_blank = 0, False, True
    for line in lines:
        if begun and after_blank and _HEADING.fullmatch(line):
            yield Piece("".join(held), ends=True)
            held, size, begun = [], 0, False
        held.append(line)
        size += len(line)
        after_blank = not line.strip()
        begun |= not after_blank
        if size >= PIECE:
            yield Piece("".join(held), ends=False)
            held, size = [], 0
    yield Piece("".join(held), ends=True)


def _examine_lines(split: Split, lines: Callable[[Split], Iterable[str]]) -> tuple[str, int, str]:
    digest, size = hashlib.sha256(), 0
    for line in lines(split):
        encoded = line.encode()
        digest.update(encoded)
        size += len(encoded)
    if not size:
        raise ValueError(f"the split {split!r} of {HUB} came back empty; download it again")
    return split, size, digest.hexdigest()
