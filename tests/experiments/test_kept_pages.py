"""What each experiment trains, says and draws, kept as a whole: a change that nobody meant shows as a difference.

The runs are made up, their numbers taken from their names; everything behind them is real. `kept/` holds what came of
it: the recipes, each as what is not as in the one before it; tables; pages; figures in words. After a change that is
meant, look at the difference that this leaves, and commit it:

    PYTHONPATH=tests/experiments python -c "import test_kept_pages as t; t.keep_all()"
"""

import hashlib
import json
import os
import tempfile
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any
from unittest.mock import patch

import numpy as np
import pytest
from matplotlib.colors import to_hex
from matplotlib.figure import Figure
from rich.console import Console

from scannable.experiments import (
    complexity,
    corrected_runs,
    language_modelling,
    language_page,
    latency_page,
    left_factor,
    long_reading,
    recall,
    state_tracking,
    streamed_text,
    training_space,
)
from scannable.experiments.laboratory import Laboratory, Trained
from scannable.experiments.language_profiles import SIZES as TEXT_SIZES
from scannable.experiments.language_runs import models as text_models
from scannable.experiments.profile import Profile
from scannable.experiments.state_tracking_page import Defect
from scannable.experiments.state_tracking_runs import setting
from scannable.storage.configuration import to_plain
from scannable.training.recipe import Recipe

KEPT = Path(__file__).parent / "kept"
MODULES = {"s5": state_tracking, "mqar": recall, "wikitext": language_modelling}
ABOUT = "of runs that are made up: no number here was measured"
CASES: list[tuple[str, Profile]] = [(name, profile) for name in MODULES for profile in ("smoke", "laptop", "paper")]


def share(*names: object) -> float:
    """A number from 0 to 1 that belongs to these names, with few digits."""
    return int.from_bytes(hashlib.sha256(repr(names).encode()).digest()[:2]) % 1000 / 1000


def result_of(name: str, recipe: Recipe[Any, Any]) -> dict[str, Any]:
    """A run's, as if it had been trained."""
    lengths = sorted({*recipe.evaluation.lengths, recipe.curriculum.lengths[-1]})
    stage = int(share(name, "stage") * len(recipe.curriculum.lengths))
    return {
        "steps": recipe.steps,
        "tokens": int(1e6 * (1 + share(name, "tokens"))),
        "parameters": int(1e5 * (1 + share(name.rpartition("-")[0], "parameters"))),
        "best": {"step": 1, "stage": stage, "loss": 1 + share(name, "validation"), "error": share(name, "error")},
        "test": [
            {
                "length": length,
                "samples": recipe.evaluation.samples,
                "loss": 2 + share(name, length, "loss"),
                # Some are nearly perfect: pages say other things of them.
                "error": share(name, length) if share(name, "learned") < 0.6 else share(name, length) / 200,
                "bits_per_byte": 1 + share(name, length, "bits"),
            }
            for length in lengths
        ],
    }


@dataclass(frozen=True)
class MadeUp(Laboratory):
    """Every run is there at once; what was asked for is noted."""

    recipes: dict[str, Recipe[Any, Any]] = field(default_factory=dict)
    figures: dict[str, Any] = field(default_factory=dict)

    def train(
        self, recipes: Mapping[str, Recipe[Any, Any]], part: str = "", *, may_diverge: bool = False
    ) -> dict[str, Trained]:
        for name, recipe in recipes.items():
            assert name not in self.recipes
            self.recipes[name] = recipe
        return {
            name: Trained(name, recipe, self.runs / name, result_of(name, recipe)) for name, recipe in recipes.items()
        }

    def save_figure(self, figure: Figure, folder: Path, name: str) -> None:
        self.figures[name] = in_words(figure)

    def trains(self, part: str) -> bool:
        return False

    def has_weights(self, run: Trained) -> bool:
        return True

    def left(self) -> dict[str, Any]:
        """All of it."""
        recipes = told_apart(self.recipes)
        files = {path.name: some_lines(path) for path in sorted(self.results.glob("*.*"))}
        # What is drawn and said of the smallest runs has nothing of its own, nor have the figures of the largest.
        parts = {"recipes": recipes, "files": files, "figures": self.figures}
        kept = {"smoke": ("recipes",), "laptop": tuple(parts), "paper": ("recipes", "files")}[self.profile]
        whole = json.dumps({"about": ABOUT, **{part: parts[part] for part in kept}})
        return json.loads(whole if self.data is None else whole.replace(self.data, "TEXT"))


