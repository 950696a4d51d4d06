"""The tokenizers of text tasks as those of `transformers`: the same tokens for the same text.

One thing differs, by the convention of `transformers`: text that spells the end of a document is that token, so that
`text + tokenizer.eos_token` works. In a task's tokenizer no text is.
"""

import json
from typing import Any

from tokenizers import Tokenizer as FastTokenizer
from tokenizers import decoders, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast

from scannable.tasks.tokenizer import CONFIG, END, FILE, ByteTokenizer, Tokenizer


def fast_tokenizer(tokenizer: Tokenizer, max_length: int | None = None) -> PreTrainedTokenizerFast:
    """A task's tokenizer, for `transformers`: it pads on the left, with the token that ends documents.

    Args:
        tokenizer: of a text task.
        max_length: the most tokens that the model takes; None for any number.
    """
    if isinstance(tokenizer, ByteTokenizer):
        fast, end = _bytes(), END
    else:
        files = tokenizer.files()
        fast, end = FastTokenizer.from_str(files[FILE].decode()), str(json.loads(files[CONFIG])["eos_token"])
    fast.no_truncation()
    fast.no_padding()
    limit: dict[str, Any] = {} if max_length is None else {"model_max_length": max_length}
    made = PreTrainedTokenizerFast(
        tokenizer_object=fast,
        bos_token=end,
        eos_token=end,
        pad_token=end,
        padding_side="left",
        clean_up_tokenization_spaces=False,
        # Some versions would add token_type_ids, which generate refuses.
        model_input_names=["input_ids", "attention_mask"],
        **limit,
    )
    if made.eos_token_id != tokenizer.end or len(made) != tokenizer.vocab_size:
        raise ValueError(
            f"the tokenizer has {tokenizer.vocab_size} tokens and ends documents with {tokenizer.end}, but as one of "
            f"transformers {len(made)} and {made.eos_token_id}; its {FILE} leaves numbers out"
        )
    return made


def _bytes() -> FastTokenizer:
    """Byte i is token i: a byte-level BPE that never merges."""
    letters = _letters()
    fast = FastTokenizer(models.BPE(vocab={letter: byte for byte, letter in enumerate(letters)}, merges=[]))
    fast.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    fast.decoder = decoders.ByteLevel()
    return fast


def _letters() -> list[str]:
    """The letter that GPT-2's byte-level tokenizers write for each byte: itself if it can be seen, else one behind."""
    seen = {*range(ord("!"), ord("~") + 1), *range(ord("¡"), ord("¬") + 1), *range(ord("®"), ord("ÿ") + 1)}
    letters: list[str] = []
    behind = 256
    for byte in range(256):
        letters.append(chr(byte if byte in seen else behind))
        behind += byte not in seen
    return letters
