"""What `scannable train` trains by name is what an experiment trained, and what its committed results were made of."""

import csv
import json
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from scannable.experiments import language_modelling, language_runs, recall_runs, state_tracking_runs
from scannable.experiments.choice import Chosen
from scannable.experiments.laboratory import Laboratory
from scannable.experiments.language_profiles import SIZES
from scannable.experiments.profile import Profile
from scannable.recipes import recipe_named
from scannable.storage.configuration import from_plain
from scannable.training.recipe import Recipe

RESULTS = Path(__file__).parent.parent.parent / "results"

CLAIMS = {
    "s5": ("s5", "psm-helped-0"),
    "s5-plain": ("s5", "psm-plain-0"),
    "mqar": ("mqar", "psm-projection-16-0"),
    "stdlib": ("wikitext", "psm-128-0"),
    "stdlib-mamba": ("wikitext", "mamba-0"),
    "stdlib-hybrid": ("wikitext", "deep-hybrid-0"),
}
"""The recipe, the experiment, and the name of the run there."""


def taken(experiment: str) -> dict[str, float]:
    """The learning rates of the final runs, as the committed table has them."""
    with (RESULTS / experiment / f"{experiment}.csv").open() as file:
        return {row["model"]: float(row["learning_rate"]) for row in csv.DictReader(file) if row["part"] == "final"}


def laptop_runs(
    experiment: str, folder: Path, rates: Mapping[str, float], algorithms: Mapping[str, str]
) -> dict[str, Recipe[Any, Any]]:
    """All runs of the pages but sweeps, as the experiment makes them with these learning rates and optimizers."""
    if experiment == "s5":
        s5, use = state_tracking_runs, state_tracking_runs.setting("laptop")
        best = {name: Chosen(rates[name], algorithms.get(name)) for name in use.opponents if name in rates}
        return {
            **s5.psm_recipes(use),
            **s5.ablations(use),
            **s5.opponent_recipes(use, best),
            **s5.longer_recipes(use, best),
            **s5.direct_recipes(use, best),
            **s5.noisy_recipes(use, best, use.noisy_seeds),
            **s5.generator_recipes(use, best),
        }
    if experiment == "mqar":
        use = recall_runs.setting("laptop")
        usual = use.recipe.optimizer.learning_rate
        each = {family: rates.get(one.swept, usual) for family, one in use.families.items()}
        return recall_runs.final_recipes(use, each, use.seeds) | recall_runs.fewer_recipes(use, each)
    common = language_runs.plan(Laboratory(experiment, "laptop", folder, folder))
    use, known = SIZES["laptop"], language_runs.models("laptop", common.whole.task.vocab_size)
    usual = common.whole.optimizer.learning_rate
    # Of the runs at a rate, the one whose sweep gave it may be the last to be made.
    there = {model.rate_of: name for name, model in known.items() if name in rates}
    chosen = {
        model.rate_of: Chosen(rates[there[model.rate_of]], algorithms.get(there[model.rate_of]))
        if model.rate_of in there
        else Chosen(usual)
        for model in known.values()
    }
    made: dict[str, Recipe[Any, Any]] = {}
    for part in language_modelling.PARTS:
        names = language_runs.of_part(known, part)
        made |= language_runs.final_recipes(common, "laptop", chosen, names, use.seeds)
    return made


@pytest.mark.parametrize("name", CLAIMS)
def test_a_recipe_is_the_run_that_the_experiment_makes(name: str, tmp_path: Path) -> None:
    experiment, run = CLAIMS[name]
    assert recipe_named(name) == laptop_runs(experiment, tmp_path, taken(experiment), {})[run]


@pytest.mark.parametrize("experiment", ["s5", "mqar", "wikitext"])
def test_the_committed_configurations_are_todays_runs(experiment: str, tmp_path: Path) -> None:
    folder = RESULTS / experiment
    paths = [path for path in (folder / "configurations").glob("*.json") if not path.stem.startswith("sweep-")]
    found = {path.stem: from_plain(json.loads(path.read_text()), Recipe, path.name) for path in paths}
    assert found
    algorithms = {name.removesuffix("-0"): run.optimizer.algorithm for name, run in found.items()}
    made = laptop_runs(experiment, tmp_path, taken(experiment), algorithms)
    for name, committed in found.items():
        # A run writes down which text it read.
        if experiment == "wikitext":
            committed = replace(committed, task=replace(committed.task, text=None, vocabulary=None))
        assert committed == made[name], name


def test_language_models_have_the_rate_that_did_best_in_the_sweep() -> None:
    with (RESULTS / "wikitext" / "wikitext.csv").open() as file:
        rows = list(csv.DictReader(file))
    known, checked = language_runs.models("laptop", 1024), 0
    for name, rate in taken("wikitext").items():
        of = known[name].rate_of
        tried = [row for row in rows if row["part"] == "sweep" and row["model"] in (of, f"{of}-adamw")]
        best = min(tried, key=lambda row: float(row["validation_loss"]))
        assert float(best["learning_rate"]) == rate, name
        checked += 1
    assert checked >= 15


@pytest.mark.parametrize("profile", ["laptop", "paper"])
def test_words_over_generators_are_too_many_to_be_learned_by_heart(profile: Profile) -> None:
    """Splits share no word: of 64 words those of validation can only be guessed."""
    use = state_tracking_runs.setting(profile)
    made = state_tracking_runs.generator_recipes(use, {name: Chosen(1e-3) for name in use.opponents})
    assert len(made) == 9
    for name, recipe in made.items():
        shortest = recipe.curriculum.lengths[0]
        assert recipe.task.generators**shortest >= 50_000, name
        assert recipe.curriculum.lengths[-1] == 40
