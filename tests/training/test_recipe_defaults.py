"""What a recipe is, where nothing is said."""

from dataclasses import asdict

import scannable as sc
from scannable.tasks import GroupTask
from scannable.training.recipe import Curriculum, Evaluation, Optimizer, Recipe


def test_the_defaults_of_a_recipe() -> None:
    model, task = sc.TransformerPSMConfig(6), GroupTask("S3")
    found = asdict(Recipe(model, task))
    assert found.pop("model") == asdict(model) and found.pop("task") == asdict(task)
    assert found.pop("optimizer") == asdict(Optimizer()) == {
        "learning_rate": 1e-3, "betas": (0.9, 0.98), "weight_decay": 0.01, "clip": 1.0, "schedule": "cosine",
        "warmup": 100, "final": 0.1, "algorithm": "adamw",
    }  # fmt: skip
    curriculum = found.pop("curriculum")
    assert asdict(Curriculum(curriculum["lengths"])) == curriculum == {
        "lengths": curriculum["lengths"], "below": (), "steps": None, "patience": None, "revisit": 0.0, "rates": (),
        "fresh_optimizer": False,
    }  # fmt: skip
    assert found.pop("evaluation") == asdict(Evaluation()) == {
        "every": 250, "samples": 256, "lengths": (), "stop_below": None, "patience": None, "weights": "last",
    }  # fmt: skip
    assert found == {
        "steps": 1000, "batch_tokens": 4096, "batch_samples": None, "seed": 0, "accumulate": 1, "precision": "float32",
        "ema": 0.0, "compile": False, "checkpoint_every": 500, "keep": 2, "keep_every": None, "log_every": 10,
        "callbacks": (),
    }  # fmt: skip
