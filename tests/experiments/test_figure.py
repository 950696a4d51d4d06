"""Figures say what they show: axes have names, every model is in the legend, and so are the lines to compare with."""

from collections.abc import Sequence
from math import e
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from outcomes import outcome
from scannable.experiments import (
    corrected,
    language_page,
    language_runs,
    recall_page,
    recall_runs,
    state_tracking_page,
    state_tracking_runs,
)
from scannable.experiments import figure as figures
from scannable.experiments.laboratory import Trained
from scannable.experiments.language_profiles import SIZES
from scannable.experiments.scores import RunScore, Spread, best_rate, error_by_length, run_scores, sweep_table
from scannable.training.recipe import Recipe


def only_axes(figure: Figure) -> Axes:
    (axes,) = figure.axes
    assert axes.get_xlabel() and axes.get_ylabel()
    return axes


def legend(axes: Axes) -> list[str]:
    found = axes.get_legend()
    assert found is not None
    return [text.get_text() for text in found.get_texts()]


def drawn(axes: Axes) -> dict[str, tuple[list[float], list[float]]]:
    """The curves with a name."""
    lines = {str(line.get_label()): line for line in axes.get_lines()}
    return {
        name: ([float(x) for x in line.get_xdata()], [float(y) for y in line.get_ydata()])  # type: ignore[union-attr]
        for name, line in lines.items()
        if not name.startswith("_")
    }


def upright(axes: Axes) -> list[float]:
    """Where vertical lines stand."""
    return [float(line.get_xdata()[0]) for line in axes.get_lines() if list(line.get_ydata()) == [0, 1]]  # type: ignore[index]


LAPTOP = state_tracking_runs.setting("laptop")


def test_state_tracking_has_every_model_and_where_training_and_the_paper_end() -> None:
    titles = state_tracking_runs.TITLES
    rows = [outcome(name, length, 0.01 * i) for name in titles for i, length in enumerate((18, 180, 4096))]
    rows += [outcome(name, 18, 1.0, part="sweep") for name in titles]
    left, right = state_tracking_page.draw(rows, LAPTOP).axes
    assert legend(left) == list(titles.values())
    for xs, ys in drawn(left).values():
        # In percent, and nothing of the sweep.
        assert (xs, ys) == ([18, 180, 4096], [0, 1, 2])
    assert upright(left) == [18, 160] and upright(right) == [18]
    assert {text.get_text() for text in left.texts} == {"trained to 18 at most", "the paper: low error past 160"}
    assert legend(right) == ["Transformer-PSM, helped", "Transformer-PSM, plain"]


def test_models_that_did_not_learn_their_training_length_are_named() -> None:
    learned = [outcome(name, length, 0.04) for name in state_tracking_runs.TITLES for length in (4, 18, 4096)]
    assert state_tracking_page._not_learned(learned, LAPTOP) == ""
    # What happens at other lengths says nothing about what was learned.
    worse = outcome("lstm", 18, 0.26, seed=1, trained_to=8)
    said = state_tracking_page._not_learned([*learned, worse, outcome("gpt2", 4096, 1.0)], LAPTOP)
    assert said.startswith(
        "Models that make more than 5% errors at 18: LSTM 26% (its curriculum reached 8, 1 of 2 seeds). One that does "
        "not learn a length goes on after 2,500 steps, so that one which learns none has seen lengths to 8 when its "
        "10,000 steps end."
    )


def test_numbers_of_seeds_are_one_cell() -> None:
    for found, cell in (([3.0], "3"), ([3.0, 3.0], "3"), ([0.12345, 2.0], "0.1235, 2"), ([1234.5], "1,234")):
        assert corrected._numbers(found) == cell


def test_aids_and_longer_training_stand_beside_the_helped_model() -> None:
    rows = [outcome(name, part="ablation") for name in state_tracking_runs.WITHOUT.values()]
    rows += [outcome("lstm-to-128", error=0.25, part="longer")]
    left, right = state_tracking_page.draw(rows, LAPTOP).axes
    assert left.get_legend() is None
    assert legend(right) == [*state_tracking_page.AIDS.values(), "LSTM, trained to 128"]
    assert drawn(right)["LSTM, trained to 128"] == ([18], [25])


