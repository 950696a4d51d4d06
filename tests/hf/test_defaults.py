"""What a configuration of transformers leaves out is what transformers itself takes for it."""

import json
import warnings
from pathlib import Path
from typing import Any

import pytest

from scannable.hf.mamba_weights import load_mamba

with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    from transformers import Mamba2Config, Mamba2ForCausalLM, MambaConfig, MambaForCausalLM

pytestmark = pytest.mark.filterwarnings("ignore")

# No multiple of 16, so that it matters how the rank of the step sizes is rounded.
SIZES: dict[str, Any] = {"vocab_size": 11, "hidden_size": 40, "num_hidden_layers": 1, "state_size": 4}
SHARED = (
    "hidden_act", "expand", "layer_norm_epsilon", "conv_kernel", "use_conv_bias", "use_bias", "tie_word_embeddings",
)  # fmt: skip


@pytest.mark.parametrize("left_out", [*SHARED, "time_step_rank", "intermediate_size"])
def test_mamba(tmp_path: Path, left_out: str) -> None:
    MambaForCausalLM(MambaConfig(**SIZES)).save_pretrained(tmp_path)
    assert_same_without(left_out, tmp_path)


@pytest.mark.parametrize("left_out", [*SHARED, "n_groups", "time_step_limit"])
def test_mamba_2(tmp_path: Path, left_out: str) -> None:
    # pyright takes the generated signature of this class for one without arguments.
    config: Any = Mamba2Config
    Mamba2ForCausalLM(config(**SIZES, num_heads=8, head_dim=10)).save_pretrained(tmp_path)
    assert_same_without(left_out, tmp_path)


def assert_same_without(left_out: str, folder: Path) -> None:
    path = folder / "config.json"
    written = json.loads(path.read_text())
    whole = load_mamba(folder).config
    assert left_out in written
    del written[left_out]
    path.write_text(json.dumps(written))
    assert load_mamba(folder).config == whole
