"""Weights start with the deviations that the docstrings state, those that write to the residual stream with less."""

from typing import Any

import pytest
import torch
from torch import Tensor, nn

import scannable as sc
from scannable.nn.block import Block, initialise

WIDTH = 256


def assert_deviation(weight: Tensor, expected: float) -> None:
    """Within five standard errors, std / sqrt(2 n), of what is expected."""
    found, error = float(weight.detach().std()), expected / (2 * weight.numel()) ** 0.5
    assert abs(found - expected) < 5 * error
    assert abs(float(weight.detach().mean())) < 5 * expected / weight.numel() ** 0.5


@pytest.mark.parametrize("depth", [1, 4, 9])
def test_a_block_starts_at_one_over_fan_in_and_its_residual_outputs_lower_by_the_depth(depth: int) -> None:
    torch.manual_seed(0)
    block = Block(WIDTH, 4, 0.0)
    initialise(block, depth)
    for linear in (block.attention.query, block.attention.key_value, block.mlp_in):
        assert_deviation(linear.weight, WIDTH**-0.5)
    assert_deviation(block.attention.out.weight, (WIDTH * 2 * depth) ** -0.5)
    assert_deviation(block.mlp_out.weight, (4 * WIDTH * 2 * depth) ** -0.5)
    assert all(not linear.bias.any() for linear in block.modules() if isinstance(linear, nn.Linear))


def test_agg_and_inf_of_a_transformer_psm_each_count_their_own_layers() -> None:
    torch.manual_seed(0)
    model = sc.TransformerPSM(sc.TransformerPSMConfig(7, WIDTH, chunk_length=4, agg_layers=3, inf_layers=1))
    for part, depth in (("agg", 3), ("inf", 1)):
        block = getattr(model, part).transformer.blocks[0]
        assert_deviation(block.attention.out.weight, (WIDTH * 2 * depth) ** -0.5)
    assert isinstance(model.head, nn.Linear)
    assert_deviation(model.state_dict()["layer.identity_0"], 1.0)


@pytest.mark.parametrize("layers", [1, 4])
@pytest.mark.parametrize(("name", "writers"), [("gla", 2), ("mamba", 1), ("lstm", 1)])
def test_what_writes_to_the_residual_stream_starts_lower_by_how_many_do(name: str, writers: int, layers: int) -> None:
    # GLA and its MLP write; Mamba has no MLP; an LSTM has no output map, so only its MLP does.
    torch.manual_seed(0)
    model = sc.LM(sc.LMConfig(40, (name,) * layers, width=WIDTH))
    total = writers * layers
    blocks: Any = model.blocks
    for block in blocks:
        mixer, mlp = block.mixer, block.mlp
        if isinstance(getattr(mixer, "out", None), nn.Linear):
            assert_deviation(mixer.out.weight, (mixer.out.in_features * total) ** -0.5)
        if mlp is not None:
            assert_deviation(mlp.into.weight, WIDTH**-0.5)
            assert_deviation(mlp.out.weight, (4 * WIDTH * total) ** -0.5)


@pytest.mark.parametrize(("options", "expected"), [({}, 1.0), ({"tie_weights": True}, WIDTH**-0.5)])
def test_an_embedding_that_is_the_output_layer_too_starts_smaller(options: Any, expected: float) -> None:
    torch.manual_seed(0)
    assert_deviation(sc.LM(sc.LMConfig(40, ("mamba",), width=WIDTH, **options)).embedding.weight, expected)


@pytest.mark.parametrize(("kind", "norm"), [("rms", nn.RMSNorm), ("layer", nn.LayerNorm)])
def test_all_norms_of_a_stack_have_its_eps(kind: Any, norm: type[nn.Module]) -> None:
    model = sc.LM(sc.LMConfig(40, ("linear_attention", "attention"), width=16, norm=kind, eps=0.25))
    norms: list[Any] = [model.norm, *(each for block in model.blocks for each in (block.norm, block.mlp_norm))]
    assert [(type(each), each.eps) for each in norms] == [(norm, 0.25)] * 5
