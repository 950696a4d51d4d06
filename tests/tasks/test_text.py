"""Windows of text: every token once, the same each time."""

import copy
import math
import pickle
import shutil
from dataclasses import replace
from itertools import chain
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch

from scannable.storage.cache_folder import CacheError
from scannable.tasks import token_files
from scannable.tasks import tokenizer as tokenizers
from scannable.tasks.sample import IGNORED, Split, Task
from scannable.tasks.text import TextTask

SPLITS: tuple[Split, ...] = ("train", "validation", "test")
COUNT = 120


@pytest.fixture(scope="module")
def corpus(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("corpus")
    for i in range(COUNT):
        (folder / f"{i:03}.txt").write_bytes(f"Die Katze Nr. {i}: é€😀 and the cat sat.\r\n".encode() * (1 + i % 5))
    return folder


@pytest.fixture(scope="module")
def cache(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("cache")


@pytest.fixture(scope="module", params=["bytes", "bpe"])
def task(request: pytest.FixtureRequest, corpus: Path, cache: Path) -> TextTask:
    return make(corpus, cache, request.param)


def make(corpus: Path, cache: Path, tokenizer: str = "bytes", **kwargs: Any) -> TextTask:
    size = 320 if tokenizer == "bpe" else None
    return TextTask(str(corpus), tokenizer, size, cache=cache, **kwargs)


def whole(task: TextTask, split: Split) -> list[int]:
    """A split as one window."""
    count = task.counts(split).tokens
    batch = task.window_batch(split, [0], count - 1)
    return [int(batch.tokens[0, 0]), *batch.targets[0].tolist()]


def documents(task: TextTask, split: Split) -> list[str]:
    end = {"bytes": 256}.get(task.tokenizer, 0)
    found: list[list[int]] = [[]]
    for token in whole(task, split):
        if token == end:
            found.append([])
        else:
            found[-1].append(token)
    assert found.pop() == [], "the last document does not end"
    return [task.decode(tokens) for tokens in found]


def test_it_is_a_task(task: TextTask) -> None:
    assert isinstance(task, Task)
    assert task.out_size == task.vocab_size == (257 if task.tokenizer == "bytes" else 320)


def test_the_splits_hold_every_document_once_with_its_end(task: TextTask, corpus: Path) -> None:
    found = {split: documents(task, split) for split in SPLITS}
    texts = sorted(path.read_bytes().decode() for path in corpus.iterdir())
    assert sorted(chain(*found.values())) == texts
    for split in SPLITS:
        counts = task.counts(split)
        assert counts.documents == len(found[split]) > 0
        assert counts.bytes == sum(len(text.encode()) for text in found[split])


@pytest.mark.parametrize("length", [1, 7, 64, 1000])
def test_windows_score_every_token_but_the_first_once(task: TextTask, length: int) -> None:
    tokens = whole(task, "validation")
    count = task.windows("validation", length)
    batch = task.window_batch("validation", range(count), length)
    asked = batch.targets != IGNORED
    assert batch.targets[asked].tolist() == tokens[1:]
    assert batch.tokens[asked].tolist() == tokens[:-1]
    assert asked[:-1].all() and asked[-1].any()
    assert batch.tokens.shape == batch.targets.shape == (count, length)
    assert 0 <= int(batch.tokens.min()) <= int(batch.tokens.max()) < task.vocab_size
    assert batch.tokens.dtype == batch.targets.dtype == torch.int64


def test_windows_can_be_taken_in_any_order(task: TextTask) -> None:
    together = task.window_batch("test", [3, 0], 16)
    for row, index in enumerate([3, 0]):
        alone = task.window_batch("test", np.array([index]), 16)
        assert torch.equal(together.tokens[row : row + 1], alone.tokens)
        assert torch.equal(together.targets[row : row + 1], alone.targets)


def test_a_window_that_does_not_exist_is_refused(task: TextTask) -> None:
    count = task.windows("test", 16)
    with pytest.raises(
        ValueError, match=rf"window {count} of 'test' is not in 0 \.\. {count - 1}, all there are of length=16"
    ):
        task.window_batch("test", [0, count], 16)
    with pytest.raises(ValueError, match="index -1 is not in"):
        task.window_batch("test", [-1], 16)


def test_a_sample_is_a_window_of_the_text(task: TextTask) -> None:
    text = " ".join(map(str, whole(task, "train")))
    batch = task.batch("train", range(50), 20)
    assert torch.equal(batch.tokens[:, 1:], batch.targets[:, :-1])
    for tokens, last in zip(batch.tokens.tolist(), batch.targets[:, -1].tolist(), strict=True):
        assert " ".join(map(str, [*tokens, last])) in text
    assert batch.tokens.dtype == batch.targets.dtype == torch.int64


def test_a_sample_is_a_function_of_seed_split_and_index(corpus: Path, cache: Path) -> None:
    task = make(corpus, cache)
    together = task.batch("train", [5, 2, 5, 10**12], 30)
    again = make(corpus, cache)
    for row, index in enumerate([5, 2, 5, 10**12]):
        alone = again.batch("train", np.array([index]), 30)
        assert torch.equal(together.tokens[row : row + 1], alone.tokens)
        assert torch.equal(together.targets[row : row + 1], alone.targets)
    indices = range(200)
    assert not torch.equal(
        make(corpus, cache, seed=1).batch("train", indices, 30).tokens, task.batch("train", indices, 30).tokens
    )
    assert task.batch("train", [], 30).tokens.shape == (0, 30)


def test_splits_are_sampled_at_different_places(tmp_path: Path) -> None:
    for name in ("train", "valid", "test"):
        (tmp_path / f"wiki.{name}.raw").write_text(" ".join(map(str, range(1000))))
    task = make(tmp_path, tmp_path / "cache")
    train, validation, test = (task.batch(split, range(10), 30).tokens for split in SPLITS)
    assert not torch.equal(train, validation) and not torch.equal(train, test) and not torch.equal(validation, test)


def test_every_place_is_sampled_the_last_one_too(corpus: Path, cache: Path) -> None:
    task = make(corpus, cache)
    length = task.counts("test").tokens - 3
    seen = {tuple(row) for row in task.batch("test", range(200), length).targets.tolist()}
    tokens = whole(task, "test")
    assert seen == {tuple(tokens[start + 1 : start + 1 + length]) for start in range(3)}


def test_too_short_a_split_is_named(task: TextTask) -> None:
    count = task.counts("test").tokens
    task.batch("test", [0], count - 1)
    with pytest.raises(
        ValueError, match=rf"'test' holds {count:,} tokens, but a sample of length={count} needs {count + 1:,}; take"
    ):
        task.batch("test", [0], count)


def test_bits_per_byte_are_the_bits_of_all_tokens_over_the_bytes_of_the_text(task: TextTask) -> None:
    # A model that knows nothing spends log2(vocabulary) on each token.
    loss = math.log(task.vocab_size)
    counts = task.counts("validation")
    bits = math.log2(task.vocab_size) * sum(
        int((task.window_batch("validation", [i], 32).targets != IGNORED).sum())
        for i in range(task.windows("validation", 32))
    )
    assert loss / math.log(2) / task.bytes_per_token("validation") == pytest.approx(bits / counts.bytes, rel=1e-12)


def test_tokenizers_differ_in_tokens_but_not_in_bytes(corpus: Path, cache: Path) -> None:
    plain, bpe = make(corpus, cache), make(corpus, cache, "bpe")
    for split in SPLITS:
        assert plain.counts(split).bytes == bpe.counts(split).bytes
        assert plain.counts(split).tokens == plain.counts(split).bytes + plain.counts(split).documents
        assert 0.95 < plain.bytes_per_token(split) < 1.05
        assert bpe.bytes_per_token(split) > 2


def test_text_survives(task: TextTask) -> None:
    text = "Ein neuer Text: ñ 𝄞 <|endoftext|>\n"
    assert task.decode(task.encode(text)) == text
    assert "".join(task.decode_stream(task.encode(text))) == text


def test_files_hold_two_bytes_a_token_or_four(
    corpus: Path, cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    plain, large = make(corpus, cache), make(corpus, tmp_path)
    assert (plain._files.folder / "test.bin").stat().st_size == 2 * plain.counts("test").tokens
    monkeypatch.setattr(tokenizers.ByteTokenizer, "vocab_size", 2**16 + 1)
    assert (large._files.folder / "test.bin").stat().st_size == 4 * plain.counts("test").tokens
    assert whole(plain, "test") == whole(large, "test")


def test_tokens_of_the_tokenizer_that_a_run_keeps_are_those_that_are_there(
    corpus: Path, cache: Path, tmp_path: Path
) -> None:
    bpe = make(corpus, cache, "bpe")
    bpe.keep(tmp_path)
    assert bpe.kept(tmp_path)._files.folder == bpe._files.folder
    # Where another one of that size has been trained since, it has its own.
    elsewhere = tmp_path / "cache"
    folder = token_files.token_folder(elsewhere, bpe._corpus, f"bpe {bpe.bpe_size}")
    folder.mkdir(parents=True)
    (folder / "tokenizer.json").write_text("{}")
    other = replace(bpe, cache=elsewhere).kept(tmp_path)
    assert other._files.folder.name != bpe._files.folder.name
    assert whole(other, "test") == whole(bpe, "test")


def test_a_folder_with_a_tokenizer_is_used_as_it_is(corpus: Path, cache: Path, tmp_path: Path) -> None:
    bpe = make(corpus, cache, "bpe")
    shutil.copy(bpe._files.folder / "tokenizer.json", tmp_path)
    other = make(corpus, tmp_path / "cache", str(tmp_path))
    assert other.vocab_size == bpe.vocab_size
    for split in SPLITS:
        assert whole(other, split) == whole(bpe, split)
        assert other.counts(split) == bpe.counts(split)


def test_the_bpe_is_trained_on_the_training_split_alone(tmp_path: Path) -> None:
    text = "ab" * 500 + " " + "xyz" * 20
    (tmp_path / "book.txt").write_text(text)
    task = TextTask(str(tmp_path / "book.txt"), "bpe", 1000, cache=tmp_path / "cache")
    assert len(task.encode("abab")) < 4
    assert len(task.encode("xyz")) == 3


def test_tokens_are_computed_once(corpus: Path, cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    first = make(corpus, cache, "bpe")
    tokens = whole(first, "test")
    monkeypatch.setattr(tokenizers, "train_bpe", None)
    monkeypatch.setattr(token_files, "_write", None)
    assert whole(make(corpus, cache, "bpe", seed=7), "test") == tokens


def test_changed_text_gives_other_files(corpus: Path, tmp_path: Path) -> None:
    shutil.copytree(corpus, tmp_path / "text")
    before = make(tmp_path / "text", tmp_path / "cache")
    counts = before.counts("train")
    path = next(
        path
        for path in sorted((tmp_path / "text").iterdir())
        if path.read_bytes().decode() in "".join(documents(before, "train"))
    )
    path.write_text("something else")
    after = make(tmp_path / "text", tmp_path / "cache")
    assert "something else" in documents(after, "train")
    assert before.counts("train") == counts
    assert len(list((tmp_path / "cache").iterdir())) == 2


@pytest.mark.parametrize("tokenizer", ["bytes", "bpe"])
def test_damaged_files_are_built_again_with_a_warning(corpus: Path, tmp_path: Path, tokenizer: str) -> None:
    task = make(corpus, tmp_path, tokenizer)
    tokens, folder = whole(task, "validation"), task._files.folder
    for file in sorted(folder.iterdir()):
        good = file.read_bytes()
        for bad in (good[:-2], bytes([good[0] ^ 1]) + good[1:]):
            file.write_bytes(bad)
            with pytest.warns(UserWarning, match="it is built again"):
                assert whole(make(corpus, tmp_path, tokenizer), "validation") == tokens
            assert file.read_bytes() == good
    assert list(tmp_path.iterdir()) == [folder]


def test_a_build_that_dies_half_way_leaves_nothing(
    corpus: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    encode, calls = tokenizers.ByteTokenizer.encode, []

    def dying(self: tokenizers.ByteTokenizer, text: str) -> Any:
        calls.append(text)
        if len(calls) == COUNT // 2:
            raise KeyboardInterrupt
        return encode(self, text)

    monkeypatch.setattr(tokenizers.ByteTokenizer, "encode", dying)
    with pytest.raises(KeyboardInterrupt):
        make(corpus, tmp_path).counts("train")
    assert len(calls) == COUNT // 2 and not list(tmp_path.iterdir())
    assert make(corpus, tmp_path).counts("train").documents > 50


def test_files_are_mapped_and_cannot_be_written(corpus: Path, cache: Path) -> None:
    for tokens in make(corpus, cache)._files.tokens.values():
        assert isinstance(tokens, np.memmap) and not tokens.flags.writeable


class Usage(NamedTuple):
    free: int


def test_a_disk_without_room_is_named_before_anything_is_written(
    corpus: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(shutil, "disk_usage", lambda _: Usage(10_000))
    with pytest.raises(CacheError, match=r"token files may take 0\.0 MiB, but .* has 0\.0 MiB left; make room"):
        make(corpus, tmp_path).batch("train", [0], 10)
    assert not list(tmp_path.iterdir())


def test_a_cache_within_the_text_is_refused(corpus: Path, tmp_path: Path) -> None:
    shutil.copytree(corpus, tmp_path / "text")
    with pytest.raises(
        ValueError, match=r"cache='.*/text/cache' lies in data='.*/text' and would become part of the text; pass"
    ):
        make(tmp_path / "text", tmp_path / "text" / "cache").counts("train")
    task = make(tmp_path / "text", tmp_path / "text" / ".cache")
    assert task.counts("train") == make(tmp_path / "text", tmp_path / "text" / ".cache").counts("train")


def test_a_task_goes_to_another_process_as_its_fields(corpus: Path, cache: Path) -> None:
    task = make(corpus, cache)
    batch = task.batch("train", [1], 30)
    content = pickle.dumps(task)
    assert len(content) < 1000
    for other in (pickle.loads(content), copy.deepcopy(task)):
        assert other == task and hash(other) == hash(task)
        assert torch.equal(other.batch("train", [1], 30).tokens, batch.tokens)


@pytest.mark.parametrize(
    ("kwargs", "message"),
    [
        ({"bpe_size": 300}, "bpe_size=300 is for tokenizer='bpe', not 'bytes'; drop one"),
        ({"tokenizer": "bpe", "bpe_size": 256}, "bpe_size=256 must be a whole number of at least 257: every byte and"),
        ({"tokenizer": "bpe", "bpe_size": 300.0}, r"bpe_size=300\.0 is no int"),
        ({"seed": -1}, "seed=-1 must be a whole number"),
    ],
)
def test_wrong_choices_are_named(kwargs: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        TextTask(**kwargs)


def test_wrong_questions_are_named(corpus: Path, cache: Path) -> None:
    task = make(corpus, cache)
    wrong: Any = "dev"
    for ask in (task.counts, task.bytes_per_token):
        with pytest.raises(ValueError, match="split='dev' is none of"):
            ask(wrong)
    for ask in (task.batch, task.window_batch):
        with pytest.raises(ValueError, match="split='dev' is none of"):
            ask(wrong, [0], 5)
        with pytest.raises(ValueError, match="length=0 must be a whole number"):
            ask("train", [0], 0)


def test_the_standard_library_is_a_corpus(tmp_path: Path) -> None:
    task = TextTask(cache=tmp_path)
    assert task.counts("train").bytes > 5_000_000
    assert min(task.counts(split).documents for split in SPLITS) > 10
    text = task.decode(whole(task, "validation"))
    assert text.count("\ndef ") > 10
    assert len(text.encode()) == task.counts("validation").bytes


def test_without_a_cache_named_the_users_is_taken(
    corpus: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    TextTask(str(corpus)).counts("train")
    assert [path.name[:5] for path in (tmp_path / "scannable").iterdir()] == ["text-"]