def test_the_band_is_from_the_least_to_the_greatest_of_the_seeds() -> None:
    rows = [
        outcome(name, length, 0.03 * seed, seed=seed)
        for name in state_tracking_runs.TITLES
        for length in (8, 18)
        for seed in (1, 2, 6)
    ]
    axes = state_tracking_page.draw(rows, LAPTOP).axes[0]
    assert drawn(axes)["Transformer-PSM, plain"][1] == pytest.approx([9, 9])
    for band in axes.collections:
        heights: Any = band.get_paths()[0].vertices
        assert (heights[:, 1].min(), heights[:, 1].max()) == pytest.approx((3, 18))


def test_seeds_that_are_far_apart_are_drawn_one_by_one() -> None:
    rows = [outcome("lstm-noise", n, e, seed=seed) for seed, e in enumerate((0.0, 0.5)) for n in (8, 18)]
    axes = state_tracking_page.draw(rows, LAPTOP).axes[0]
    assert legend(axes) == ["LSTM, noise on its states, seed by seed"] and not axes.collections
    heights = [np.ravel(line.get_ydata()).tolist() for line in axes.get_lines() if line.get_marker() == "."]
    assert heights == [[0, 0], [50, 50]]


def test_the_defect_is_beside_the_errors() -> None:
    axes = only_axes(
        state_tracking_page.draw_defects(
            [state_tracking_page.Defect(10, 1.0, 0.5, 0.6, 0.7), state_tracking_page.Defect(20, 0.5, 0.1, 0.2, 0.3)]
        )
    )
    assert legend(axes) == ["associativity defect of Agg", "error at 18", "error at 64", "error at 180"]
    assert drawn(axes)["error at 64"] == ([10, 20], [0.6, 0.2])


def test_a_curriculum_that_did_not_reach_its_end_is_named() -> None:
    rows = [
        outcome("lstm-to-128", 4096, 0.5, part="longer", trained_to=128),
        outcome("deltaproduct-to-128", 4096, 0.9, part="longer", trained_to=8),
        outcome("deltaproduct-at-128", 4096, 0.9, part="longer", trained_to=128),
    ]
    _, text, table = state_tracking_page._longer(rows, LAPTOP)
    assert text.count("did not come further than") == 1
    assert "The curriculum of DeltaProduct, 4 reflections a token, trained to 128 did not come further than 8" in text
    assert "DeltaProduct, 4 reflections a token, 128 from the start" in table and "LSTM, trained to 128" in table


def test_a_hybrid_is_compared_window_by_window_with_two_standard_errors() -> None:
    known = language_runs.models("laptop", 1024)
    one = language_page.ByWindow("deep-hybrid", "gpt", 1, "test", 512, mean=-0.02, error=0.005, windows=80, better=60)
    _, _, table = language_page._by_window([one], known)
    assert table.endswith("against GPT, context 512 | test | 80 | -1.98% | -2.96% to -1.00% | 75% |")
    assert language_page._by_window([], known) == []


def test_associative_recall_has_every_family_and_the_frontier() -> None:
    use = recall_runs.setting("laptop")
    held = {name: 1000 * (i + 1) for i, name in enumerate(use.models)}
    rows = [
        outcome(name, length, length / 1000, seed=seed)
        for name in held
        for length in (128, 256, 512)
        for seed in (0, 1)
    ]
    left, right = recall_page.draw(rows, use, held).axes
    assert set(legend(left)) == {family.title for family in use.families.values()} | {"frontier of the recurrent rows"}
    assert "256" in left.get_xlabel() and len(legend(right)) == 8
    for curve in drawn(right).values():
        assert curve == ([128, 256, 512], pytest.approx([12.8, 25.6, 51.2]))
    assert [label.get_text() for label in right.get_xticklabels()] == ["128", "256", "512"]
    # Of what is there.
    left, right = recall_page.draw(rows[:6], use, held).axes
    assert legend(left) == ["Transformer-PSM, projecting Agg"] and legend(right) == ["c = 4, projecting Agg"]


def test_the_table_of_recall_has_the_lengths_that_were_tested() -> None:
    use = recall_runs.setting("laptop")
    held = dict.fromkeys(use.models, 1000)
    rows = [outcome("gla-16", length, 0.25) for length in (128, 64)]
    head, (line,) = recall_page._errors(rows, use, held)
    assert head[-2:] == ["64", "128"] and line[0] == "GLA, width 16" and line[-2:] == ["25.00", "25.00"]


