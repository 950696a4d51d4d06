"""Eq. C1 says what is kept for backward, once its factors are written down."""

import csv
from dataclasses import replace
from pathlib import Path

import pytest

from scannable.experiments import training_space
from scannable.experiments.laboratory import Laboratory
from scannable.experiments.training_space import Attention, Formula, Shape, Sizes, kept_for_backward

SIZES = Sizes(32, 2, Shape(24 * 16, 16, 1, 1), n=(), c=(), layers=())


def counted(shape: Shape, attention: Attention, *, checkpoint: bool = False) -> int:
    return kept_for_backward(shape, SIZES, attention, checkpoint=checkpoint)


@pytest.mark.parametrize("attention", ["fused", "plain"])
@pytest.mark.parametrize("checkpoint", [False, True])
@pytest.mark.parametrize("shape", [Shape(31 * 8, 8, 1, 3), Shape(24 * 16, 16, 2, 1), Shape(40 * 5, 5, 3, 2)])
def test_the_formula_says_what_is_counted(shape: Shape, attention: Attention, checkpoint: bool) -> None:
    formula = Formula(shape, SIZES.width, SIZES.heads, attention).nbytes(checkpoint=checkpoint)
    assert counted(shape, attention, checkpoint=checkpoint) == pytest.approx(formula, rel=0.03)


def test_checkpointing_takes_the_layers_of_agg_out_of_it() -> None:
    once, thrice = (replace(SIZES.middle, agg_layers=layers) for layers in (1, 3))
    assert counted(once, "fused", checkpoint=True) == counted(thrice, "fused", checkpoint=True)
    assert counted(thrice, "fused") > 2 * counted(once, "fused")


def test_the_factor_c_is_the_scores_of_plain_attention() -> None:
    """Of Inf alone, with Agg checkpointed; the vectors are as many a token for every c."""
    small, large = (replace(SIZES.middle, n=1024, c=c) for c in (8, 32))
    fused = [counted(shape, "fused", checkpoint=True) for shape in (small, large)]
    assert fused[1] == pytest.approx(fused[0], rel=0.01)
    scores = [
        counted(shape, "plain", checkpoint=True) - held for shape, held in zip((small, large), fused, strict=True)
    ]
    # 2c scores a token and head; the mask, 2c x c numbers once, is kept by fused attention alone.
    assert scores[1] - scores[0] == 4 * (1024 * SIZES.heads * 2 * (32 - 8) - 2 * (32**2 - 8**2))


def test_a_smoke_run_leaves_numbers_a_picture_and_a_page(tmp_path: Path) -> None:
    training_space.run(Laboratory("space", "smoke", tmp_path, tmp_path / "runs"))
    assert (tmp_path / "space.png").read_bytes().startswith(b"\x89PNG") and (tmp_path / "space.svg").exists()
    with (tmp_path / "space.csv").open() as file:
        rows = list(csv.DictReader(file))
    sizes = training_space.SIZES["smoke"]
    assert len(rows) == 4 * (len(sizes.n) + len(sizes.c) + 2 * len(sizes.layers))
    page = (tmp_path / "README.md").read_text()
    assert "scannable reproduce space --profile smoke" in page
    first = next(row for row in rows if row["axis"] == "n")
    assert f"| n | {first['n']} | {int(first['nbytes']) / int(first['n']) / 1024:.1f} |" in page
