"""A short causal convolution, which many recurrent layers put in front of their recurrence."""

from typing import Any

import torch
from jaxtyping import Bool, Float
from torch import Tensor, nn


class ShortConvolution(nn.Module):
    """A causal convolution over the last few positions, for each channel by itself. What it carries are the inputs at
    the `length - 1` positions before.
    """

    def __init__(self, channels: int, length: int = 4, *, bias: bool = False) -> None:
        super().__init__()
        self.length: int = length
        bound = length**-0.5
        self.weight = nn.Parameter(torch.empty(channels, 1, length).uniform_(-bound, bound))
        self.bias = nn.Parameter(torch.zeros(channels)) if bias else None

    def forward(
        self, x: Float[Tensor, "b n d"], past: Float[Tensor, "b m d"] | None, keep: Bool[Tensor, "b n"] | None
    ) -> tuple[Float[Tensor, "b n d"], Float[Tensor, "b m d"]]:
        """The convolution at every position, and the inputs to carry; without a `past`, zeros stand in front."""
        weight, n, before = self.weight[:, 0].T, x.shape[1], self.length - 1
        # A compiler fuses the products by itself.
        if n == 1 or keep is not None or torch.compiler.is_compiling():
            window = behind(past, x, before)
            return sum_of_products(window, weight, self.bias), last_inputs(window, before, keep)
        y = _ShiftedProducts.apply(x, past, weight.contiguous())
        # A copy, in the precision of what was carried until now.
        tail = x[:, max(0, n - before) :]
        carried = behind(past, tail, before)[:, tail.shape[1] :]
        return (y if self.bias is None else y + self.bias), carried


def behind(past: Float[Tensor, "b m d"] | None, x: Float[Tensor, "b n d"], count: int) -> Float[Tensor, "b w d"]:
    """The positions of x behind the `count` ones before them, which are zeros where there is no past."""
    return torch.cat((x.new_zeros(len(x), count, x.shape[-1]) if past is None else past, x), 1)


def sum_of_products(
    window: Float[Tensor, "b w d"], weight: Float[Tensor, "length d"], bias: Float[Tensor, " d"] | None
) -> Float[Tensor, "b n d"]:
    """The reference: every position of a window that begins length - 1 positions before the first one asked for."""
    n = window.shape[1] - len(weight) + 1
    if n == 1:
        y = (window * weight).sum(1, keepdim=True)
        return y if bias is None else y + bias
    # Four shifted products stay in the layout of x; a grouped convolution would transpose there and back.
    y = window[:, :n] * weight[0] if bias is None else torch.addcmul(bias, window[:, :n], weight[0])
    for i in range(1, len(weight)):
        y = torch.addcmul(y, window[:, i : i + n], weight[i])
    return y


class _ShiftedProducts(torch.autograd.Function):
    """The same, into one result: nothing is put in front of x, and neither is a gradient of every shifted part made
    and added to the others.
    """

    generate_vmap_rule = True

    @staticmethod
    def forward(x: Tensor, past: Tensor | None, weight: Tensor) -> Tensor:
        y = x * weight[-1]
        for lag, own, old in _shifts(x, weight):
            y[:, lag:].addcmul_(x[:, :own], weight[-1 - lag])
            if past is not None:
                y[:, :old].addcmul_(past[:, past.shape[1] - lag :][:, :old], weight[-1 - lag])
        return y

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:
        ctx.save_for_backward(*inputs)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, Tensor | None, Tensor | None]:
        x, past, weight = ctx.saved_tensors
        (gradient,) = gradients
        of_x, of_past, of_weight = None, None, None
        if ctx.needs_input_grad[0]:
            of_x = gradient * weight[-1]
            for lag, own, _ in _shifts(x, weight):
                of_x[:, :own].addcmul_(gradient[:, lag:], weight[-1 - lag])
            of_x = of_x.to(x.dtype)
        if past is not None and ctx.needs_input_grad[1]:
            of_past = torch.zeros_like(past, dtype=gradient.dtype)
            for lag, _, old in _shifts(x, weight):
                of_past[:, past.shape[1] - lag :][:, :old].addcmul_(gradient[:, :old], weight[-1 - lag])
            of_past = of_past.to(past.dtype)
        if ctx.needs_input_grad[2]:
            rows = [(gradient * x).sum((0, 1))]
            for lag, own, old in _shifts(x, weight):
                row = (gradient[:, lag:] * x[:, :own]).sum((0, 1))
                if past is not None:
                    row = row + (gradient[:, :old] * past[:, past.shape[1] - lag :][:, :old]).sum((0, 1))
                rows.insert(0, row)
            of_weight = torch.stack(rows).to(weight.dtype)
        return of_x, of_past, of_weight


def _shifts(x: Tensor, weight: Tensor) -> list[tuple[int, int, int]]:
    """Each lag, with the positions whose product is with x itself, and those with what was before it."""
    n = x.shape[1]
    return [(lag, max(0, n - lag), min(n, lag)) for lag in range(1, len(weight))]


def last_inputs(
    window: Float[Tensor, "b m d"], count: int, keep: Bool[Tensor, "b n"] | None
) -> Float[Tensor, "b count d"]:
    """The `count` inputs before the end of each row, of a window that begins `count` positions before the row."""
    if keep is None:
        return window[:, window.shape[1] - count :]
    places = keep.sum(1)[:, None] + torch.arange(count, device=window.device)
    return window.gather(1, places[..., None].expand(-1, -1, window.shape[-1]))