@pytest.mark.parametrize(
    ("errors", "verdict"),
    [
        ((0.9, 0.5, 0.1, 0.0), "is seen."),
        ((0.9, 0.0005, 0.001, 0.0), "is seen."),
        ((0.0, 0.1, 0.0, 0.0), "is not seen."),
        ((0.94, 0.93, 0.1, 0.0), "is seen among those that trained with every seed (c = 16, c = 32)."),
        ((0.94, 0.93, 0.0, 0.0), "cannot be judged among those that trained with every seed (c = 16, c = 32)."),
        ((0.94, 0.93, 0.94, 0.94), "cannot be judged among those that trained with every seed (none)."),
    ],
)
def test_the_papers_order_of_recall_is_longer_chunks_with_fewer_errors(errors: tuple[float, ...], verdict: str) -> None:
    use = recall_runs.setting("laptop")
    names = list(use.families["psm-projection"].models)
    rows = [outcome(name, 256, error) for name, error in zip(names, errors, strict=True)]
    rows += [outcome(name, 64, error) for name, error in zip(names, errors, strict=True)]
    assert recall_page._order(rows[1:4], use) == []
    (said,) = recall_page._order(rows, use)
    assert said.startswith("Transformer-PSM, projecting Agg, error in percent from c = 4 to c = 32: ")
    assert said.endswith(f"longer chunks recall more, {verdict}")


@pytest.mark.parametrize(("at_64", "at_128", "said"), [(0.01, 0.6, True), (0.3, 0.6, False), (0.01, 0.02, False)])
def test_what_a_chunk_length_loses_with_its_first_merge_is_said(at_64: float, at_128: float, said: bool) -> None:
    use = recall_runs.setting("laptop")
    rows = [
        outcome(f"psm-right-{c}", n, error)
        for c in (4, 8, 16, 32)
        for n, error in ((64, at_64), (128, at_128), (256, 0.8))
    ]
    (found,) = recall_page._order(rows, use)
    sentence = "With c = 32 nothing is merged at 64 tokens, where 1.00% are wrong, and 60.00% are at 128: what is lost"
    assert (sentence in found) == said and "With c = 16 nothing" not in found


def test_models_of_any_family_that_guess_at_every_length_are_named_with_their_seeds() -> None:
    use = recall_runs.setting("laptop")
    rows = [outcome("psm-projection-4", n, error) for n, error in ((64, 0.94), (256, 0.93))]
    rows += [outcome("psm-projection-8", n, error) for n, error in ((64, 0.1), (256, 0.94))]
    rows += [outcome("window-8", n, 0.97) for n in (64, 256)]
    rows += [outcome("mamba-16", 64, error, seed=seed) for seed, error in enumerate((0.94, 0.2, 0.93))]
    (said,) = recall_page._guesses(rows, use)
    assert said.startswith("A guess among the values of the sequence is wrong in 93.75%.")
    assert said.endswith("hold: Transformer-PSM, projecting Agg, c = 4; Mamba, width 16 (2 of 3 seeds).")
    assert recall_page._guesses(rows[2:4], use) == []


@pytest.mark.parametrize(
    ("learned", "verdict"),
    [
        ({(4, 4), (8, 4), (8, 8)}, "were exactly those with no more pairs than places. Fewer"),
        (
            {(4, 4), (8, 4)},
            "Places do not explain which were learned, with at most 5% errors: c = 4 with 4 pairs; c = 8",
        ),
        ({(4, 4), (8, 4), (8, 8), (8, 16)}, "Places do not explain which were learned"),
        (set[tuple[int, int]](), "Places do not explain which were learned, with at most 5% errors: none."),
    ],
)
def test_short_chunks_lack_places_if_they_learn_as_many_pairs_as_they_have(
    learned: set[tuple[int, int]], verdict: str
) -> None:
    use = recall_runs.setting("laptop")

    def error(c: int, pairs: int) -> float:
        return 0.01 if (c, pairs) in learned else 0.06

    rows = [outcome(f"psm-projection-{c}", 256, error(c, 16)) for c in (4, 8)]
    assert recall_page._fewer(rows, use) == []
    rows += [
        outcome(f"psm-projection-{c}-with-{pairs}-pairs", 256, error(c, pairs), part="pairs")
        for c in (4, 8)
        for pairs in (4, 8)
    ]
    _, _, table, said = recall_page._fewer(rows, use)
    assert verdict in said
    cells = [f"{100 * error(8, pairs):.2f}" for pairs in (4, 8, 16)]
    assert (
        f"| c = 8 | {' | '.join(cells)} |" in table and "| a guess among the values | 75.00 | 87.50 | 93.75 |" in table
    )
    # Of a part of them nothing follows.
    *_, said = recall_page._fewer(rows[:-1], use)
    assert said.endswith("Agg has to learn to leave them out.")


