"""Layers and models over a split sequence are the same function, with the same gradients."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch

import scannable as sc
from scannable import distributed
from scannable.layers import LAYERS
from scannable.layers.affine.layer import AffineLayer
from scannable.models.layer_options import PSMOptions

from rank_cases import layer_case, model_case, model_refused_case
from rank_pool import run

N = 37
CHUNKS: dict[str, Any] = {"chunk_length": 4, "agg_layers": 1, "inf_layers": 1}
ROWS = [name for name, layer in LAYERS.items() if issubclass(layer, AffineLayer)]
CASES: list[tuple[str, dict[str, Any], tuple[int, ...]]] = [
    *((name, {}, (0, 2, 20, 37)) for name in ROWS),
    *((name, {}, (0, 0, 35, 35, 37)) for name in ("mamba", "mlstm", "rwkv7", "attention")),
    # Nothing is dropped outside training.
    ("attention", {"dropout": 0.5}, (0, 5, 20, 37)),
    ("attention", {"window": 7}, (0, 3, 4, 20, 37)),
    ("attention", {"window": 7, "convolution": 3, "qk_norm": True}, (0, 1, 9, 37)),
    ("attention", {"convolution": 4}, (0, 2, 2, 9, 37)),
    ("convolved_mlp", {}, (0, 2, 2, 9, 37)),
    ("convolved_mlp", {"activation": "swiglu", "convolution": 3}, (0, 1, 20, 37)),
    ("psm", CHUNKS, (0, 4, 24, 37)),
    ("psm", {**CHUNKS, "recent": 2, "checkpoint": True}, (0, 4, 12, 12, 37)),
    ("psm", {**CHUNKS, "recent": 1, "prefix": "memory", "literal_identity": True}, (0, 0, 20, 37)),
]


def assert_same(found: list[dict[str, Any]], wanted: dict[str, Any], *names: str) -> None:
    for name in names:
        together = np.concatenate([rank[name] for rank in found], 1)
        np.testing.assert_allclose(together, wanted[name], rtol=1e-11, atol=1e-11, err_msg=name)
    for key, whole in wanted["shares"].items():
        total = sum(rank["shares"][key] for rank in found)
        np.testing.assert_allclose(total, whole, rtol=1e-10, atol=1e-10 * max(1, np.abs(whole).max()), err_msg=key)


@pytest.mark.parametrize(("name", "choices", "bounds"), CASES)
def test_a_layer_over_ranks_is_the_layer(name: str, choices: dict[str, Any], bounds: tuple[int, ...]) -> None:
    wanted = layer_case(None, name, choices, bounds, N)
    found = run(layer_case, len(bounds) - 1, name, choices, bounds, N)
    assert_same(found, wanted, "y", "x")
    for rank in found:
        assert rank["forward"] == found[0]["forward"], "all ranks exchange alike"
        assert len(rank["backward"]) == len(rank["forward"])
    gathers = found[0]["forward"].count("all-gather")
    assert gathers == (2 if name == "mlstm" else 0 if choices.get("window") or name == "convolved_mlp" else 1)


PSM = sc.TransformerPSMConfig(vocab_size=11, width=8, heads=2, chunk_length=4, agg_layers=1, inf_layers=1)
HYBRID = sc.LMConfig(
    vocab_size=11,
    width=8,
    heads=2,
    positions=40,
    layers=("mamba", PSMOptions(chunk_length=4), "attention", "gated_deltanet", PSMOptions(chunk_length=8, recent=1)),
)


@pytest.mark.parametrize("ranks", [1, 2, 3, 5])
@pytest.mark.parametrize(
    "config", [PSM, HYBRID, replace(HYBRID, checkpoint=True, tie_weights=True)], ids=["psm", "hybrid", "recomputed"]
)
def test_a_model_over_ranks_is_the_model(config: Any, ranks: int) -> None:
    wanted = model_case(None, config, None, N)
    found = run(model_case, ranks, config, None, N, ranks == 3)
    assert_same(found, wanted, "logits")
    assert sum(rank["loss"] for rank in found) == pytest.approx(wanted["loss"], rel=1e-12)


def test_alone_a_model_that_computes_twice_is_the_model() -> None:
    model, tokens = sc.LM(replace(HYBRID, checkpoint=True)).double(), torch.randint(11, (2, 20))
    parameters = list(model.parameters())
    wanted, found = model.loss(tokens, tokens), distributed.loss(model, tokens, tokens)
    torch.testing.assert_close(found, wanted)
    # The Agg of the last layer has nothing to do in so few chunks.
    ours, theirs = (torch.autograd.grad(loss, parameters, materialize_grads=True) for loss in (found, wanted))
    torch.testing.assert_close(ours, theirs)


def test_a_sequence_is_cut_between_the_chunks_of_all_layers() -> None:
    model = sc.LM(HYBRID)
    assert distributed.bounds_for(model, 37, 3) == (0, 8, 24, 37)
    assert distributed.bounds_for(sc.TransformerPSM(PSM), 37, 2) == (0, 20, 37)
    assert distributed.bounds_for(sc.LM(sc.LMConfig(vocab_size=3, width=8, layers=("gla",))), 5, 2) == (0, 2, 5)


@pytest.mark.parametrize(
    ("config", "bounds", "words"),
    [
        (
            PSM,
            (0, 6, 37),
            "cut at 6, inside a chunk: this model's chunks end at multiples of 4; bounds_for(model, 37, 2)",
        ),
        (
            replace(HYBRID, layers=("gla", "lstm")),
            (0, 6, 37),
            "LSTM does not go over a split sequence: its gates look at",
        ),
        (replace(HYBRID, layers=("log_linear",)), (0, 6, 37), "LogLinearAttention does not go over a split sequence"),
        (replace(HYBRID, layers=("gla",)), (0, 6, 41), "41 tokens are more than the 40 positions"),
    ],
)
def test_what_cannot_go_over_ranks_is_refused_on_all_of_them(config: Any, bounds: tuple[int, ...], words: str) -> None:
    for error in run(model_refused_case, 2, config, bounds):
        assert words in error
