"""Randomness of a training step that belongs to its samples, and not to the process that computes them."""

from collections.abc import Sequence
from contextlib import ExitStack
from math import prod
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional


class SeededBySample:
    """Dropout and Gaussian noise inside `with SeededBySample(samples, device):` that are the same for a sample in any
    batch.

        noise(site, sample, place) = hash(seed of the site, number of the sample, place within the sample)

    A site is a call of `dropout`, `rand_like` or `randn_like`, or attention with dropout. Its seed is drawn from
    torch's generator, which all processes of a run seed alike: so they need not know of each other, and activation
    checkpointing, which restores that generator, repeats what it recomputes. A tensor's first axis is taken as samples,
    each with an equal share of it; where it is no multiple of their number, all processes draw the same.

    These functions of torch are replaced for a while, for all threads: backward may recompute in another one, which a
    `TorchFunctionMode` would not reach.
    """

    def __init__(self, samples: Sequence[int] | Tensor, device: torch.device) -> None:
        self.samples: Tensor = torch.as_tensor(samples, dtype=torch.int64).to(device)
        self._replaced = ExitStack()

    def __enter__(self) -> "SeededBySample":
        for owner, name, replacement in (
            (functional, "dropout", self.dropout),
            (functional, "scaled_dot_product_attention", self.attention),
            (torch, "rand_like", self.rand_like),
            (torch, "randn_like", self.randn_like),
        ):
            self._replaced.callback(setattr, owner, name, getattr(owner, name))
            setattr(owner, name, replacement)
        return self

    def __exit__(self, *_: object) -> None:
        self._replaced.close()

    def dropout(self, x: Tensor, p: float = 0.5, training: bool = True, inplace: bool = False) -> Tensor:
        """As `torch.nn.functional.dropout`; never in place."""
        if not training or p == 0:
            return x
        return x * ((self.uniform(x) >= p) / (1 - p)).to(x.dtype) if p < 1 else x * 0

    def rand_like(self, x: Tensor, **_: Any) -> Tensor:
        return self.uniform(x).to(x.dtype)

    def randn_like(self, x: Tensor, **_: Any) -> Tensor:
        return self.uniform(x).mul_(2).sub_(1).erfinv_().mul_(2**0.5).to(x.dtype)

    def attention(
        self,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        attn_mask: Tensor | None = None,
        dropout_p: float = 0.0,
        is_causal: bool = False,
        scale: float | None = None,
        **others: Any,
    ) -> Tensor:
        """As `scaled_dot_product_attention`, written out where there is dropout."""
        if not dropout_p:
            return _attention(query, key, value, attn_mask=attn_mask, is_causal=is_causal, scale=scale, **others)
        scores = query @ key.transpose(-1, -2) * (query.shape[-1] ** -0.5 if scale is None else scale)
        if is_causal:
            attn_mask = torch.ones(scores.shape[-2:], dtype=torch.bool, device=scores.device).tril()
        if attn_mask is not None:
            boolean = attn_mask.dtype == torch.bool
            scores = scores.masked_fill(~attn_mask, -torch.inf) if boolean else scores + attn_mask
        return self.dropout(scores.softmax(-1), dropout_p) @ value

    def uniform(self, x: Tensor) -> Tensor:
        """Numbers in (0, 1) in the shape of `x`, but in float32: multiples of 2^-23, shifted by half of one."""
        seed = torch.randint(2**62, (), dtype=torch.int64).to(x.device)
        count = len(self.samples)
        owned = x.ndim > 0 and x.shape[0] % count == 0
        key = seed + _STEP * (self.samples if owned else self.samples.new_zeros(1))
        size = prod(x.shape) // len(key)
        bits = _mix(_mix(key)[:, None] + _STEP * torch.arange((size + 1) // 2, device=x.device))
        return _in_unit_interval(bits)[:, :size].reshape(x.shape)


def _in_unit_interval(bits: Tensor) -> Tensor:
    """Two numbers in (0, 1) from every 64 bits: multiples of 2^-23, shifted by half of one, which float32 has exactly.
    One bit more, and the largest would be rounded to 1, where a Gaussian is infinite.
    """
    both = torch.stack((_right(bits, 41), (bits >> 18) & (2**23 - 1)), -1).to(torch.float32)
    return both.add_(0.5).mul_(2.0**-23).flatten(1)


_attention = functional.scaled_dot_product_attention


def _signed(number: int) -> int:
    """64 bits as torch has them."""
    return number - 2**64 if number >= 2**63 else number


_STEP = _signed(0x9E3779B97F4A7C15)  # 2^64 over the golden ratio, odd: its multiples are spread and all different


def _right(x: Tensor, bits: int) -> Tensor:
    """A shift that fills up with zeros, where torch repeats the sign."""
    return (x >> bits).bitwise_and_(2 ** (64 - bits) - 1)


def _mix(x: Tensor) -> Tensor:
    """The finaliser of splitmix64, in place: a bijection of 64 bits that flips half of them for any one flipped."""
    x.bitwise_xor_(_right(x, 30)).mul_(_signed(0xBF58476D1CE4E5B9))
    x.bitwise_xor_(_right(x, 27)).mul_(_signed(0x94D049BB133111EB))
    return x.bitwise_xor_(_right(x, 31))