def test_a_hybrid_is_compared_before_any_transformer_psm_is_there() -> None:
    known = language_runs.models("laptop", 1024)
    rows = [outcome(name, 512, loss=loss) for name, loss in (("gpt", 2.0), ("alternating", 1.9), ("mamba", 2.5))]
    work = {"gpt": 4.0, "alternating": 3.0, "mamba": 1.0}
    (said,) = language_page._findings(rows, SIZES["laptop"], known, "modern", "gpt", work)
    assert said == (
        f"The {known['alternating'].title}: -9.52% from GPT's, with 0.75 times its operations; -45.12% from Mamba's, with "
        "3.00 times its operations."
    )
    (said,) = language_page._findings(
        [*rows, outcome("psm-32", 512)], SIZES["laptop"], known, "modern", "gpt", work | {"psm-32": 5.0}
    )
    assert said.endswith(
        "Transformer-PSM without recent chunks has 1.25 to 1.25 times those of full attention over the same window."
    )


def place(name: str, nbytes: int, accuracy: float) -> recall_page.Place:
    return recall_page.Place("family", name, "recurrent", nbytes, Spread.of([accuracy]))


def test_a_frontier_has_what_none_beats_with_as_few_bytes() -> None:
    points = [
        place("d", 400, 0.8),
        place("a", 100, 0.5),
        place("c", 300, 0.4),
        place("b", 200, 0.7),
        place("e", 400, 0.6),
    ]
    line = recall_page.frontier(points)
    assert [point.model for point in line] == ["a", "b", "d"]
    # Above it, on it, smaller than all of it, and below.
    assert recall_page.below(place("x", 250, 0.9), line) is None
    assert recall_page.below(place("x", 200, 0.7), line) is None
    assert recall_page.below(place("x", 99, 0.0), line) is None
    assert recall_page.below(place("x", 350, 0.6), line) == line[1]


def test_perplexity_has_a_point_for_each_chunk_length_and_lines_for_what_has_none() -> None:
    use, known = SIZES["laptop"], language_runs.models("laptop", 1024)
    titles = {name: model.title for name, model in known.items()}
    rows = [outcome(name, 512, loss=3 + i / 100) for i, name in enumerate(known)]
    perplexities = {row.model: row.perplexity for row in rows}
    left, right = language_page.draw(rows, use, titles).axes
    psm = "Transformer-PSM, trained at 512"
    assert legend(left) == [
        psm, titles["gpt"], titles["mamba"], titles["hybrid"], titles["alternating"], titles["deep-hybrid"], titles["psm-32-recent"], titles["psm-64-memory"],
        titles["psm-128-at-2048"],
    ]  # fmt: skip
    assert legend(right) == [psm, titles["paper-gpt2"]]
    for axes, family in ((left, "psm"), (right, "paper-psm")):
        assert drawn(axes)[psm] == ([32, 64, 128, 256], [perplexities[f"{family}-{c}"] for c in use.chunks])
    assert drawn(left)[titles["psm-32-recent"]] == ([32], [perplexities["psm-32-recent"]])
    for axes, name in (
        (left, "gpt"),
        (left, "mamba"),
        (left, "hybrid"),
        (left, "alternating"),
        (left, "deep-hybrid"),
        (right, "paper-gpt2"),
    ):
        assert set(drawn(axes)[titles[name]][1]) == {perplexities[name]}
    # Of what is there.
    left, right = language_page.draw([row for row in rows if row.model == "psm-64"], use, titles).axes
    assert legend(left) == [psm] and right.get_legend() is None


def test_streams_have_a_line_for_each_model_and_mark_where_it_was_trained() -> None:
    parts = [
        language_page.StreamedPart("a", seed, 512, begin, end, 9, loss)
        for seed in (0, 1)
        for begin, end, loss in ((0, 512, 0.0), (512, 1024, 1.0 + seed))
    ]
    parts += [language_page.StreamedPart("b", 0, 2048, 0, 512, 9, 0.0)]
    axes = only_axes(language_page.draw_streams(parts, {"a": "A", "b": "B"}))
    assert legend(axes) == ["A", "B"] and upright(axes) == [512, 2048]
    # Perplexities of the seeds are averaged, not their losses.
    assert drawn(axes)["A"] == ([256, 768], pytest.approx([1, (e + e**2) / 2]))
    assert language_page.by_position(parts, "a")[512, 1024].cell(2) == "5.05 (2.72 to 7.39)"


