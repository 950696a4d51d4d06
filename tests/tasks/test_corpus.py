"""Every document is in one split, and stays there."""

import os
import sys
from collections.abc import Iterator
from itertools import chain
from pathlib import Path
from types import ModuleType

import pytest

from scannable.tasks import corpus as corpora
from scannable.tasks.corpus import Corpus, Piece, folder_corpus, single_file_corpus, split_of, stdlib_corpus
from scannable.tasks.sample import Split
from scannable.tasks.text import open_corpus
from scannable.tasks.wikitext import articles, wikitext_folder

SPLITS: tuple[Split, ...] = ("train", "validation", "test")
ARTICLES: dict[Split, list[str]] = {
    "train": [
        " \n = One = \n \n It began . \n \n = = History = = \n \n where x \n = y = \n \n",
        " = A = B = \n \n The é second . \n",
    ],
    "validation": [" \n = Two = \n \n Quiet . \n"],
    "test": [" \n = Three = \n \n Last . \n", " \n"],
}
WIKITEXT = {split: "".join(texts) for split, texts in ARTICLES.items()}


def documents(corpus: Corpus, split: Split) -> list[str]:
    found, held = [], ""
    for text, ends in corpus.pieces(split):
        held += text
        if ends:
            found.append(held)
            held = ""
    assert not held, "the last document does not end"
    return found


def write(folder: Path, count: int) -> list[str]:
    texts = [f"document {i}: {'é€😀'[i % 3]} \r\n\n" for i in range(count)]
    for i, text in enumerate(texts):
        path = folder / f"part{i % 3}" / f"{i:03}.txt"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(text.encode())
    return texts


def write_wikitext(folder: Path, ending: str = "raw") -> Path:
    for name, text in zip(("train", "valid", "test"), WIKITEXT.values(), strict=True):
        (folder / f"wiki.{name}.{ending}").write_bytes(text.encode())
    return folder


def test_every_document_is_in_exactly_one_split(tmp_path: Path) -> None:
    texts = write(tmp_path, 300)
    corpus = folder_corpus(tmp_path)
    found = [documents(corpus, split) for split in SPLITS]
    assert sorted(chain(*found)) == sorted(texts)
    assert [len(some) for some in found] == [274, 13, 13], "the hash of names decides, and never changes"
    assert corpus.size == sum(len(text.encode()) for text in texts)


def test_names_fall_into_the_splits_in_their_shares() -> None:
    found = [split_of(f"some/name-{i}") for i in range(20_000)]
    assert [round(found.count(split) / 20_000, 2) for split in SPLITS] == [0.90, 0.05, 0.05]


def test_a_document_stays_in_its_split_when_others_are_added(tmp_path: Path) -> None:
    write(tmp_path, 200)
    before = folder_corpus(tmp_path)
    write(tmp_path, 300)
    (tmp_path / "0-first-in-order.txt").write_text("new")
    after = folder_corpus(tmp_path)
    for split in SPLITS:
        assert set(documents(before, split)) <= set(documents(after, split))
    assert before.identity != after.identity


