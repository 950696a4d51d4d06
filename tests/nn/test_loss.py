"""Slicing a loss changes its memory, not its value."""

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