def told_apart(recipes: Mapping[str, Recipe[Any, Any]]) -> dict[str, Any]:
    """The first one whole, each other as what is not as in the one before it."""
    found, before = dict[str, Any](), dict[str, str]()
    for name, recipe in recipes.items():
        mine = flattened(to_plain(recipe))
        gone = [f"no {path}" for path in before if path not in mine]
        new = [f"{path}: {value}" for path, value in mine.items() if before.get(path) != value]
        found[name] = "; ".join([*gone, *new]) if before else mine
        before = mine
    return found


def flattened(plain: Any, path: str = "") -> dict[str, str]:
    """A line for each value within."""
    if isinstance(plain, Mapping):
        return {
            inner: value
            for key, part in plain.items()
            for inner, value in flattened(part, f"{path}.{key}" if path else str(key)).items()
        }
    return {path: json.dumps(plain)}


def some_lines(path: Path) -> list[str]:
    """All of a page, some of a long table."""
    lines = path.read_text().splitlines()
    return lines[:: 1 if path.suffix == ".md" else 1 + len(lines) // 20]


def in_words(figure: Figure) -> list[Any]:
    """What can be seen of a figure: names, scales and every curve."""
    figure.draw_without_rendering()

    def rounded(values: Any) -> str:
        return " ".join(f"{float(value):.6g}" for value in values)

    return [
        {
            "title": axes.get_title(),
            "x": [axes.get_xlabel(), axes.get_xscale(), rounded(axes.get_xlim())],
            "y": [axes.get_ylabel(), axes.get_yscale(), rounded(axes.get_ylim())],
            "ticks": [tick.get_text() for tick in axes.get_xticklabels()],
            "legend": [text.get_text() for text in legend.get_texts()] if (legend := axes.get_legend()) else None,
            "texts": [[text.get_text(), rounded(text.get_position())] for text in axes.texts],
            "lines": [
                [
                    str(line.get_label()),
                    str(line.get_linestyle()),
                    str(line.get_marker()),
                    str(line.get_color()),
                    rounded(line.get_xdata()),
                    rounded(line.get_ydata()),
                ]
                for line in axes.get_lines()
            ],
            "areas": [
                [
                    to_hex(np.asarray(area.get_facecolor())[0], keep_alpha=True),
                    *(rounded(np.ravel(path.vertices)) for path in area.get_paths()),
                ]
                for area in axes.collections
                if len(area.get_facecolor())
            ],
        }
        for axes in figure.axes
    ]


def leave_readings(lab: MadeUp, name: str) -> None:
    """What runs keep with them beside their result."""
    if name == "s5":
        for seed in setting(lab.profile).helped_seeds:
            for length, count in setting(lab.profile).readings:
                where = (seed, length)
                end = long_reading.Read(length, length * count, int(4 * share(*where)), 10_000 + seed)
                folder = lab.runs / f"psm-helped-{seed}"
                folder.mkdir(parents=True, exist_ok=True)
                first = 5000 if end.errors else None
                long_reading.keep_reading(folder, long_reading.Reading(count, 4096, (end,), first, 60.0 + length % 7))
        for seed in setting(lab.profile).noisy_seeds:
            longest = setting(lab.profile).recipe.evaluation.lengths[-1]
            count = min(64, setting(lab.profile).recipe.evaluation.samples)
            wrong = left_factor.LeftFactor(count, longest, 10_000, 5000, 2, 5000 - 40 * seed)
            left_factor.keep_factor(lab.runs / f"lstm-noise-{seed}", wrong)
    elif name == "wikitext":
        use = TEXT_SIZES[lab.profile]
        spans = streamed_text.stretches(use.stream, use.context)
        for model in text_models(lab.profile, 257):
            for seed in use.seeds:
                folder = lab.runs / f"{model}-{seed}"
                folder.mkdir(parents=True)
                parts = [streamed_text.Stretch(*span, 100, 2 + share(model, seed, span)) for span in spans]
                streamed_text.keep(folder, use.stream, parts)


def made(name: str, profile: Profile, place: Path) -> dict[str, Any]:
    """All that an experiment leaves."""
    text = place / "text.txt"
    text.write_text("".join(f"{i} and {i * i} are numbers.\n" for i in range(4000)))
    of_text = name == "wikitext"
    lab = MadeUp(
        name, profile, place / "results", place / "runs", Console(quiet=True),
        data=str(text) if of_text else None, tokenizer="bytes" if of_text else None,
    )  # fmt: skip
    leave_readings(lab, name)
    module: Any = MODULES[name]
    along = [Defect(100 * i, 1 / i, *(share(i, n) for n in (18, 64, 180))) for i in (1, 2, 3)]
    with (
        patch.object(module, "save_figure", lab.save_figure),
        patch.object(state_tracking, "defects", lambda *_: along),
        # Nothing is built: what these count has tests of its own.
        patch.object(
            language_modelling, "work_per_token", lambda model, length: 1e6 * (1 + share(repr(model), length))
        ),
        patch.object(recall, "bytes_held", lambda model, length: int(1e5 * share(repr(model), length))),
    ):
        module.run(lab)
    return lab.left()


def as_text(plain: Any) -> str:
    return json.dumps(plain, indent=1, ensure_ascii=False) + "\n"


def path_of(name: str, profile: Profile) -> Path:
    return KEPT / f"{name}-{profile}.json"


def latency() -> dict[str, Any]:
    """The page and the figure of made-up times."""
    sizes = latency_page.SIZES["laptop"]
    timings: list[latency_page.Timing] = []
    for streams, places in ((1, (*sizes.positions, *sizes.long_positions)), (sizes.many, sizes.many_positions)):
        for name in latency_page.LOOKS:
            for place in places:
                mean, median, slowest, p50, p99 = (1 + 10 * share(name, place, streams, i) for i in range(5))
                nbytes = int(1e6 * share(name, place))
                timings.append(latency_page.Timing(name, place, 64, mean, median, slowest, nbytes, streams, p50, p99))
    lab = MadeUp("latency", "laptop", Path("results"), Path("runs"))
    with patch.object(latency_page, "_processor", lambda: "a processor"), patch("torch.__version__", "2"):
        page = latency_page._page(lab, sizes, timings)
    return {
        "about": ABOUT,
        "page": "\n\n".join(page).splitlines(),
        "figure": in_words(latency_page.draw(timings, sizes)),
    }


def sizes() -> dict[str, Any]:
    """Of the experiments that train little or nothing."""
    modules: dict[str, Any] = {
        "latency": latency_page, "spd": complexity, "space": training_space, "corrected": corrected_runs,
    }  # fmt: skip
    found: dict[str, Any] = {
        name: {profile: asdict(one) for profile, one in module.SIZES.items()} for name, module in modules.items()
    }
    found["the paper's figures"] = {"latency": latency_page.PAPER, "wikitext": language_page.PAPER}
    for profile, use in corrected_runs.SIZES.items():
        found[f"runs of corrected, {profile}"] = told_apart(corrected_runs.recipes(use))
    return json.loads(json.dumps(found))


OTHERS = {"latency": latency, "sizes": sizes}


def keep_all() -> None:
    KEPT.mkdir(exist_ok=True)
    for name, profile in CASES:
        with tempfile.TemporaryDirectory() as place:
            os.environ["XDG_CACHE_HOME"] = place
            path_of(name, profile).write_text(as_text(made(name, profile, Path(place))))
    for name, make in OTHERS.items():
        (KEPT / f"{name}.json").write_text(as_text(make()))


@pytest.mark.parametrize(("name", "profile"), CASES)
def test_an_experiment_leaves_what_it_left_before(
    name: str, profile: Profile, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    found, kept = made(name, profile, tmp_path), json.loads(path_of(name, profile).read_text())
    for part in kept:
        assert found[part] == kept[part]
    assert found.keys() == kept.keys()


@pytest.mark.parametrize("name", OTHERS)
def test_sizes_and_pages_are_those_of_before(name: str) -> None:
    assert OTHERS[name]() == json.loads((KEPT / f"{name}.json").read_text())
