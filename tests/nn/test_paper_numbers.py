"""The defaults are the paper's: the same parameters, in name, order and starting value, and the same outputs as ever."""

import pytest
import torch
from torch import Tensor, nn

import scannable as sc
from scannable.layers.transformer_psm import TransformerAgg, TransformerInf
from scannable.nn import Transformer

BLOCK = [
    f"{part}.{kind}"
    for part in (
        "attention_norm",
        "attention.query",
        "attention.key_value",
        "attention.out",
        "mlp_norm",
        "mlp_in",
        "mlp_out",
    )
    for kind in ("weight", "bias")
]
NAMES = ["positions", *(f"blocks.{i}.{name}" for i in range(2) for name in BLOCK), "norm.weight", "norm.bias"]


def checksum(values: Tensor) -> float:
    """A number that changes with every value and every place."""
    flat = values.detach().double().flatten()
    return float((flat * torch.linspace(-1, 2, len(flat), dtype=torch.float64).cos()).sum())


def weights(module: nn.Module) -> float:
    return checksum(torch.cat([parameter.flatten() for parameter in module.parameters()]))


def waves(*shape: int) -> Tensor:
    return 2 * torch.linspace(-2, 2, torch.Size(shape).numel(), dtype=torch.float64).sin().reshape(shape)


@pytest.mark.parametrize(
    ("causal", "whole", "kept"),
    [(False, 0.8762311700987073, 1.576007880654612), (True, 0.7839101086491356, 1.4853910392284346)],
)
def test_a_transformer_is_what_it_was(causal: bool, whole: float, kept: float) -> None:
    torch.manual_seed(0)
    model = Transformer(width=16, layers=2, heads=4, window=12, causal=causal).double().eval()
    assert [name for name, _ in model.named_parameters()] == NAMES
    assert weights(model) == pytest.approx(22.843943902521055, rel=1e-9)
    assert checksum(model(waves(3, 12, 16))) == pytest.approx(whole, rel=1e-9)
    assert checksum(model(waves(3, 12, 16), kept=5)) == pytest.approx(kept, rel=1e-9)


@pytest.mark.parametrize(
    ("compress", "started", "merged"),
    [("right_half", 30.806396766504456, -0.7191902960379455), ("projection", 28.680938840677356, -0.30983850082024933)],
)
def test_agg_and_inf_are_what_they_were(compress: str, started: float, merged: float) -> None:
    config = sc.TransformerPSMConfig(11, width=16, chunk_length=4, heads=2, compress=compress)  # pyright: ignore
    torch.manual_seed(0)
    agg = TransformerAgg(config.width, config.heads, config).double().eval()
    extra = ["projection.weight", "projection.bias"] if compress == "projection" else []
    assert [name for name, _ in agg.named_parameters()] == [*(f"transformer.{name}" for name in NAMES), *extra]
    older, newer = waves(2, 3, 4, 16).unbind(0)
    assert weights(agg) == pytest.approx(started, rel=1e-9)
    assert checksum(agg(older, newer)) == pytest.approx(merged, rel=1e-9)
    torch.manual_seed(0)
    inf = TransformerInf(config.width, config.heads, config).double().eval()
    assert [name for name, _ in inf.named_parameters()] == [f"transformer.{name}" for name in NAMES]
    assert weights(inf) == pytest.approx(30.806396766504456, rel=1e-9)
    assert checksum(inf(older, newer)) == pytest.approx(-0.7958169820945162, rel=1e-9)
