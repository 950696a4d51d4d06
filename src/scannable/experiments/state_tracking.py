"""Fig. "state tracking": products in S5, trained to length 18, tested at lengths far beyond."""

from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

import torch

import scannable.training.checkpoint as checkpoints
from scannable.experiments.choice import choices
from scannable.experiments.figure import save_figure, save_rows
from scannable.experiments.laboratory import Laboratory, Trained
from scannable.experiments.left_factor import keep_factor, kept_factor, left_factor
from scannable.experiments.long_reading import ReadFar, keep_reading, kept_reading, read_in_pieces
from scannable.experiments.record import leave, left
from scannable.experiments.scores import RunScore, run_scores
from scannable.experiments.state_tracking_noise import FactorOfRun
from scannable.experiments.state_tracking_page import Defect, draw, draw_defects, write_page
from scannable.experiments.state_tracking_runs import (
    HELPED,
    NOISY_LSTM,
    Setting,
    ablations,
    direct_recipes,
    further_names,
    generator_recipes,
    longer_recipes,
    noisy_recipes,
    opponent_recipes,
    psm_recipes,
    setting,
    swept,
)
from scannable.recipes.seeds import unseen
from scannable.spd import associativity_defect
from scannable.storage.model_file import build_model
from scannable.training.evaluation import evaluate
from scannable.training.run_folder import load_trained

READS_ON = 0.01
"""A model with at most this error at the longest test length is read on, beside the helped ones."""

SEQUENCES = 64
"""In which the wrong answers of a model that does not hold are divided by the right ones."""


def run(lab: Laboratory) -> None:
    """Train what the page needs, what matters most first, and leave tables, figures and page."""
    use = setting(lab.profile)
    psm = lab.train(psm_recipes(use), "psm")
    tried = lab.sweep(*swept(use), "opponents")
    best = choices(tried)
    for name in use.opponents:
        if name not in best:
            lab.without([f"{name}-{use.opponent_seed}"])
            lab.without(further_names(use, name))
    final = psm | lab.train(opponent_recipes(use, best), "opponents")
    final |= lab.train(noisy_recipes(use, best, use.noisy_seeds[:1]), "noise")
    ablated = lab.train(ablations(use), "ablation")
    longer = lab.train(longer_recipes(use, best), "longer")
    generators = lab.train(generator_recipes(use, best), "generators")
    final |= lab.train(noisy_recipes(use, best, use.noisy_seeds[1:]), "seeds")
    direct = lab.train(direct_recipes(use, best), "direct")

    rows = [row for name, runs in tried.items() for one in runs.values() for row in run_scores(one, name, "sweep")]
    parts = {"final": final, "ablation": ablated, "longer": longer | direct, "generators": generators}
    for part, runs in parts.items():
        rows += [row for one in runs.values() for row in run_scores(one, model_of(one), part)]
    save_rows(rows, lab.results / "s5.csv", RunScore)
    save_figure(draw(rows, use), lab.results, "s5")
    first = psm.get(f"{HELPED}-{use.helped_seeds[0]}")
    along = [] if first is None else kept_defects(lab, first)
    if along:
        save_rows(along, lab.results / "associativity.csv")
        save_figure(draw_defects(along), lab.results, "associativity")
    far = read_far(lab, use, [*final.values(), *longer.values(), *direct.values()])
    if far:
        save_rows(far, lab.results / "reading.csv")
    factors = left_factors(lab, use, [one for one in final.values() if model_of(one) == NOISY_LSTM])
    if factors:
        save_rows(factors, lab.results / "factors.csv")
    lab.leave_records()
    write_page(lab, rows, along, far, factors, use, best)


def model_of(run: Trained) -> str:
    """The name of a run without its seed."""
    return run.name.rpartition("-")[0]


