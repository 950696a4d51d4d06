"""The counts say the classes of Def. SPD, and Eqs. C1 and C2 say the counts."""

from dataclasses import replace
from pathlib import Path

import pytest
import torch

from scannable.experiments import complexity
from scannable.experiments.growth import growth
from scannable.experiments.laboratory import Laboratory
from scannable.experiments.predicted_cost import predict
from scannable.models.protocol import evaluating
from scannable.spd.counters import CountedDepth

SMOKE = complexity.SIZES["smoke"]
LENGTHS = [2**k for k in range(6, 15)]


@pytest.mark.parametrize(
    ("law", "values"),
    [
        ("1", [7.0 for _ in LENGTHS]),
        ("1", [7 - 100 / n for n in LENGTHS]),
        ("1", [7 + 100 / n for n in LENGTHS]),
        ("log n", [70 + 3 * n.bit_length() for n in LENGTHS]),
        ("n", [3.0 * n for n in LENGTHS]),
        ("n", [1e6 + 3 * n for n in LENGTHS]),
        ("n^0.5", [70 + n**0.5 for n in LENGTHS]),
    ],
)
def test_the_law_is_found_whatever_constant_is_added(law: str, values: list[float]) -> None:
    assert growth(LENGTHS, values).law == law


@pytest.fixture(scope="module")
def subjects() -> dict[str, complexity.Subject]:
    torch.manual_seed(0)
    return {subject.name: subject for subject in complexity.subjects(SMOKE)}


@pytest.mark.parametrize(
    "name", ["transformer", "transformer_psm", "gla", "deltanet", "deltaproduct", "log_linear", "lstm"]
)
def test_the_measured_class_is_the_claimed_one(name: str, subjects: dict[str, complexity.Subject]) -> None:
    subject = subjects[name]
    fit = complexity.fit(subject, complexity.measure(subject, SMOKE.lengths, SMOKE.steps))
    assert fit.agrees, fit
    assert fit.work_exponent == pytest.approx(2 if name == "transformer" else 1, abs=0.1)


def test_depth_is_constant_logarithmic_or_linear(subjects: dict[str, complexity.Subject]) -> None:
    @torch.no_grad()
    def depths(name: str) -> list[int]:
        found: list[int] = []
        for n in (64, 128, 256, 512):
            with evaluating(subjects[name].model), CountedDepth() as chain:
                next(iter(subjects[name].forms.values()))(torch.zeros(1, n, dtype=torch.int64))
            found.append(chain.depth)
        return found

    a, b, c, d = depths("transformer")
    assert a == b == c == d
    a, b, c, d = depths("transformer_psm")
    assert b - a == c - b == d - c > 0
    a, b, c, d = depths("mamba")
    assert b - a == c - b == d - c > 0
    a, b, c, d = depths("lstm")
    assert (b - a, c - b, d - c) == (64, 128, 256)


@pytest.mark.parametrize("width", [16, 64])
def test_counted_cost_is_what_c1_and_c2_predict(width: int) -> None:
    model = complexity.transformer_psm(replace(SMOKE, width=width, layers=2))
    for prediction in predict(model, (1, 3, 13)):
        assert prediction.counted == pytest.approx(prediction.from_parts, rel=0.05), prediction
        assert prediction.counted == pytest.approx(prediction.from_formula, rel=0.05), prediction


@pytest.mark.slow
def test_a_smoke_run_leaves_numbers_pictures_and_a_page(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    few = dict.fromkeys(("gla", "log_linear", "lstm"))
    monkeypatch.setattr(complexity, "LAYERS", {name: complexity.LAYERS[name] for name in few})
    complexity.run(Laboratory("spd", "smoke", tmp_path, tmp_path / "runs"))
    names = {path.name for path in tmp_path.iterdir()}
    tables = {"spd.csv", "fits.csv", "counters.csv", "predictions.csv", "sizes.json"}
    assert tables | {"spd.png", "spd.svg", "counts.png", "counts.svg", "README.md"} <= names
    page = (tmp_path / "README.md").read_text()
    assert "The measured class is the claimed one for every model." in page
    assert "| transformer | (n^2, n) | (n^2, n) | yes | 2.00 |" in page
