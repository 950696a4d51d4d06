"""Slicing a loss changes its memory, not its value."""

import math

import pytest
import torch
from torch import nn

from scannable import sliced_cross_entropy


@pytest.mark.parametrize("slice_length", [1, 7, 64, 1000])
def test_sliced_loss_and_gradients_equal_the_plain_ones(slice_length: int) -> None:
    torch.manual_seed(0)
    head = nn.Linear(6, 11, dtype=torch.float64)
    hidden = torch.randn(3, 25, 6, dtype=torch.float64, requires_grad=True)
    targets = torch.randint(11, (3, 25))
    targets[0, :9] = -100
    inputs = [hidden, *head.parameters()]
    plain = nn.functional.cross_entropy(head(hidden).flatten(0, 1), targets.flatten())
    sliced = sliced_cross_entropy(hidden, targets, head, slice_length=slice_length)
    torch.testing.assert_close(sliced, plain, rtol=1e-12, atol=1e-12)
    for a, b in zip(torch.autograd.grad(sliced, inputs), torch.autograd.grad(plain, inputs), strict=True):
        torch.testing.assert_close(a, b, rtol=1e-12, atol=1e-12)


def test_no_more_logits_exist_than_a_slice() -> None:
    head, largest = nn.Linear(4, 1000), [0]
    head.register_forward_hook(lambda _, __, output: largest.__setitem__(0, max(largest[0], output.numel())))
    hidden = torch.randn(2, 500, 4, requires_grad=True)
    sliced_cross_entropy(hidden, torch.randint(1000, (2, 500)), head, slice_length=100).backward()
    assert largest[0] == 100 * 1000 and hidden.grad is not None


@pytest.mark.usefixtures("shapes_unchecked")
def test_no_target_at_all_is_zero_and_shapes_must_agree() -> None:
    head = nn.Linear(4, 3)
    assert sliced_cross_entropy(torch.randn(1, 5, 4), torch.full((1, 5), -100), head) == 0
    with pytest.raises(ValueError, match=r"outputs for \(1, 5\) positions but targets for \(1, 4\)"):
        sliced_cross_entropy(torch.randn(1, 5, 4), torch.zeros(1, 4, dtype=torch.int64), head)


def test_a_sum_is_the_mean_before_it_is_divided() -> None:
    torch.manual_seed(0)
    head, hidden = nn.Linear(6, 11, dtype=torch.float64), torch.randn(3, 25, 6, dtype=torch.float64)
    targets = torch.randint(11, (3, 25))
    targets[0, :9] = -100
    plain = nn.functional.cross_entropy(head(hidden).flatten(0, 1), targets.flatten(), reduction="sum")
    found = sliced_cross_entropy(hidden, targets, head, slice_length=7, reduction="sum")
    torch.testing.assert_close(found, plain, rtol=1e-12, atol=0)
    torch.testing.assert_close(sliced_cross_entropy(hidden, targets, head), plain / 66, rtol=1e-12, atol=0)
    parts = [sliced_cross_entropy(hidden[i : i + 1], targets[i : i + 1], head, reduction="sum") for i in range(3)]
    torch.testing.assert_close(torch.stack(parts).sum(), plain, rtol=1e-12, atol=0)
    none = torch.full((3, 25), -100)
    assert sliced_cross_entropy(hidden, none, head, reduction="sum") == 0


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("reduction", ["mean", "sum"])
def test_half_precision_logits_are_added_up_in_float32(dtype: torch.dtype, reduction: str) -> None:
    # All logits are 0, so each of n targets costs log v; half precision has neither that number nor their sum.
    v, n = 1000, 3000
    head = nn.Linear(4, v, bias=False).to(dtype)
    nn.init.zeros_(head.weight)
    hidden = torch.randn(2, n // 2, 4, dtype=dtype, requires_grad=True)
    found = sliced_cross_entropy(hidden, torch.zeros(2, n // 2, dtype=torch.int64), head, reduction=reduction)  # pyright: ignore
    assert found.dtype == torch.float32
    expected = math.log(v) * (n if reduction == "sum" else 1)
    assert abs(float(found.detach()) - expected) < 1e-6 * expected
    assert abs(float(torch.tensor(expected, dtype=dtype)) - expected) > 1e-5 * expected
    found.backward()
    assert hidden.grad is not None and hidden.grad.dtype == dtype


def test_targets_may_be_of_any_integer_dtype() -> None:
    head, hidden, targets = nn.Linear(4, 3), torch.randn(1, 5, 4), torch.tensor([[0, 1, 2, 1, 0]])
    for dtype in (torch.uint8, torch.int16, torch.int32, torch.uint16):
        assert sliced_cross_entropy(hidden, targets.to(dtype), head) == sliced_cross_entropy(hidden, targets, head)


@pytest.mark.usefixtures("shapes_unchecked")
def test_what_is_no_loss_is_named() -> None:
    head, hidden, targets = nn.Linear(4, 3), torch.randn(1, 5, 4), torch.zeros(1, 5, dtype=torch.int64)
    with pytest.raises(ValueError, match="reduction='none' is neither 'mean' nor 'sum'"):
        sliced_cross_entropy(hidden, targets, head, reduction="none")  # pyright: ignore
    with pytest.raises(ValueError, match="slice_length=0 must be a whole number of at least 1"):
        sliced_cross_entropy(hidden, targets, head, slice_length=0)
    with pytest.raises(ValueError, match=r"targets have the dtype torch\.float32; expected integers, -100 for none"):
        sliced_cross_entropy(hidden, targets.float(), head)  # pyright: ignore
