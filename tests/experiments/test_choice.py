"""What a sweep takes: the run that came furthest, whichever optimizer it had."""

from pathlib import Path
from typing import Any

from scannable.experiments.choice import Chosen, at_the_edge, choices, swept_titles, taken
from scannable.experiments.laboratory import Trained
from scannable.recipes import demo


def run(stage: int, loss: float) -> Trained:
    best: dict[str, Any] = {"stage": stage, "loss": loss}
    return Trained("a run", demo(), Path("nowhere"), {"best": best})


def test_the_longest_length_counts_before_the_loss_and_adamw_where_it_is_better() -> None:
    tried = {
        "lstm": {1e-3: run(2, 0.9), 3e-3: run(3, 1.5), 1e-2: run(3, 1.4)},
        "gpt": {1e-3: run(3, 0.5)},
        "gpt-adamw": {1e-3: run(3, 0.4), 3e-3: run(2, 0.1)},
        "mamba": {1e-3: run(3, 0.5)},
        "mamba-adamw": {1e-3: run(3, 0.6)},
        "rwkv7-adamw": {3e-3: run(0, 2.0)},
    }
    best = choices(tried)
    assert best == {
        "lstm": Chosen(1e-2),
        "gpt": Chosen(1e-3, "adamw"),
        "mamba": Chosen(1e-3),
        # Only AdamW's runs are there.
        "rwkv7": Chosen(3e-3, "adamw"),
    }
    assert taken(best) == {("lstm", 1e-2), ("gpt-adamw", 1e-3), ("mamba", 1e-3), ("rwkv7-adamw", 3e-3)}
    assert choices({}) == {}


def test_a_model_with_adamw_is_called_so() -> None:
    assert swept_titles({"gpt": "GPT-2"}) == {"gpt": "GPT-2", "gpt-adamw": "GPT-2, AdamW"}


def test_rates_at_the_edge_of_what_was_tried_are_told() -> None:
    rates = {"gpt": (1e-3, 3e-3, 1e-2), "gpt-adamw": (1e-3, 3e-3), "lstm": (1e-3, 3e-3, 1e-2)}
    titles = swept_titles({"gpt": "GPT-2", "lstm": "LSTM"})
    assert at_the_edge({"gpt": Chosen(3e-3)}, rates, titles) == []
    (said,) = at_the_edge({"gpt": Chosen(1e-3, "adamw"), "lstm": Chosen(1e-2)}, rates, titles)
    assert said.endswith("better still: GPT-2, AdamW (0.001, the least); LSTM (0.01, the greatest).")
