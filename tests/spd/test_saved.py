"""What autograd keeps is counted once, as long as it is kept."""

import torch
from torch.utils.checkpoint import checkpoint

from scannable.spd.saved import SavedBytes


def test_what_each_call_needs_for_backward_is_counted_by_hand() -> None:
    x = torch.ones(3, 5, requires_grad=True)
    with SavedBytes(apart=[x]) as saved:
        # exp keeps its result; sin keeps its input, which is that result; the sum keeps nothing.
        total = x.exp().sin().sum()
        assert saved.nbytes == 4 * 15
        weight = torch.ones(5, 7, requires_grad=True)
        product = total * (x.cos() @ weight)
    # cos keeps x, which is apart; the product of matrices both factors; the product of numbers too.
    assert saved.nbytes == 4 * (15 + 15 + 5 * 7 + 3 * 7 + 1)
    product.sum().backward()
    assert saved.nbytes == 0


def test_views_of_one_block_count_once_and_whole() -> None:
    x = torch.ones(8, 4, requires_grad=True)
    block = x * 1.0
    with SavedBytes() as saved:
        kept = [block[0].exp().sin(), block[:2].square(), block[2:].square()]
    assert saved.nbytes == 4 * (8 * 4 + 4)
    del kept
    assert saved.nbytes == 0


def test_a_graph_that_is_gone_holds_nothing() -> None:
    x = torch.ones(8, requires_grad=True)
    with SavedBytes() as saved:
        y = x.exp()
        for _ in range(3):
            y = x.exp()
            assert saved.nbytes == 4 * 8
        del y
    assert saved.nbytes == 0


def test_of_what_is_computed_again_only_the_start_is_kept() -> None:
    x = torch.ones(8, requires_grad=True)
    with SavedBytes() as saved:
        y = checkpoint(lambda x: x.exp().sin().exp(), x * 2, use_reentrant=False)
        # The start, and the number 2 of the product before it, which is no tensor.
        assert saved.nbytes == 4 * 8
        y.sum().backward()
    once = torch.ones(8, requires_grad=True)
    (once * 2).exp().sin().exp().sum().backward()
    assert torch.equal(x.grad, once.grad)  # pyright: ignore[reportArgumentType]


def test_counting_changes_no_gradient() -> None:
    torch.manual_seed(0)
    layer, x = torch.nn.Linear(6, 6), torch.randn(5, 6)
    layer(x).tanh().square().sum().backward()
    expected = [parameter.grad.clone() for parameter in layer.parameters() if parameter.grad is not None]
    layer.zero_grad()
    with SavedBytes(apart=layer.parameters()) as saved:
        loss = layer(x).tanh().square().sum()
        assert saved.nbytes > 0
    loss.backward()
    assert all(torch.equal(p.grad, e) for p, e in zip(layer.parameters(), expected, strict=True) if p.grad is not None)