def read_far(lab: Laboratory, use: Setting, runs: Sequence[Trained]) -> list[ReadFar]:
    """Helped models and those that err as little, over a million tokens; the first helped one further still.

    What was read once is kept with the run.
    """
    usual, *further = use.readings
    rows: list[ReadFar] = []
    for run in runs:
        is_helped = model_of(run) == HELPED
        if not is_helped and run.result["test"][-1]["error"] > READS_ON:
            continue
        first = is_helped and run.recipe.seed == use.helped_seeds[0]
        for length, count in (usual, *(further if first else ())):
            reading = kept_reading(run.folder, length, count)
            if reading is None:
                if not lab.trains("reading") or not lab.has_weights(run):
                    lab.without([f"{run.name} at {length:,} tokens"])
                    continue
                lab.console.print(f"{lab.name}: {run.name} reads {count} x {length:,} tokens", highlight=False)
                model: Any = load_trained(run.folder, device=lab.device).model
                reading = read_in_pieces(model, unseen(run.recipe.task), length, count)
                keep_reading(run.folder, reading)
            rows.append(
                ReadFar(
                    model_of(run), run.recipe.seed, length, count, reading.piece, reading.asked, reading.errors,
                    reading.first_error, reading.nbytes, reading.seconds,
                )
            )  # fmt: skip
    return rows


def left_factors(lab: Laboratory, use: Setting, runs: Sequence[Trained]) -> list[FactorOfRun]:
    """By what the wrong answers at the longest test length differ from the right ones, of runs that are not read on."""
    length, count = use.recipe.evaluation.lengths[-1], min(SEQUENCES, use.recipe.evaluation.samples)
    rows: list[FactorOfRun] = []
    for run in runs:
        if run.result["test"][-1]["error"] <= READS_ON:
            continue
        found = kept_factor(run.folder, length, count)
        if found is None:
            if not lab.trains("reading") or not lab.has_weights(run):
                lab.without([f"{run.name}: its wrong answers at {length:,} tokens"])
                continue
            lab.console.print(f"{lab.name}: the wrong answers of {run.name} at {length:,} tokens", highlight=False)
            model: Any = load_trained(run.folder, device=lab.device).model
            found = left_factor(model, run.recipe.task, length, count)
            keep_factor(run.folder, found)
        rows.append(FactorOfRun(model_of(run), run.recipe.seed, **asdict(found)))
    return rows


def milestones(run: Trained) -> list[int]:
    """The steps whose checkpoints were kept."""
    every = run.recipe.keep_every or 1
    return [step for step in checkpoints.steps(run.folder / "checkpoints") if step % every == 0]


def model_at(run: Trained, step: int, device: str) -> Any:
    """The model as it was at that step, with its averaged weights."""
    checkpoint = checkpoints.read(checkpoints.path_of(run.folder / "checkpoints", step))
    model = build_model(run.recipe.model)
    model.load_state_dict(checkpoint.model)
    model.load_state_dict(checkpoint.average, strict=False)
    return model.to(device).eval()


def kept_defects(lab: Laboratory, run: Trained) -> list[Defect]:
    """Along the run; what was measured once is kept with it."""
    path = run.folder / "defects.json"
    found = left(path, lambda plain: [Defect(**one) for one in plain])
    if found is None:
        if not lab.has_weights(run):
            lab.without([f"{run.name} along its training"])
            return []
        found = defects(run, lab.device)
        leave(path, [asdict(row) for row in found])
    return found


def defects(run: Trained, device: str = "cpu") -> list[Defect]:
    """Along the run."""
    task = run.recipe.task
    rows: list[Defect] = []
    for step in milestones(run):
        model, tokens = model_at(run, step, device), task.batch("test", range(1024), 3).tokens.to(device)
        with torch.no_grad():
            a, b, c = (model.enc(part) for part in tokens[:, :, None].unbind(1))
        found = [
            evaluate(model, task, "test", length, 128, batch_tokens=4096, precision="float32").error
            for length in (18, 64, 180)
        ]
        rows.append(Defect(step, associativity_defect(model.agg, a, b, c), *found))
    return rows
