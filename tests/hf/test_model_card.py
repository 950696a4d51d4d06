"""The page of an exported model says what was measured, of which weights, and nothing else."""

from dataclasses import replace
from math import e

import pytest

from scannable.hf.model_card import Facts, model_card

SCORE = {"length": 4096, "samples": 1024, "loss": 1.0, "error": 0.25, "bits_per_byte": 1.5}
FACTS = Facts(
    "small", "LMConfig", 1_234_567, "text", 5000, "last", True,
    {"tokens": 2_000_000, "tested": {"step": 5000, "weights": "last"}, "test": [SCORE]},
    {"width": 16},
)  # fmt: skip


def lines(facts: Facts) -> list[str]:
    return model_card(facts).decode().splitlines()


def test_a_row_has_the_loss_its_perplexity_and_the_bits() -> None:
    found = lines(FACTS)
    assert f"| 4,096 | 1,024 | 1.0000 | {e:.4f} | 25.00 | 1.5000 |" in found
    assert "On the test split, after 2,000,000 tokens of training, one seed." in found
    assert any(
        "(LMConfig, 1,234,567 parameters)" in line and "the weights of step 5,000 (last)" in line for line in found
    )
    assert ' "width": 16' in found


def test_a_task_without_bytes_has_no_bits_and_no_pipeline() -> None:
    result = {**(FACTS.result or {}), "test": [SCORE | {"bits_per_byte": None}]}
    found = lines(replace(FACTS, result=result, has_text=False))
    assert f"| 4,096 | 1,024 | 1.0000 | {e:.4f} | 25.00 | - |" in found
    assert not any("pipeline" in line for line in found)
    assert any("AutoModelForCausalLM.from_pretrained" in line for line in found)


@pytest.mark.parametrize("other", [{"step": 4000, "weights": "last"}, {"step": 5000, "weights": "best"}])
def test_what_was_measured_of_other_weights_is_not_this_models(other: dict[str, object]) -> None:
    found = lines(replace(FACTS, result={**(FACTS.result or {}), "tested": other}))
    assert f"Nothing of these weights: the run tested those of step {other['step']} ({other['weights']})." in found
    assert not any(line.startswith("| 4,096") for line in found)


def test_a_run_that_was_not_tested_has_nothing() -> None:
    assert "Nothing: the run has not come to its end, so it was not tested." in lines(replace(FACTS, result=None))


def test_a_loss_beyond_all_numbers_has_a_perplexity_still() -> None:
    result = {**(FACTS.result or {}), "test": [SCORE | {"loss": 1e6}]}
    (row,) = (line for line in lines(replace(FACTS, result=result)) if line.startswith("| 4,096"))
    assert "inf" not in row
