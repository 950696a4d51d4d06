"""Fig. "wikitext chunk": perplexity of language models against the chunk length, every token scored."""

from collections.abc import Mapping
from dataclasses import asdict
from typing import Any

import torch

from scannable.experiments import by_window, streamed_text
from scannable.experiments.choice import choices
from scannable.experiments.figure import save_figure, save_rows
from scannable.experiments.laboratory import Laboratory, Trained
from scannable.experiments.language_page import ByWindow, StreamedPart, draw, draw_streams, write_page
from scannable.experiments.language_profiles import SIZES, Sizes
from scannable.experiments.language_runs import (
    Model,
    Part,
    final_recipes,
    models,
    of_part,
    pairs_by_window,
    plan,
    readings,
    swept,
    with_more_seeds,
)
from scannable.experiments.scores import RunScore, run_scores
from scannable.spd.counters import CountedWork
from scannable.storage.model_file import build_model
from scannable.training.run_folder import load_trained

PARTS: tuple[Part, ...] = ("modern", "further", "paper", "longer")


def run(lab: Laboratory) -> None:
    """Sweep the learning rates, train every model on the same tokens, score every token of the test split."""
    use, common = SIZES[lab.profile], plan(lab)
    known = models(lab.profile, common.whole.task.vocab_size)
    tried = lab.sweep(*swept(common, lab.profile), "sweep")
    chosen = choices(tried)
    first, others = use.seeds[:1], use.seeds[1:]
    trained: dict[str, Trained] = {}
    for part in PARTS:
        trained |= lab.train(final_recipes(common, lab.profile, chosen, of_part(known, part), first), part)
    trained |= lab.train(final_recipes(common, lab.profile, chosen, with_more_seeds(known, use), others), "seeds")
    lab.without([f"{name}-{seed}" for name, model in known.items() if model.rate_of not in chosen for seed in first])

    rows = [row for name, runs in tried.items() for one in runs.values() for row in run_scores(one, name, "sweep")]
    for name, one in trained.items():
        rows += run_scores(one, name.rpartition("-")[0], "final")
    save_rows(rows, lab.results / "wikitext.csv", RunScore)
    titles = {name: model.title for name, model in known.items()}
    save_figure(draw(rows, use, titles), lab.results, "wikitext")
    streams = read_streams(lab, known, trained)
    if streams:
        save_rows(streams, lab.results / "streams.csv")
        streamed = {label: reading.title for label, reading in readings(known, use).items()}
        save_figure(draw_streams(streams, streamed), lab.results, "streams")
    compared = compare_by_window(lab, known, trained)
    if compared:
        save_rows(compared, lab.results / "windows.csv")
    there = {row.model for row in rows if row.part == "final"}
    work = {name: work_per_token(model.config, model.context) for name, model in known.items() if name in there}
    lab.leave_records()
    write_page(lab, rows, known, work, streams, compared, chosen, common)


@torch.no_grad()
def work_per_token(model: Any, length: int) -> float:
    """Floating-point operations of the forward pass over one window, for each of its tokens."""
    built = build_model(model).eval()
    with CountedWork() as work:
        built(torch.zeros(1, length, dtype=torch.long))
    return work.operations / length


def read_streams(lab: Laboratory, known: Mapping[str, Model], trained: Mapping[str, Trained]) -> list[StreamedPart]:
    """Perplexity by position; what was read once is kept with the run."""
    use = SIZES[lab.profile]
    rows: list[StreamedPart] = []
    for label, reading in readings(known, use).items():
        for seed in reading.seeds:
            one = trained.get(f"{reading.model}-{seed}")
            if one is None:
                continue
            found = _stream(lab, one, use, reading.cache)
            if found is None:
                lab.without([f"{one.name} as a stream" + (f" keeping {reading.cache}" if reading.cache else "")])
                continue
            at = known[reading.model].context
            rows += [StreamedPart(label, seed, at, s.begin, s.end, s.asked, s.loss) for s in found]
    return rows


def _stream(lab: Laboratory, one: Trained, use: Sizes, cache: int | None) -> list[streamed_text.Stretch] | None:
    """None where nothing was read, and cannot be read here."""
    found = streamed_text.kept(one.folder, use.stream, cache)
    if found is None and (loaded := _loaded(lab, one, f"reads streams of {use.stream:,} tokens")):
        model: Any = loaded.model if cache is None else streamed_text.with_cache(loaded.model, cache)
        found = streamed_text.measure(model, loaded.recipe.task, use.stream, use.context)
        streamed_text.keep(one.folder, use.stream, found, cache)
    return found


def compare_by_window(lab: Laboratory, known: Mapping[str, Model], trained: Mapping[str, Trained]) -> list[ByWindow]:
    """Hybrids and GPT, with the last seed."""
    use, rows = SIZES[lab.profile], list[ByWindow]()
    seed = use.seeds[-1]
    for hybrid, gpt in pairs_by_window(known, use):
        runs, length = [trained.get(f"{name}-{seed}") for name in (hybrid, gpt)], known[hybrid].context
        first, second = (None if run is None else _by_window(lab, run, length) for run in runs)
        if first is None or second is None:
            continue
        for split in by_window.SPLITS:
            found = by_window.between(first[split], second[split], length)
            rows.append(ByWindow(hybrid, gpt, seed, split, length, **asdict(found)))
    return rows


def _by_window(lab: Laboratory, one: Trained, length: int) -> dict[str, list[float]] | None:
    """None where nothing was read, and cannot be read here."""
    found = by_window.kept(one.folder, length)
    if found is None and (loaded := _loaded(lab, one, "reads window by window")):
        found = by_window.measure(loaded.model, loaded.recipe.task, length)
        by_window.keep(one.folder, length, found)
    if found is None:
        lab.without([f"{one.name} window by window"])
    return found


def _loaded(lab: Laboratory, one: Trained, said: str) -> Any:
    """The model of a run, if it is to be read with and its weights are here; otherwise None."""
    if not lab.trains("streams") or not lab.has_weights(one):
        return None
    lab.console.print(f"{lab.name}: {one.name} {said}", highlight=False)
    return load_trained(one.folder, device=lab.device)
