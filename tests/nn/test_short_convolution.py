"""The fast convolution is the sum of products, in values and in every gradient."""

from itertools import pairwise

import pytest
import torch
from torch import Tensor

from scannable.nn.short_convolution import ShortConvolution, last_inputs, sum_of_products


def given(n: int, length: int = 4, dtype: torch.dtype = torch.float64) -> tuple[ShortConvolution, Tensor, Tensor]:
    torch.manual_seed(n)
    short = ShortConvolution(5, length, bias=True).to(dtype)
    assert short.bias is not None
    torch.nn.init.normal_(short.bias)
    x, past = (torch.randn(3, m, 5, dtype=dtype, requires_grad=True) for m in (n, length - 1))
    return short, x, past


@pytest.mark.parametrize("length", [1, 2, 4])
@pytest.mark.parametrize("n", [1, 2, 3, 4, 7, 63, 65])
@pytest.mark.parametrize("with_past", [True, False])
def test_values_and_all_gradients_are_those_of_the_reference(n: int, length: int, with_past: bool) -> None:
    short, x, past = given(n, length)
    window = torch.cat((past if with_past else torch.zeros_like(past), x), 1)
    expected = sum_of_products(window, short.weight[:, 0].T, short.bias)
    y, carried = short(x, past if with_past else None, None)
    torch.testing.assert_close(y, expected, rtol=0, atol=1e-12)
    torch.testing.assert_close(carried, window[:, n:], rtol=0, atol=0)
    inputs = [x, short.weight, short.bias, *([past] if with_past else [])]
    towards, also = torch.randn_like(y), torch.randn_like(carried)
    found = torch.autograd.grad((y, carried), inputs, (towards, also), allow_unused=True, materialize_grads=True)
    wanted = torch.autograd.grad(
        (expected, window[:, n:]), inputs, (towards, also), allow_unused=True, materialize_grads=True
    )
    for mine, other in zip(found, wanted, strict=True):
        torch.testing.assert_close(mine, other, rtol=0, atol=1e-12)


@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float32, 1e-6), (torch.bfloat16, 3e-2)])
def test_lower_precisions_agree_to_their_digits(dtype: torch.dtype, tolerance: float) -> None:
    short, x, past = given(65, dtype=dtype)
    y, _ = short(x, past, None)
    expected = sum_of_products(torch.cat((past, x), 1), short.weight[:, 0].T, short.bias)
    assert y.dtype == dtype
    torch.testing.assert_close(y, expected, rtol=tolerance, atol=tolerance)


def test_inputs_of_lower_precision_get_gradients_of_their_own() -> None:
    short, _, _ = given(1, dtype=torch.float32)
    x = torch.randn(2, 9, 5, dtype=torch.bfloat16, requires_grad=True)
    past = torch.randn(2, 3, 5, dtype=torch.bfloat16, requires_grad=True)
    y, _ = short(x, past, None)
    assert y.dtype == torch.float32
    y.sum().backward()
    assert x.grad is not None and past.grad is not None and short.weight.grad is not None
    assert (x.grad.dtype, past.grad.dtype, short.weight.grad.dtype) == (torch.bfloat16, torch.bfloat16, torch.float32)


def test_it_can_be_differentiated_twice() -> None:
    short, x, past = given(6)

    def of(a: Tensor, b: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
        values = {"weight": weight, "bias": bias}
        return torch.func.functional_call(short, values, (a, b, None))[0]

    inputs = (x, past, *short.parameters())
    assert torch.autograd.gradcheck(of, inputs) and torch.autograd.gradgradcheck(of, inputs)


@pytest.mark.filterwarnings("ignore:There is a performance drop")  # a loop over the batch, inside torch
def test_functions_of_torch_pass_through() -> None:
    short, x, past = given(6)
    x, past = x.detach(), past.detach()
    of = torch.func.grad(lambda a: short(a[None], past[:1], None)[0].sin().sum())
    each = torch.func.vmap(of)(x)
    torch.testing.assert_close(each, torch.stack([of(row) for row in x]))


def test_what_is_carried_has_the_precision_it_had() -> None:
    short, _, _ = given(1, dtype=torch.float32)
    past = torch.zeros(2, 3, 5)
    for n in (1, 2, 3, 9):
        _, carried = short(torch.randn(2, n, 5, dtype=torch.bfloat16), past, None)
        assert carried.dtype == torch.float32


def test_pieces_are_the_whole() -> None:
    short, x, past = given(31)
    whole, last = short(x, past, None)
    parts: list[Tensor] = []
    carried = past
    for begin, end in pairwise((0, 1, 3, 4, 17, 31)):
        y, carried = short(x[:, begin:end], carried, None)
        parts.append(y)
    torch.testing.assert_close(torch.cat(parts, 1), whole, rtol=0, atol=1e-12)
    torch.testing.assert_close(carried, last, rtol=0, atol=0)


def test_rows_that_end_early_carry_their_own_inputs() -> None:
    short, x, past = given(6)
    keep = torch.arange(6) < torch.tensor([6, 2, 0])[:, None]
    y, carried = short(x, past, keep)
    for row, count in enumerate((6, 2, 0)):
        alone, last = short(x[row : row + 1, :count], past[row : row + 1], None)
        torch.testing.assert_close(y[row : row + 1, :count], alone, rtol=0, atol=1e-12)
        torch.testing.assert_close(carried[row : row + 1], last, rtol=0, atol=0)
    assert torch.equal(last_inputs(x, 2, None), x[:, 4:])
