"""Small models of every kind, for `transformers`, in float64 and in evaluation mode."""

from typing import Any

import torch

import scannable as sc
from scannable.hf import ScannableConfig, ScannableForCausalLM
from scannable.models.layer_options import OPTIONS, AttentionOptions, PSMOptions

VOCABULARY = 29
LM: dict[str, Any] = {"vocab_size": VOCABULARY, "width": 16, "heads": 2}
PSM = PSMOptions(chunk_length=4, agg_layers=1, inf_layers=1)
CONFIGS: dict[str, Any] = {
    "transformer-psm": sc.TransformerPSMConfig(**LM, chunk_length=4, agg_layers=1, inf_layers=1),
    "recent": sc.TransformerPSMConfig(
        **LM, chunk_length=3, agg_layers=1, inf_layers=1, recent=1, positions="rotary", tie_weights=True
    ),
    "hybrid": sc.LMConfig(**LM, layers=("mamba", PSM, AttentionOptions(window=5)), tie_weights=True),
}
ROWS: dict[str, Any] = {
    name: sc.LMConfig(**LM, layers=(PSM if name == "psm" else name,)) for name in OPTIONS if name not in ("s4", "lti")
}
ROWS |= {name: sc.LMConfig(**LM, layers=(name,)) for name in ("s4", "lti")}
EVERY = {**CONFIGS, **ROWS}


def small(name: str, seed: int = 0, **options: Any) -> Any:
    """A model whose outputs differ enough that no two tokens are nearly as likely."""
    torch.manual_seed(seed)
    model: Any = ScannableForCausalLM(ScannableConfig(EVERY[name], **options)).double().eval()
    with torch.no_grad():
        model.lm_head.weight.mul_(3)
    model.generation_config.pad_token_id = 0
    return model


def prompt(rows: int, length: int, seed: int = 0) -> torch.Tensor:
    """Tokens above 0, which stands for padding."""
    generator = torch.Generator().manual_seed(seed)
    return torch.randint(1, VOCABULARY, (rows, length), generator=generator)


def left_padded(prompts: list[torch.Tensor]) -> tuple[torch.Tensor, torch.Tensor]:
    """Rows of different lengths and their mask."""
    longest = max(len(one) for one in prompts)
    ids = torch.stack([torch.cat((one.new_zeros(longest - len(one)), one)) for one in prompts])
    mask = torch.stack([torch.arange(longest) >= longest - len(one) for one in prompts]).long()
    return ids, mask