def test_the_identity_is_that_of_names_and_content_wherever_they_lie(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("a", "b", "c"):
        write(tmp_path / name, 60)
    (tmp_path / "b" / "part0" / "000.txt").write_text("changed")
    (tmp_path / "c" / "part0" / "000.txt").rename(tmp_path / "c" / "part0" / "moved.txt")
    first, changed, renamed = (folder_corpus(tmp_path / name).identity for name in ("a", "b", "c"))
    assert len({first, changed, renamed}) == 3
    (tmp_path / "c" / "part0" / "moved.txt").rename(tmp_path / "c" / "part0" / "000.txt")
    assert folder_corpus(tmp_path / "c").identity == first
    walk = os.walk
    monkeypatch.setattr(os, "walk", lambda root: [(at, within, files[::-1]) for at, within, files in walk(root)][::-1])
    assert folder_corpus(tmp_path / "c").identity == first, "the order of a filesystem is of no account"


@pytest.mark.parametrize("count", [1, 2, 5])
def test_few_documents_are_cut_into_contiguous_parts(tmp_path: Path, count: int) -> None:
    names = [name for name in map(str, range(20)) if split_of(name) == "train"][:count]
    for i, name in enumerate(sorted(names)):
        (tmp_path / name).write_text("é€😀x" * (50 + i))
    corpus = folder_corpus(tmp_path)
    joined = ["".join(documents(corpus, split)) for split in SPLITS]
    assert "".join(joined) == "".join("é€😀x" * (50 + i) for i in range(count))
    sizes = [len(text.encode()) for text in joined]
    for size, share in zip(sizes, (0.9, 0.05, 0.05), strict=True):
        assert abs(size - share * sum(sizes)) <= 4, "cut further from its place than the next character"


def test_one_file_is_one_document_in_three_parts(tmp_path: Path) -> None:
    text = "".join(f"line {i}\n\n" for i in range(1000))
    (tmp_path / "book.txt").write_text(text)
    corpus = single_file_corpus(tmp_path / "book.txt")
    found = [documents(corpus, split) for split in SPLITS]
    assert [len(some) for some in found] == [1, 1, 1]
    assert "".join(chain(*found)) == text


def test_a_long_document_comes_in_pieces_cut_at_ends_of_lines(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(corpora, "PIECE", 100)
    text = "".join(f"zeile über {i}\n" for i in range(200)) + "😀" * 500
    (tmp_path / "book.txt").write_text(text)
    corpus = single_file_corpus(tmp_path / "book.txt")
    pieces = [piece for split in SPLITS for piece in corpus.pieces(split)]
    assert "".join(piece.text for piece in pieces) == text
    assert max(len(piece.text.encode()) for piece in pieces) <= 200
    assert [piece.text.endswith("\n") for piece in pieces[:20]] == [True] * 20
    assert sum(piece.ends for piece in pieces) == 3


def test_files_that_are_not_text_are_left_out_and_counted(tmp_path: Path) -> None:
    texts = write(tmp_path, 100)
    (tmp_path / "image.png").write_bytes(b"\x89PNG\xff")
    (tmp_path / "half.txt").write_bytes("é".encode()[:1])
    (tmp_path / "empty.txt").write_bytes(b"")
    (tmp_path / ".hidden").write_text("hidden")
    (tmp_path / ".git").mkdir()
    (tmp_path / ".git" / "HEAD").write_text("hidden")
    with pytest.warns(
        UserWarning, match=r"2 of 103 files in .* are not UTF-8 and were left out, the first 'half\.txt'"
    ):
        corpus = folder_corpus(tmp_path)
    assert sorted(chain(*(documents(corpus, split) for split in SPLITS))) == sorted(texts)


def test_a_corpus_without_text_is_refused(tmp_path: Path) -> None:
    with pytest.raises(
        ValueError, match=r"holds no text: of 0 files 0 are not UTF-8 and the others empty; pass a file"
    ):
        folder_corpus(tmp_path)
    (tmp_path / "empty.txt").write_bytes(b"")
    with pytest.raises(ValueError, match="holds no text: of 1 files 0 are not UTF-8"):
        folder_corpus(tmp_path)
    (tmp_path / "tiny.txt").write_bytes(b"abc")
    with pytest.raises(ValueError, match="holds 3 bytes of text, which leaves none for 'validation'; pass more text"):
        folder_corpus(tmp_path)


def test_a_file_that_shrinks_or_breaks_while_it_is_read_is_noticed(tmp_path: Path) -> None:
    (tmp_path / "log.txt").write_text("line\n" * 100)
    corpus = folder_corpus(tmp_path)
    (tmp_path / "log.txt").write_text("line\n")
    with pytest.raises(ValueError, match=r"log\.txt became shorter while it was read; try again"):
        documents(corpus, "train")
    (tmp_path / "log.txt").write_bytes(b"line\n" * 89 + b"line\xc3" + b"line\n" * 10)
    with pytest.raises(UnicodeDecodeError):
        documents(corpus, "train")


def test_data_that_is_nowhere_is_named(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match="nowhere' is neither a file nor a folder, nor 'stdlib' or"):
        open_corpus(str(tmp_path / "nowhere"))


def test_the_standard_library_comes_without_its_tests() -> None:
    corpus = stdlib_corpus()
    heads = {split: [piece.text[:2000] for piece in corpus.pieces(split)] for split in SPLITS}
    assert all(len(some) > 10 for some in heads.values())
    assert corpus.size > 5_000_000
    assert not any("import unittest\nfrom test" in head for some in heads.values() for head in some)


@pytest.mark.parametrize("ending", ["raw", "tokens"])
def test_a_wikitext_folder_keeps_its_splits_and_its_articles(tmp_path: Path, ending: str) -> None:
    corpus = open_corpus(str(write_wikitext(tmp_path, ending)))
    for split in SPLITS:
        assert "".join(documents(corpus, split)) == WIKITEXT[split]
    assert documents(corpus, "train") == ARTICLES["train"]
    assert documents(corpus, "validation") == ARTICLES["validation"]
    assert corpus.size == sum(len(text.encode()) for text in WIKITEXT.values())


def test_a_long_article_comes_in_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("scannable.tasks.wikitext.PIECE", 10)
    assert list(articles([" = A = \n", " \n", " 23456789\n", " \n", " = B = \n"])) == [
        Piece(" = A = \n \n", False),
        Piece(" 23456789\n", False),
        Piece(" \n", True),
        Piece(" = B = \n", True),
    ]


def test_an_incomplete_wikitext_folder_is_refused(tmp_path: Path) -> None:
    write_wikitext(tmp_path)
    (tmp_path / "wiki.test.raw").write_bytes(b"\xff")
    with pytest.raises(ValueError, match=r"wiki\.test\.raw is not UTF-8; unpack WikiText again"):
        wikitext_folder(tmp_path)
    (tmp_path / "wiki.test.raw").write_bytes(b"")
    with pytest.raises(ValueError, match=r"wiki\.test\.raw is empty; unpack WikiText again"):
        wikitext_folder(tmp_path)
    (tmp_path / "wiki.test.raw").unlink()
    with pytest.raises(
        FileNotFoundError, match=r"wiki\.test\.raw is missing beside wiki\.train\.raw; WikiText has three"
    ):
        wikitext_folder(tmp_path)


class FakeDataset:
    """Rows as the hub has them: a line each, and blank lines as nothing."""

    def __init__(self, text: str) -> None:
        self.rows = ["" if line == " \n" else line for line in text.splitlines(keepends=True)]

    def iter(self, batch_size: int) -> Iterator[dict[str, list[str]]]:
        for start in range(0, len(self.rows), batch_size):
            yield {"text": self.rows[start : start + batch_size]}


def test_wikitext_from_the_hub_is_the_same_text_as_that_of_the_files(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = []

    def load_dataset(*names: str) -> dict[str, FakeDataset]:
        asked.append(names)
        return {split: FakeDataset(text) for split, text in WIKITEXT.items()}

    fake = ModuleType("datasets")
    vars(fake)["load_dataset"] = load_dataset
    monkeypatch.setitem(sys.modules, "datasets", fake)
    corpus, files = open_corpus("Salesforce/wikitext:wikitext-2-raw-v1"), wikitext_folder(write_wikitext(tmp_path))
    assert asked == [("Salesforce/wikitext", "wikitext-2-raw-v1")]
    assert (corpus.identity, corpus.size) == (files.identity, files.size)
    for split in SPLITS:
        assert documents(corpus, split) == documents(files, split)


def test_an_empty_split_from_the_hub_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    fake = ModuleType("datasets")
    vars(fake)["load_dataset"] = lambda *_: dict.fromkeys(SPLITS, FakeDataset(""))
    monkeypatch.setitem(sys.modules, "datasets", fake)
    with pytest.raises(ValueError, match="the split 'train' of Salesforce/wikitext came back empty; download it again"):
        open_corpus("Salesforce/wikitext:wikitext-2-raw-v1")


def test_without_datasets_the_error_says_how_to_get_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "datasets", None)
    with pytest.raises(ImportError, match="needs the package datasets: pip install datasets; or unpack WikiText"):
        open_corpus("Salesforce/wikitext:wikitext-103-raw-v1")


def test_an_unknown_wikitext_is_refused() -> None:
    with pytest.raises(ValueError, match="has no 'wikitext-3'; it has wikitext-2-raw-v1, wikitext-103-raw-v1"):
        open_corpus("Salesforce/wikitext:wikitext-3")
