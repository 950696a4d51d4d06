"""A short causal convolution, which many recurrent layers put in front of their recurrence."""

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
        self, x: Float[Tensor, "b n d"], past: Float[Tensor, "b m d"], keep: Bool[Tensor, "b n"] | None
    ) -> tuple[Float[Tensor, "b n d"], Float[Tensor, "b m d"]]:
        """The convolution at every position, and the inputs to carry."""
        n = x.shape[1]
        window = torch.cat((past, x), 1)
        weight = self.weight[:, 0].T
        if n == 1:
            y = (window * weight).sum(1, keepdim=True)
            return (y if self.bias is None else y + self.bias), last_inputs(window, past.shape[1], keep)
        weight = weight.contiguous()
        # Four shifted products stay in the layout of x; a grouped convolution would transpose there and back.
        y = window[:, :n] * weight[0] if self.bias is None else torch.addcmul(self.bias, window[:, :n], weight[0])
        for i in range(1, self.length):
            y = torch.addcmul(y, window[:, i : i + n], weight[i])
        return y, last_inputs(window, past.shape[1], keep)


def last_inputs(
    window: Float[Tensor, "b m d"], count: int, keep: Bool[Tensor, "b n"] | None
) -> Float[Tensor, "b count d"]:
    """The `count` inputs before the end of each row, of a window that begins `count` positions before the row."""
    if keep is None:
        return window[:, window.shape[1] - count :]
    places = keep.sum(1)[:, None] + torch.arange(count, device=window.device)
    return window.gather(1, places[..., None].expand(-1, -1, window.shape[-1]))