def test_a_page_says_plainly_what_it_was_made_without() -> None:
    assert figures.missing_runs([]) == []
    (said,) = figures.missing_runs(
        ["lstm-4-generators-0", "sweep-lstm-3e-05", "lstm-4-generators-1", "s5-3 at 1,000,000 tokens"]
    )
    assert "4 of them, or of what they were to read, are missing" in said
    assert said.endswith("`lstm-4-generators` 0, 1; `sweep-lstm` 3e-05; `s5` 3 at 1,000,000 tokens.")


def test_the_same_numbers_give_the_same_files(tmp_path: Path) -> None:
    rows = [outcome(name, length) for name in state_tracking_runs.TITLES for length in (18, 180)]
    for folder in ("one", "two"):
        drawing = state_tracking_page.draw(rows, LAPTOP)
        assert figures.save_figure(drawing, tmp_path / folder, "s5") == tmp_path / folder / "s5.png"
    for kind in ("png", "svg"):
        assert (tmp_path / "one" / f"s5.{kind}").read_bytes() == (tmp_path / "two" / f"s5.{kind}").read_bytes()


# What the runs were found to do.


def trained(rate: float, stage: int, loss: float) -> Trained:
    recipe: Recipe[Any, Any] = recall_runs.setting("smoke").recipe
    score = {"length": 32, "samples": 4, "loss": 2.0, "error": 0.5, "bits_per_byte": None}
    best = {"step": 3, "stage": stage, "loss": loss, "error": 0.5}
    result = {"steps": 5, "tokens": 50, "parameters": 7, "best": best, "test": [score, score | {"length": 48}]}
    return Trained(f"run-{rate}", recipe, Path("nowhere"), result)


@pytest.mark.parametrize(
    ("found", "best"),
    [
        ({1e-3: (0, 1.0), 3e-3: (0, 0.5), 1e-2: (0, 0.7)}, 3e-3),
        # Further in the curriculum is harder, and its loss cannot be compared.
        ({1e-3: (0, 0.1), 3e-3: (1, 2.5), 1e-2: (1, 2.7)}, 3e-3),
    ],
)
def test_the_best_rate_came_furthest_and_then_lowest(found: dict[float, tuple[int, float]], best: float) -> None:
    assert best_rate({rate: trained(rate, *reached) for rate, reached in found.items()}) == best


def test_a_run_is_a_row_for_each_test_length() -> None:
    rows = run_scores(trained(1e-3, 1, 0.25), "psm", "final")
    assert [row.length for row in rows] == [32, 48]
    lengths = recall_runs.setting("smoke").recipe.curriculum.lengths
    assert {(row.model, row.part, row.trained_to, row.validation_loss) for row in rows} == {
        ("psm", "final", lengths[1], 0.25)
    }


def test_errors_are_gathered_over_seeds_and_the_sweep_is_told_apart() -> None:
    rows: Sequence[RunScore] = [
        outcome("a", 18, 0.2),
        outcome("a", 18, 0.6, seed=1),
        outcome("b", 18, 0.9),
        outcome("a", 18, 0.0, part="sweep", learning_rate=1e-2, trained_to=3, validation_loss=0.5),
        outcome("a", 18, 0.0, part="sweep", learning_rate=1e-3, trained_to=4, validation_loss=0.25),
    ]
    (found,) = error_by_length(rows, "a").values()
    assert (found.mean, found.least, found.greatest) == pytest.approx((0.4, 0.2, 0.6))
    assert sweep_table(rows, {"a": "A", "b": "B"}, (1e-3, 1e-2, 1e-1)) == [
        ["A", "0.001 (taken)", 4, "0.2500"],
        ["A", "0.01", 3, "0.5000"],
        ["A", "0.1", "", "diverged, or not there"],
    ]
    # A list of rates for each model, too.
    assert sweep_table(rows, {"a": "A", "b": "B"}, {"a": (1e-2,)}) == [["A", "0.01", 3, "0.5000"]]
    (line,) = sweep_table(rows, {"a": "A"}, (1e-2,), {("a", 1e-2)})
    assert line[1] == "0.01 (taken)"


def test_a_cell_has_the_mean_and_the_spread_where_there_is_one() -> None:
    assert Spread.of([0.5]).cell() == "0.50" and Spread.of([0.1, 0.1001]).cell() == "0.10"
    assert Spread.of([0.1, 0.2, 0.6]).cell(1, factor=100) == "30.0 (10.0 to 60.0)"
    assert Spread.of([0.1, 0.2]).count == 2
