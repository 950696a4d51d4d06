"""Randomness that belongs to a sample is the same in any batch, and is what torch's would be in distribution."""

from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.utils.checkpoint import checkpoint

import scannable as sc
from scannable.training.noise import SeededBySample, _in_unit_interval

CPU = torch.device("cpu")


def drawn(samples: list[int], x: Tensor, seed: int = 5) -> list[Tensor]:
    torch.manual_seed(seed)
    heads = x.reshape(len(x), 2, -1, 4)
    with SeededBySample(samples, CPU):
        return [
            functional.dropout(x, 0.3),
            nn.Dropout(0.2)(x),
            torch.randn_like(x),
            torch.rand_like(x),
            functional.scaled_dot_product_attention(heads, heads, heads, dropout_p=0.4, is_causal=True),
        ]


def test_a_sample_has_the_same_noise_in_any_batch() -> None:
    x = torch.randn(8, 6, 8)
    whole = drawn(list(range(100, 108)), x)
    for rows in ([0], [1, 4, 7], [7, 0], list(range(8))):
        for all_rows, some in zip(whole, drawn([100 + row for row in rows], x[rows]), strict=True):
            torch.testing.assert_close(all_rows[rows], some, rtol=0, atol=1e-6)


def test_samples_sites_and_seeds_have_different_noise() -> None:
    x = torch.ones(2, 1000)
    first, again, other = (drawn([0, 1], x, seed)[2] for seed in (5, 5, 6))
    assert torch.equal(first, again)
    torch.manual_seed(5)
    with SeededBySample([0, 1], CPU):
        sites = [torch.randn_like(x) for _ in range(3)]
    for one, two in (
        (first[0], first[1]),
        (first[0], other[0]),
        (sites[0][0], sites[1][0]),
        (sites[1][0], sites[2][0]),
    ):
        assert abs(float(torch.corrcoef(torch.stack((one, two)))[0, 1])) < 0.15


def test_several_places_of_the_first_axis_may_belong_to_one_sample() -> None:
    x = torch.zeros(6, 5)
    torch.manual_seed(0)
    with SeededBySample([7, 8, 9], CPU):
        whole = torch.randn_like(x)
    torch.manual_seed(0)
    with SeededBySample([8], CPU):
        assert torch.equal(torch.randn_like(x[:2]), whole[2:4])


def test_numbers_are_normal_uniform_and_dropped_as_often_as_asked() -> None:
    torch.manual_seed(0)
    x = torch.ones(10, 100_001)
    with SeededBySample(list(range(10)), CPU):
        normal, uniform, kept = torch.randn_like(x), torch.rand_like(x), functional.dropout(x, 0.25)
        half = functional.dropout(x)
    # A million numbers: four standard errors.
    for moment, expected, error in ((1, 0, 1.0), (2, 1, 2**0.5), (3, 0, 15**0.5), (4, 3, 96**0.5)):
        assert abs(float(normal.double().pow(moment).mean()) - expected) < 4 * error / 1000
    assert float(uniform.min()) > 0 and float(uniform.max()) < 1
    assert abs(float(uniform.double().mean()) - 0.5) < 4 * 12**-0.5 / 1000
    assert kept.unique().tolist() == pytest.approx([0.0, 1 / 0.75])
    assert abs(float((kept == 0).double().mean()) - 0.25) < 4 * (0.25 * 0.75) ** 0.5 / 1000
    assert half.unique().tolist() == [0.0, 2.0], "torch's own share, where none is given"
    neighbours = torch.corrcoef(torch.stack((normal[0, :-1], normal[0, 1:])))[0, 1]
    assert abs(float(neighbours)) < 4 / 100_000**0.5


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float64])
def test_the_dtype_is_that_of_the_tensor(dtype: torch.dtype) -> None:
    x = torch.ones(4, 3, dtype=dtype)
    with SeededBySample([1, 2], CPU):
        assert {t.dtype for t in (functional.dropout(x), torch.randn_like(x), torch.rand_like(x))} == {dtype}


