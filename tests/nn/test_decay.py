"""Which parameters decay, by name, in every layer and model."""

import copy
from typing import Any

import pytest
import torch
from torch import nn

import scannable as sc
from scannable.baselines import (
    GPT2Baseline,
    GPT2BaselineConfig,
    MambaBaseline,
    MambaBaselineConfig,
)
from scannable.layers import LAYERS
from scannable.nn.decay import left_alone, undecayed, with_decay

DECAYING = {
    "linear_attention": "query_key_value.weight out.weight",
    "deltanet": "query_key_value.weight convolution.weight strength.weight out.weight",
    "gated_deltanet": "query_key_value.weight convolution.weight strength.weight out.weight step_size.weight "
    "out_gate.weight",
    "deltaproduct": "query_key_value.weight convolution.weight strength.weight out.weight",
    "psm": " ".join(
        f"{part}.transformer.blocks.0.{name}.weight"
        for part in ("agg", "inf")
        for name in ("attention.query", "attention.key_value", "attention.out", "mlp_in", "mlp_out")
    ),
    "retnet": "query_key.weight value_gate.weight out.weight",
    "mlstm": "query_key_value.weight gates.weight out_gate.weight out.weight",
    "gated_rfa": "query_key_value.weight gate.weight out.weight",
    "s4": "weight out.weight",
    "s6": "space.selection.weight space.step_size.weight out.weight",
    "mamba": "into.weight convolution.weight space.selection.weight space.step_size.weight out.weight",
    "gla": "query_key_value_gate.weight decay.0.weight decay.1.weight out.weight",
    "lti": "matrix into.weight out.weight skip.weight",
    "mamba2": "into.weight convolution.weight out.weight",
    "rwkv7": "receptance.weight key.weight value.weight decay.0.weight decay.2.weight strength.0.weight "
    "strength.2.weight gate.0.weight gate.2.weight out.weight",
    "gated_rnn": "gates.weight",
    "log_linear": "query_key_value.weight step_size.weight level_weight.weight out.weight",
    "attention": "attention.query.weight attention.key_value.weight attention.out.weight",
    "convolved_mlp": "into.weight out.weight convolution.weight inner_convolution.weight",
    "lstm": "cell.weight_ih_l0 cell.weight_hh_l0",
}
BLOCK = ("attention.query", "attention.key_value", "attention.out", "mlp_in", "mlp_out")
CONVOLUTIONS = (
    "attention.query_convolution",
    "attention.key_value_convolution",
    "attention_convolution",
    "mlp_convolution",
    "inner_convolution",
)


def decaying(model: nn.Module) -> set[str]:
    return {name for name, _, _, decays in with_decay(model) if decays}


@pytest.mark.parametrize("name", LAYERS)
def test_these_decay_in_a_layer_and_nothing_else(name: str) -> None:
    layer = LAYERS[name](16)
    assert decaying(layer) == set(DECAYING[name].split())
    assert decaying(copy.deepcopy(layer)) == set(DECAYING[name].split())


@pytest.mark.parametrize("name", LAYERS)
def test_a_layer_says_so_itself_whatever_the_shapes(name: str) -> None:
    for path, module, parameter, decays in with_decay(LAYERS[name](16)):
        assert decays != left_alone(module, path.split(".")[-1], parameter), path


@pytest.mark.parametrize(
    "options", [{}, {"positions": "rotary", "norm": "rms", "mlp": "swiglu", "qk_norm": True, "convolution": 4}], ids=str
)
def test_these_decay_in_a_transformer_psm(options: Any) -> None:
    config = sc.TransformerPSMConfig(
        7, 16, chunk_length=4, heads=2, agg_layers=1, inf_layers=2, compress="projection", **options
    )
    model = sc.TransformerPSM(config)
    parts = (*BLOCK, *CONVOLUTIONS) if options else BLOCK
    blocks = ("agg.transformer.blocks.0", "inf.transformer.blocks.0", "inf.transformer.blocks.1")
    expected = {f"layer.{block}.{part}.weight" for block in blocks for part in parts}
    expected |= {"enc.weight", "head.weight", "layer.agg.projection.weight"}
    assert decaying(model) == expected


def test_positions_and_rates_of_baselines_do_not_decay() -> None:
    gpt = decaying(sc.LM(sc.LMConfig(9, ("attention",), 8, positions=20)))
    assert gpt == {"embedding.weight", "head.weight"} | {
        f"blocks.0.{part}.weight"
        for part in (*(f"mixer.attention.{name}" for name in ("query", "key_value", "out")), "mlp.into", "mlp.out")
    }
    gpt2 = decaying(GPT2Baseline(GPT2BaselineConfig(9, 8, layers=1, heads=2)))
    assert "transformer.wte.weight" in gpt2 and "transformer.wpe.weight" not in gpt2
    mamba = decaying(MambaBaseline(MambaBaselineConfig(9, 8, layers=1)))
    assert (
        not any(name.endswith(("A_log", ".D")) for name in mamba) and "backbone.layers.0.mixer.in_proj.weight" in mamba
    )


class Gated(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.rates = nn.Parameter(torch.ones(2, 3))
        self.matrix = nn.Parameter(torch.ones(2, 3))
        self.vector = nn.Parameter(torch.ones(3))


def test_a_module_of_ones_own_marks_its_parameters() -> None:
    module = Gated()
    assert decaying(module) == {"rates", "matrix"}
    undecayed(module, "rates")
    assert decaying(module) == {"matrix"}
    undecayed(module, "matrix")
    assert decaying(module) == set()
    with pytest.raises(ValueError, match="Gated has no parameter 'rate' of its own"):
        undecayed(module, "rate")


def test_a_shared_parameter_is_counted_once() -> None:
    first, second = nn.Linear(3, 3, bias=False), nn.Linear(3, 3, bias=False)
    second.weight = first.weight
    assert [name for name, *_ in with_decay(nn.Sequential(first, second))] == ["0.weight"]
