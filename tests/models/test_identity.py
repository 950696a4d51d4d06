"""The identity of a prefix-scannable model: any that broadcasts to an element works on every way through the model."""

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import scannable as sc
from scannable.models.transformer_psm import TransformerAgg, TransformerInf

C, D = 4, 16


class MeanAgg(nn.Module):
    def forward(self, older: Tensor, newer: Tensor) -> Tensor:
        return torch.tanh(older - 2 * newer)


class SumInf(nn.Module):
    """Without a way to go on from a cache."""

    def forward(self, prefix: Tensor, x: Tensor) -> Tensor:
        return prefix.cumsum(-2) + x.cumsum(-2)


def model_of(identity: Any, *, incremental: bool, literal: bool = False) -> sc.PrefixScannableModel:
    torch.manual_seed(1)
    config = sc.TransformerPSMConfig(13, D, chunk_length=C, heads=2, agg_layers=1, inf_layers=1)
    agg, inf = (
        (TransformerAgg(D, config.heads, config), TransformerInf(D, config.heads, config))
        if incremental
        else (MeanAgg(), SumInf())
    )
    return sc.PrefixScannableModel(
        nn.Embedding(13, D), agg, inf, identity, C, head=nn.Linear(D, 5), literal_identity=literal
    ).double()


SHAPES = [(C, D), (1, D), (C, 1), (1, 1), (D,), (1,), ()]


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("incremental", [True, False])
@pytest.mark.parametrize("literal", [True, False])
def test_an_identity_of_any_shape_is_the_one_of_full_shape(
    shape: tuple[int, ...], incremental: bool, literal: bool, tmp_path: Path
) -> None:
    small = torch.randn(shape, generator=torch.Generator().manual_seed(0))
    options = {"incremental": incremental, "literal": literal}
    model = model_of(nn.Parameter(small.clone()), **options)
    full = model_of(nn.Parameter(small.expand(C, D).clone()), **options)
    tokens = torch.randint(13, (2, 23))
    assert torch.equal(model(tokens), full(tokens))
    assert model.identity.shape == (C, D) and model.state_dict()["layer.identity_0"].shape == shape
    report = sc.verify_duality(model, tokens)
    report.raise_if_failed()
    assert report.nbytes == report.nbytes_bound
    for n in (0, 2, 4):
        _, state = model.prefill(tokens[:, :n], model.initial_state(2))
        sc.save_state(state, tmp_path / "state")
        ways: list[Any] = [state.fork(), sc.load_state(tmp_path / "state"), sc.join([state])]
        for same in ways:
            outputs, _ = model.step(tokens[:, n], same)
            torch.testing.assert_close(outputs, full(tokens[:, : n + 1])[:, -1], rtol=1e-10, atol=1e-10)
        alone = sc.join([state]).row(1)
        outputs, _ = model.step(tokens[1:, n], alone)
        torch.testing.assert_close(outputs, full(tokens[1:, : n + 1])[:, -1], rtol=1e-10, atol=1e-10)


def test_a_parameter_of_any_shape_learns() -> None:
    e = nn.Parameter(torch.zeros(1, D))
    model = model_of(e, incremental=True)
    tokens = torch.randint(13, (2, 9))
    model(tokens)[:, :C].sum().backward()
    assert e.grad is not None and e.grad.shape == (1, D) and e.grad.abs().sum() > 0


def test_a_number_is_an_identity_that_is_the_same_everywhere() -> None:
    for value in (0, 1.5):
        model = model_of(value, incremental=True)
        tokens = torch.randint(13, (2, 23))
        assert torch.equal(model(tokens), model_of(torch.full((C, D), float(value)), incremental=True)(tokens))
        sc.verify_duality(model, tokens).raise_if_failed()
        assert model.identity.dtype == torch.float64


class Gates(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.gate, self.value = nn.Embedding(9, 5), nn.Embedding(9, 5)

    def forward(self, tokens: Tensor) -> dict[str, Tensor]:
        return {"gate": self.gate(tokens).sigmoid(), "value": self.value(tokens)}


class Compose(nn.Module):
    def forward(self, older: dict[str, Tensor], newer: dict[str, Tensor]) -> dict[str, Tensor]:
        return {
            "gate": older["gate"] * newer["gate"],
            "value": newer["gate"] * older["value"] + newer["value"],
        }


class Read(nn.Module):
    def forward(self, prefix: dict[str, Tensor], x: dict[str, Tensor]) -> Tensor:
        return Compose()(prefix, x)["value"]


@pytest.mark.parametrize(
    "identity",
    [
        {"gate": 1.0, "value": 0},
        {"value": torch.zeros(5), "gate": torch.ones(())},
        {"gate": torch.ones(1, 5), "value": nn.Parameter(torch.zeros(1, 1))},
    ],
)
def test_an_identity_may_be_a_tree_of_numbers_and_tensors(identity: Any) -> None:
    model = sc.PrefixScannableModel(Gates(), Compose(), Read(), identity, 1).double()
    tokens = torch.randint(9, (2, 33))
    sc.verify_duality(model, tokens).raise_if_failed()
    state, states, x = torch.zeros(2, 5, dtype=torch.float64), [], model.enc(tokens)
    for t in range(33):
        state = x["gate"][:, t] * state + x["value"][:, t]
        states.append(state)
    torch.testing.assert_close(model(tokens), torch.stack(states, 1), rtol=1e-10, atol=1e-10)


@pytest.mark.parametrize(
    ("identity", "message"),
    [
        (
            torch.zeros(C, D + 1),
            r"identity has the shape \(4, 17\), which does not broadcast to one element, \(4, 16\)",
        ),
        (torch.zeros(C - 1, D), r"identity has the shape \(3, 16\), which does not broadcast"),
        (torch.zeros(1, C, D), r"identity has the shape \(1, 4, 16\), which does not broadcast"),
        (torch.zeros(C, D, dtype=torch.float64), "identity is torch.float64, the elements are torch.float32; use"),
        ((torch.zeros(D), torch.zeros(D)), "the identity has the structure .*, the elements have Tensor"),
        (None, "the identity has the structure None, the elements have Tensor"),
        (1j, r"identity = 1j is no value of the elements' dtype torch.float32"),
    ],
)
def test_an_identity_that_fits_no_element_is_refused_when_the_model_is_built(identity: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        model_of(identity, incremental=True)
    with pytest.raises(TypeError, match="found str 'e' at the top of the identity"):
        model_of("e", incremental=True)
