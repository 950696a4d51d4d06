"""From text to tokens and back."""

import hashlib
import json
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from types import ModuleType
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

FILE = "tokenizer.json"
CONFIG = "tokenizer_config.json"
END = "<|endoftext|>"
KNOWN_ENDS = (END, "<|end_of_text|>", "</s>", "<eos>", "[SEP]")


class Tokenizer(Protocol):
    """What a text task needs of a tokenizer."""

    @property
    def vocab_size(self) -> int: ...

    @property
    def end(self) -> int:
        """The token after each document. No text holds it, and it stands for no text."""
        ...

    @property
    def identity(self) -> str:
        """Different for tokenizers that differ."""
        ...

    def encode(self, text: str) -> NDArray[np.integer]: ...

    def files(self) -> dict[str, bytes]:
        """The files that `load_tokenizer` needs to make it again, by name."""
        ...

    def decode(self, tokens: Iterable[int]) -> str:
        """The text; what is no UTF-8, such as half a character, becomes U+FFFD."""
        ...


class ByteTokenizer:
    """The bytes of UTF-8, and one token more."""

    vocab_size = 257
    end = 256
    identity = "bytes"

    def encode(self, text: str) -> NDArray[np.uint8]:
        return np.frombuffer(text.encode(), np.uint8)

    def files(self) -> dict[str, bytes]:
        return {}

    def decode(self, tokens: Iterable[int]) -> str:
        return bytes(_without_end(tokens, self)).decode("utf-8", "replace")


class FileTokenizer:
    """The tokenizer of a tokenizer.json, GPT-2's for example.

    Its end of a document is the token that a tokenizer_config.json beside it calls eos_token, or a token with a usual
    name; a tokenizer without any gets one more token.
    """

    def __init__(self, path: Path) -> None:
        library = _tokenizers(f"the tokenizer {path}")
        content = path.read_bytes()
        try:
            self._tokenizer = library.Tokenizer.from_str(content.decode())
        # The library raises nothing more special.
        except Exception as error:
            raise ValueError(f"{path} cannot be read as a tokenizer: {error}") from error
        vocabulary = self._tokenizer.get_vocab()
        usual = next((name for name in KNOWN_ENDS if name in vocabulary), END)
        name = _named_end(path.parent / CONFIG) or usual
        self._tokenizer.add_special_tokens([name])
        # A document that mentions the end of a document does not end there.
        self._tokenizer.encode_special_tokens = True
        self._tokenizer.no_truncation()
        self._tokenizer.no_padding()
        vocabulary = self._tokenizer.get_vocab()
        self.end = vocabulary[name]
        self.vocab_size = max(vocabulary.values()) + 1
        self.identity = f"{hashlib.sha256(content).hexdigest()} {self.end}"
        self._content = content
        self._end_name = name

    def files(self) -> dict[str, bytes]:
        return {FILE: self._content, CONFIG: json.dumps({"eos_token": self._end_name}).encode()}

    def encode(self, text: str) -> NDArray[np.uint32]:
        (encoded,) = self._tokenizer.encode_batch_fast([text], add_special_tokens=False)
        return np.array(encoded.ids, np.uint32)

    def decode(self, tokens: Iterable[int]) -> str:
        return self._tokenizer.decode(_without_end(tokens, self), skip_special_tokens=False)


def load_tokenizer(folder: Path) -> FileTokenizer:
    path = folder.expanduser() / FILE
    if not path.is_file():
        raise FileNotFoundError(
            f"tokenizer={str(folder)!r} is neither 'bytes' nor 'bpe' nor a folder with a {FILE}; choose one of these"
        )
    return FileTokenizer(path)


def train_bpe(texts: Iterable[str], size: int) -> bytes:
    """The tokenizer.json of a byte-level BPE with at most `size` tokens, fewer if the texts hold no more pairs that
    occur twice; the same for the same texts.
    """
    library = _tokenizers("tokenizer='bpe'")
    tokenizer = library.Tokenizer(library.models.BPE())
    tokenizer.pre_tokenizer = library.pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = library.decoders.ByteLevel()
    trainer = library.trainers.BpeTrainer(
        vocab_size=size,
        min_frequency=2,
        show_progress=False,
        special_tokens=[END],
        initial_alphabet=library.pre_tokenizers.ByteLevel.alphabet(),
    )
    tokenizer.train_from_iterator(texts, trainer)
    return tokenizer.to_str(pretty=True).encode()


def decode_stream(decode: Callable[[list[int]], str], tokens: Iterable[int]) -> Iterator[str]:
    """Text as soon as it is whole: half a character waits for the other half, or for the end of the tokens.

    Joined, it is what `decode` gives for all tokens at once.
    """
    # What was last shown stays in front: some decoders treat the first token of a text differently.
    shown: list[int] = []
    waiting: list[int] = []
    before = ""
    for token in tokens:
        waiting.append(token)
        text = decode(shown + waiting)
        if len(text) > len(before) and not text.endswith("\ufffd"):
            yield text[len(before) :]
            shown, waiting = waiting, []
            before = decode(shown)
    if rest := decode(shown + waiting)[len(before) :]:
        yield rest


def _without_end(tokens: Iterable[int], tokenizer: Tokenizer) -> list[int]:
    kept = [int(token) for token in tokens]
    for token in kept:
        if not 0 <= token < tokenizer.vocab_size:
            raise ValueError(
                f"token {token} is outside the vocabulary of {tokenizer.vocab_size}; is this the tokenizer the model "
                "was trained with?"
            )
    return [token for token in kept if token != tokenizer.end]


def _named_end(config: Path) -> str | None:
    if not config.is_file():
        return None
    try:
        named = json.loads(config.read_bytes()).get("eos_token")
    except (ValueError, AttributeError) as error:
        raise ValueError(f"{config} cannot be read: {error}; mend it or remove it") from error
    return named.get("content") if isinstance(named, dict) else named


def _tokenizers(what: str) -> ModuleType:
    try:
        import tokenizers
    except ImportError as error:
        raise ImportError(
            f"{what} needs the package tokenizers: pip install tokenizers; or choose tokenizer='bytes'"
        ) from error
    return tokenizers
