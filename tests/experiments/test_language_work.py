"""Operations a token of language models, as their page counts them."""

from dataclasses import replace

import pytest

from scannable.experiments.language_modelling import work_per_token
from scannable.models.lm_config import LMConfig

CONFIG = LMConfig(30, ("attention",), 16, heads=2, tie_weights=True)


@pytest.mark.parametrize("length", [1, 7, 64])
def test_a_token_more_in_the_vocabulary_is_a_product_more(length: int) -> None:
    # Ten thousand, beside which the little that a first call prepares for later ones does not show.
    more = work_per_token(replace(CONFIG, vocab_size=10_030), length) - work_per_token(CONFIG, length)
    assert more == pytest.approx(10_000 * 2 * 16, rel=0.05)


def test_attention_has_work_that_grows_with_the_window_and_mamba_has_not() -> None:
    # Scores and their use: for each token two products with each of the others, causal or not.
    short, long = (work_per_token(CONFIG, n) for n in (512, 1024))
    assert long - short == pytest.approx(2 * 2 * 16 * 512, rel=0.1)
    mamba = replace(CONFIG, layers=("mamba",))
    assert work_per_token(mamba, 256) == pytest.approx(work_per_token(mamba, 128), rel=0.05)
