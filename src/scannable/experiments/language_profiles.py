"""What each profile of language modelling is trained on, and how large: known without torch, so that a text that is not
there is told at once.
"""

from dataclasses import dataclass

from scannable.experiments.profile import Profile
from scannable.recipes.language_modelling import VOCABULARY, stdlib, stdlib_mamba
from scannable.tasks.text import TextTask

DATA: dict[Profile, str] = {
    "smoke": "stdlib",
    "laptop": "stdlib",
    "paper": "Salesforce/wikitext:wikitext-103-raw-v1",
}
LONGER = 4
"""Some models have windows so many times as long."""


@dataclass(frozen=True)
class Sizes:
    """What a profile scales."""

    width: int
    heads: int
    layers: int
    """Of GPT; Transformer-PSM has one of them in Agg and the others in Inf."""
    mamba_layers: int
    context: int
    chunks: tuple[int, ...]
    stream: int
    """Tokens that models read on, far beyond their windows."""
    seeds: tuple[int, ...] = (0,)
    dropout: float = 0.0

    @property
    def middle(self) -> int:
        """The chunk length whose learning rate the others have."""
        return self.chunks[len(self.chunks) // 2]


def _laptop() -> Sizes:
    """Those of the recipes."""
    psm, mamba, (context,) = stdlib().model, stdlib_mamba().model, stdlib().curriculum.lengths
    layers = psm.agg_layers + psm.inf_layers
    chunks = (32, 64, 128, 256)
    return Sizes(psm.width, psm.heads, layers, len(mamba.layers), context, chunks, 16_384, seeds=(0, 1))


SIZES: dict[Profile, Sizes] = {
    "smoke": Sizes(16, 2, 2, 2, 64, (8, 16, 32), 512),
    "laptop": _laptop(),
    "paper": Sizes(768, 12, 12, 24, 512, (32, 64, 128, 256), 16_384, dropout=0.1),
}


def text_task(profile: Profile, data: str | None, tokenizer: str | None) -> TextTask:
    """What is asked for, or the profile's own."""
    data = DATA[profile] if data is None else data
    if profile == "paper":
        # GPT-2's own tokenizer where its folder is at hand; else one of the same size, trained on the text.
        return TextTask(data, tokenizer or "bpe", 50_257 if tokenizer is None else None)
    if profile == "smoke":
        return TextTask(data, tokenizer or "bytes")
    return TextTask(data, tokenizer or "bpe", VOCABULARY if tokenizer in (None, "bpe") else None)


def check_text(profile: Profile, data: str | None, tokenizer: str | None) -> None:
    """Let the text say now what it cannot give, instead of after hours; its tokens are kept for then."""
    text_task(profile, data, tokenizer).batch("train", range(1), LONGER * SIZES[profile].context)
