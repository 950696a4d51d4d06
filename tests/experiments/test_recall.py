"""What a stream holds: counted from what each kind of state is made of."""

from itertools import pairwise

import pytest

from scannable.experiments.recall import bytes_held
from scannable.experiments.recall_runs import setting

LAPTOP = setting("laptop").models
FLOAT = 4


@pytest.mark.parametrize("width", [32, 64])
def test_attention_holds_keys_and_values_of_every_token(width: int) -> None:
    model = LAPTOP[f"attention-{width}"]
    assert bytes_held(model, 257) - bytes_held(model, 129) == 2 * 2 * 128 * width * FLOAT


def test_transformer_psm_holds_a_root_and_a_fold_for_each_bit_of_its_chunks() -> None:
    c, width = 8, 64
    held = [bytes_held(LAPTOP[f"psm-right-{c}"], n) for n in (64, 128, 256, 512)]
    assert [later - earlier for earlier, later in pairwise(held)] == [2 * c * width * FLOAT] * 3
    assert held[-1] == bytes_held(LAPTOP[f"psm-projection-{c}"], 512)


@pytest.mark.parametrize("name", ["gla-64", "mamba-64", "mamba2-64", "deltanet-64", "gated_deltanet-64", "window-16"])
def test_recurrent_rows_and_windows_hold_the_same_at_any_length(name: str) -> None:
    assert bytes_held(LAPTOP[name], 512) == bytes_held(LAPTOP[name], 128)