def test_nothing_is_dropped_when_nothing_is_asked_and_everything_when_all_is() -> None:
    x = torch.randn(4, 3)
    with SeededBySample([1, 2], CPU):
        assert torch.equal(functional.dropout(x, 0.5, training=False), x)
        assert torch.equal(functional.dropout(x, 0.0), x)
        assert torch.equal(functional.dropout(x, 1.0), torch.zeros_like(x))


@pytest.mark.parametrize("form", ["causal", "mask", "added", "none"])
def test_attention_written_out_is_attention(form: str) -> None:
    """Where nothing happens to be dropped: with a probability too small for 23 bits."""
    q, k, v = (torch.randn(2, 3, 5, 4, dtype=torch.float64) for _ in range(3))
    some = torch.rand(5, 5) > 0.3
    mask = {"mask": some | torch.eye(5).bool(), "added": torch.randn(5, 5, dtype=torch.float64)}.get(form)
    options = {"attn_mask": mask, "is_causal": form == "causal"}
    expected = functional.scaled_dot_product_attention(q, k, v, **options)
    with SeededBySample([1, 2], CPU):
        found = functional.scaled_dot_product_attention(q, k, v, dropout_p=1e-9, **options)
    torch.testing.assert_close(found, expected, rtol=0, atol=1e-8)


def test_what_is_computed_once_more_in_backward_draws_the_same() -> None:
    weight = torch.randn(6, 6, requires_grad=True)
    x = torch.randn(4, 6)

    def noisy(x: Tensor) -> Tensor:
        return functional.dropout(torch.tanh(x @ weight), 0.5) + 0.1 * torch.randn_like(x)

    gradients = []
    for again in (False, True):
        torch.manual_seed(3)
        with SeededBySample([1, 2, 3, 4], CPU):
            y = checkpoint(noisy, x, use_reentrant=False) if again else noisy(x)
            (noisy(y).square().sum() + y.sum()).backward()
        gradients.append(weight.grad)
        weight.grad = None
    assert gradients[0] is not None and torch.equal(gradients[0], gradients[1])


def test_torch_is_as_it_was_afterwards_whatever_happens() -> None:
    names = [
        (functional, "dropout"),
        (functional, "scaled_dot_product_attention"),
        (torch, "rand_like"),
        (torch, "randn_like"),
    ]
    before = [getattr(owner, name) for owner, name in names]
    with SeededBySample([1], CPU):
        assert all(getattr(owner, name) is not old for (owner, name), old in zip(names, before, strict=True))
    with pytest.raises(RuntimeError), SeededBySample([1], CPU):
        torch.dot(torch.randn_like(torch.zeros(2)), torch.zeros(3))
    assert [getattr(owner, name) for owner, name in names] == before


@pytest.mark.parametrize("compress", ["right_half", "projection"])
def test_a_row_of_a_transformer_psm_has_the_same_noise_beside_any_others(compress: Any) -> None:
    """So many windows that without dropout they would be cut into slices."""
    torch.manual_seed(0)
    config = sc.TransformerPSMConfig(
        7, 8, chunk_length=4, agg_layers=1, inf_layers=1, heads=2, dropout=0.3, state_noise=0.3, compress=compress
    )
    model = sc.TransformerPSM(config).double().train()
    tokens = torch.randint(7, (6, 510))

    def hidden(rows: list[int]) -> Tensor:
        torch.manual_seed(1)
        with SeededBySample(rows, CPU):
            return model.hidden(tokens[rows]).detach()

    whole = hidden(list(range(6)))
    for rows in ([0], [1, 4, 5], [3, 2]):
        torch.testing.assert_close(hidden(rows), whole[rows], rtol=0, atol=1e-12)
    assert not torch.allclose(whole, model.eval().hidden(tokens))


def test_no_bits_make_a_number_that_is_not_finite() -> None:
    """The least and the greatest: a run of minutes draws both."""
    numbers = _in_unit_interval(torch.tensor([[0, -1]]))[0]
    assert numbers.tolist() == [2.0**-24, 2.0**-24, 1 - 2.0**-24, 1 - 2.0**-24]
    assert bool((2 * numbers - 1).erfinv().isfinite().all())
