"""Text becomes tokens and the same text again."""

import json
import sys
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from scannable.tasks.tokenizer import (
    ByteTokenizer,
    FileTokenizer,
    Tokenizer,
    decode_stream,
    load_tokenizer,
    train_bpe,
)

TEXTS = ["the cat and the dog and the cat\n" * 20, "über die Brücke, 42 € 😀\n" * 10, "<|endoftext|> is no end\n" * 3]


@pytest.fixture(scope="module")
def bpe(tmp_path_factory: pytest.TempPathFactory) -> FileTokenizer:
    folder = tmp_path_factory.mktemp("bpe")
    (folder / "tokenizer.json").write_bytes(train_bpe(TEXTS, 300))
    return load_tokenizer(folder)


@pytest.fixture(params=["bytes", "bpe"])
def tokenizer(request: pytest.FixtureRequest) -> Tokenizer:
    return ByteTokenizer() if request.param == "bytes" else request.getfixturevalue("bpe")


@settings(max_examples=100, deadline=None)
@given(text=st.text(st.characters(exclude_categories=["Cs"])) | st.sampled_from(TEXTS))
def test_text_survives(bpe: FileTokenizer, text: str) -> None:
    for tokenizer in (ByteTokenizer(), bpe):
        tokens = tokenizer.encode(text)
        assert tokenizer.decode(tokens) == text
        assert tokenizer.decode([*tokens, tokenizer.end]) == text
        assert tokenizer.end not in tokens
        assert "".join(decode_stream(tokenizer.decode, tokens)) == text


@settings(max_examples=200, deadline=None)
@given(tokens=st.lists(st.integers(0, 256)))
def test_a_stream_of_any_tokens_joins_to_what_they_decode_to(bpe: FileTokenizer, tokens: list[int]) -> None:
    for tokenizer in (ByteTokenizer(), bpe):
        assert "".join(decode_stream(tokenizer.decode, tokens)) == tokenizer.decode(tokens)


def test_a_character_split_over_tokens_waits_for_its_rest(tokenizer: Tokenizer) -> None:
    tokens = tokenizer.encode("a𝄞b").tolist()  # no BPE has merged the four bytes of this character
    assert len(tokens) == 6
    shown, fed = [], []

    def feed():
        for token in tokens:
            fed.append(token)
            yield token

    for text in decode_stream(tokenizer.decode, feed()):
        shown.append((len(fed), text))
    assert shown == [(1, "a"), (5, "𝄞"), (6, "b")]
    assert tokenizer.decode(tokens[:3]) == "a\ufffd", "half a character does not raise"
    assert list(decode_stream(tokenizer.decode, tokens[:3])) == ["a", "\ufffd"]


def test_a_foreign_token_is_refused(tokenizer: Tokenizer) -> None:
    for token in (-1, tokenizer.vocab_size):
        with pytest.raises(
            ValueError, match=rf"token {token} is outside the vocabulary of {tokenizer.vocab_size}; is this"
        ):
            tokenizer.decode([5, token])


def test_bpe_is_trained_the_same_each_time() -> None:
    assert train_bpe(TEXTS, 290) == train_bpe(iter(TEXTS), 290)


def test_bpe_has_the_size_asked_for_or_as_much_as_the_text_gives(tmp_path: Path, bpe: FileTokenizer) -> None:
    assert bpe.vocab_size == 300
    (tmp_path / "tokenizer.json").write_bytes(train_bpe(["abab"], 1000))
    assert load_tokenizer(tmp_path).vocab_size == 257 + 1, "one pair occurs twice"
    assert len(bpe.encode(TEXTS[0])) < len(TEXTS[0]) / 3


def gpt2(folder: Path, **tokens: str) -> Path:
    """A file as GPT-2's: the vocabulary first, and the end of a text last. Others also cut, fill up and wrap texts."""
    content = json.loads(train_bpe(TEXTS, 270))
    vocabulary = content["model"]["vocab"]
    end = vocabulary.pop("<|endoftext|>")
    name = tokens.get("end", "<|endoftext|>")
    content["model"]["vocab"] = {token: i - (i > end) for token, i in vocabulary.items()}
    content["added_tokens"] = [{**content["added_tokens"][0], "id": len(vocabulary), "content": name}]
    content["truncation"] = {"direction": "Right", "max_length": 4, "strategy": "LongestFirst", "stride": 0}
    content["padding"] = {
        "strategy": {"Fixed": 50},
        "direction": "Right",
        "pad_to_multiple_of": None,
        "pad_id": 3,
        "pad_type_id": 0,
        "pad_token": "#",
    }
    pieces = [{"SpecialToken": {"id": name, "type_id": 0}}, {"Sequence": {"id": "A", "type_id": 0}}]
    content["post_processor"] = {
        "type": "TemplateProcessing",
        "single": pieces,
        "pair": pieces,
        "special_tokens": {name: {"id": name, "ids": [len(vocabulary)], "tokens": [name]}},
    }
    (folder / "tokenizer.json").write_text(json.dumps(content))
    return folder


def test_a_folder_such_as_gpt2s_is_read(tmp_path: Path) -> None:
    tokenizer = load_tokenizer(gpt2(tmp_path))
    assert (tokenizer.vocab_size, tokenizer.end) == (270, 269)
    text = "the cat, truncated nowhere <|endoftext|>"
    assert tokenizer.decode(tokenizer.encode(text)) == text
    assert tokenizer.encode("").tolist() == []


@pytest.mark.parametrize("named", ["</ende>", {"content": "</ende>", "lstrip": False}])
def test_the_end_of_a_document_is_the_one_the_config_names(tmp_path: Path, named: object) -> None:
    gpt2(tmp_path, end="</ende>")
    (tmp_path / "tokenizer_config.json").write_text(json.dumps({"eos_token": named}))
    tokenizer = load_tokenizer(tmp_path)
    assert (tokenizer.vocab_size, tokenizer.end) == (270, 269)
    (tmp_path / "tokenizer_config.json").write_text("{")
    with pytest.raises(ValueError, match=r"tokenizer_config\.json cannot be read: .* mend it or remove it"):
        load_tokenizer(tmp_path)


def test_a_tokenizer_without_an_end_gets_one(tmp_path: Path) -> None:
    tokenizer = load_tokenizer(gpt2(tmp_path, end="<|other|>"))
    assert (tokenizer.vocab_size, tokenizer.end) == (271, 270)
    (tmp_path / "tokenizer_config.json").write_text("{}")
    assert load_tokenizer(tmp_path).end == 270


def test_a_folder_without_a_tokenizer_is_named(tmp_path: Path) -> None:
    with pytest.raises(
        FileNotFoundError, match=r"is neither 'bytes' nor 'bpe' nor a folder with a tokenizer\.json; choose"
    ):
        load_tokenizer(tmp_path)
    (tmp_path / "tokenizer.json").write_text('{"version": "1.0"')
    with pytest.raises(ValueError, match=r"tokenizer\.json cannot be read as a tokenizer: "):
        load_tokenizer(tmp_path)


def test_without_tokenizers_the_error_says_how_to_get_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    gpt2(tmp_path)
    monkeypatch.setitem(sys.modules, "tokenizers", None)
    with pytest.raises(
        ImportError, match="tokenizer='bpe' needs the package tokenizers: pip install tokenizers; or choose"
    ):
        train_bpe(TEXTS, 300)
    with pytest.raises(ImportError, match=r"tokenizer\.json needs the package tokenizers"):
        load_tokenizer(tmp_path)
