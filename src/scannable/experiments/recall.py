"""Fig. "mqar": multi-query associative recall, accuracy against the bytes that a stream holds."""

from dataclasses import dataclass
from typing import Any

import torch

from scannable.experiments.figure import save_figure, save_rows
from scannable.experiments.laboratory import Laboratory
from scannable.experiments.recall_page import draw, write_page
from scannable.experiments.recall_runs import fewer_name, fewer_recipes, final_recipes, setting, swept
from scannable.experiments.scores import RunScore, best_rate, run_scores
from scannable.models.protocol import evaluating
from scannable.storage.model_file import build_model


@dataclass(frozen=True)
class Held:
    """By the stream of one sequence."""

    model: str
    length: int
    nbytes: int


def run(lab: Laboratory) -> None:
    """Sweep the learning rates, train all of them with every seed; table, figure and page."""
    use = setting(lab.profile)
    makers, rates = swept(use)
    tried = lab.sweep(makers, rates, "sweep")
    best = {family: best_rate(tried[one.swept]) for family, one in use.families.items() if one.swept in tried}
    trained = lab.train(final_recipes(use, best, use.seeds[:1]), "first")
    trained |= lab.train(final_recipes(use, best, use.seeds[1:]), "seeds")
    fewer = lab.train(fewer_recipes(use, best), "pairs")
    for family, one in use.families.items():
        if family not in best:
            lab.without([f"{name}-{seed}" for name in one.models for seed in use.seeds])
            shortest = [name for name in use.shortest if name in one.models]
            lab.without([f"{fewer_name(name, pairs)}-{use.seeds[0]}" for name in shortest for pairs in use.fewer])

    rows = [row for name, runs in tried.items() for one in runs.values() for row in run_scores(one, name, "sweep")]
    for name, one in trained.items():
        rows += run_scores(one, name.rpartition("-")[0], "final")
    for name, one in fewer.items():
        rows += run_scores(one, name.rpartition("-")[0], "pairs")
    longest = use.recipe.curriculum.lengths[-1]
    held = {name: bytes_held(config, longest) for name, config in use.models.items()}
    save_rows(rows, lab.results / "mqar.csv", RunScore)
    save_rows([Held(name, longest, nbytes) for name, nbytes in held.items()], lab.results / "state.csv")
    save_figure(draw(rows, use, held), lab.results, "mqar")
    lab.leave_records()
    write_page(lab, rows, use, held)


@torch.no_grad()
def bytes_held(config: Any, length: int) -> int:
    """What the state of one stream takes after length - 1 tokens: with a power of two, a counter has all its roots."""
    model: Any = build_model(config)
    with evaluating(model):
        _, state = model.prefill(torch.zeros(1, length - 1, dtype=torch.long), model.initial_state(1))
    return state.nbytes
