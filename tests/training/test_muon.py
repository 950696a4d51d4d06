"""Muon's step on a CPU is torch's, up to the digits that torch drops."""

from collections.abc import Iterator
from typing import Any
from unittest.mock import patch

import pytest
import torch
from torch import Tensor, nn
from torch.optim import _muon  # pyright: ignore[reportPrivateUsage]

from scannable.training.muon import Muon, orthogonalised

COEFFICIENTS, STEPS, EPS = (3.4445, -4.7750, 2.0315), 5, 1e-7


def matrices(dtype: torch.dtype = torch.float32) -> list[nn.Parameter]:
    """Wide, tall and square ones, two of them alike."""
    torch.manual_seed(0)
    shapes = [(8, 24), (24, 8), (8, 24), (8, 8), (1, 5)]
    return [nn.Parameter(torch.randn(shape, dtype=dtype)) for shape in shapes]


def gradients(parameters: list[nn.Parameter]) -> Iterator[list[Tensor]]:
    """Of four steps."""
    torch.manual_seed(1)
    for _ in range(4):
        yield [torch.randn_like(parameter) for parameter in parameters]


def moved(optimizer: Any, parameters: list[nn.Parameter]) -> list[Tensor]:
    for step in gradients(parameters):
        for parameter, gradient in zip(parameters, step, strict=True):
            parameter.grad = gradient.clone()
        optimizer.step()
    return [parameter.detach() for parameter in parameters]


@pytest.mark.parametrize("adjust", [None, "original", "match_rms_adamw"])
@pytest.mark.parametrize("nesterov", [True, False])
def test_a_step_is_torchs_with_all_digits(adjust: str | None, nesterov: bool) -> None:
    options: dict[str, Any] = {"lr": 0.1, "weight_decay": 0.3, "nesterov": nesterov, "adjust_lr_fn": adjust}
    ours, theirs = matrices(torch.float64), matrices(torch.float64)
    # Torch's own iteration, which would go over to bfloat16.
    with patch.object(Tensor, "bfloat16", lambda x: x.clone()):
        expected = moved(torch.optim.Muon(theirs, **options), theirs)
    for mine, other in zip(moved(Muon(ours, **options), ours), expected, strict=True):
        torch.testing.assert_close(mine, other, rtol=0, atol=1e-12)


def test_torchs_step_is_ours_to_the_digits_of_bfloat16() -> None:
    ours, theirs = matrices(), matrices()
    options: dict[str, Any] = {"lr": 0.1, "weight_decay": 0.3, "adjust_lr_fn": "match_rms_adamw"}
    begin = [parameter.detach().clone() for parameter in ours]
    results = zip(moved(Muon(ours, **options), ours), moved(torch.optim.Muon(theirs, **options), theirs), strict=True)
    for first, (mine, other) in zip(begin, results, strict=True):
        # bfloat16 has three digits; small singular values grow by the factor 3.4 in each of the five rounds.
        assert (mine - other).norm() < 0.05 * (mine - first).norm()


def test_singular_values_come_near_one_and_vectors_stay() -> None:
    torch.manual_seed(2)
    for shape in ((3, 6, 20), (3, 20, 6), (1, 1, 1)):
        given = torch.randn(shape, dtype=torch.float64)
        found = orthogonalised(given, COEFFICIENTS, STEPS, EPS)
        u, s, v = torch.linalg.svd(given, full_matrices=False)
        turned = u.mT @ found @ v.mT
        near = turned.diagonal(dim1=-2, dim2=-1)
        torch.testing.assert_close(turned, torch.diag_embed(near), rtol=0, atol=1e-10)
        assert (near > 0.6).all() and (near < 1.3).all(), s


def test_a_gradient_of_zeros_moves_nothing_but_decay() -> None:
    (parameter,) = matrices()[:1]
    begin, parameter.grad = parameter.detach().clone(), torch.zeros_like(parameter)
    Muon([parameter], lr=0.1, weight_decay=0.5).step()
    torch.testing.assert_close(parameter.detach(), begin * (1 - 0.1 * 0.5))


def test_a_parameter_without_a_gradient_stays_and_a_closure_is_asked() -> None:
    first, second = matrices()[:2]
    begin, first.grad = second.detach().clone(), torch.ones_like(first)
    assert Muon([first, second], lr=0.1).step(lambda: 7.0) == 7.0
    assert torch.equal(second, begin)


def test_elsewhere_than_on_a_cpu_the_step_is_torchs_own() -> None:
    parameter = nn.Parameter(torch.empty(4, 6, device="meta"))
    parameter.grad = torch.empty_like(parameter)
    with patch.object(_muon, "_zeropower_via_newtonschulz", side_effect=lambda gradient, *_: gradient) as theirs:
        Muon([parameter], lr=0.1).step()
    assert theirs.call_count == 1
