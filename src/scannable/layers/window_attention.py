"""Attention in which each position looks at the last few: work that is linear in n, memory that does not grow."""

from collections.abc import Mapping, Sequence

import torch
from jaxtyping import Bool, Float
from torch import Tensor
from torch.nn import functional as F

from scannable.nn.block import Attention
from scannable.nn.rotary import Rotation
from scannable.nn.short_convolution import last_inputs

LEAST_BLOCK = 32
"""Positions that ask together at least: blocks as short as a narrow window would be many small products."""
INPUTS = ("inputs", "query_inputs", "key_value_inputs")
"""What short convolutions look back at, in the order of `nn.block.CONVOLUTIONS`."""


class WindowMemory:
    """What earlier positions left: keys and values of the last `window - 1`, and inputs of convolutions.

    They stand at the end of their axis, zeros before the stream began. Nothing is written into them; `after` has the
    same behind the new positions.

    Args:
        known: how many of these positions each row has.
        counted: which of the new ones count; None for all.
    """

    def __init__(
        self, parts: Mapping[str, Tensor], known: Sequence[int], counted: Bool[Tensor, "b n"] | None = None
    ) -> None:
        self.parts = parts
        self.known = known
        self.counted = counted
        self.after: dict[str, Tensor] = {}

    def store(self, layer: int, keys: Tensor, values: Tensor) -> tuple[Tensor, Tensor]:
        """Those of all positions that any row has, the new ones last."""
        return self._stored("keys", keys), self._stored("values", values)

    def _stored(self, name: str, new: Float[Tensor, "b h n size"]) -> Float[Tensor, "b h p size"]:
        before = self.parts[name]
        held, n = before.shape[2], new.shape[2]
        whole = torch.cat((before, new.to(before.dtype)), 2)
        if self.counted is None:
            last = whole[:, :, n:]
        else:
            # As the inputs of a convolution over the window would be carried on.
            rows = last_inputs(whole.transpose(1, 2).flatten(2), held, self.counted)
            last = rows.unflatten(2, (whole.shape[1], -1)).transpose(1, 2)
        # Behind one position nearly all is kept, and need not be copied; behind many, a view would keep them alive.
        self.after[name] = last if n == 1 else last.clone(memory_format=torch.contiguous_format)
        return whole[:, :, held - max(self.known) :]

    def past(self, place: int) -> Float[Tensor, "b before channels"]:
        """The inputs of a convolution before the new positions."""
        return self.parts[INPUTS[place]]

    def carry(self, place: int, inputs: Float[Tensor, "b before channels"]) -> None:
        """Keep the last inputs of a convolution for later."""
        held = self.parts[INPUTS[place]]
        self.after[INPUTS[place]] = inputs.to(held.dtype).clone(memory_format=torch.contiguous_format)


class WindowAttention(Attention):
    """Attention in which each position looks at itself and the `window - 1` positions before it."""

    def over_window(
        self, x: Float[Tensor, "b n d"], window: int, rotation: Rotation | None, memory: WindowMemory | None
    ) -> Float[Tensor, "b n d"]:
        """What each position gathers from its window, the memory included."""
        queries = self.queries(x, x.shape[1], rotation, memory, 0)
        keys, values = self.keys_and_values(x, rotation, memory)
        known: Sequence[int] = ()
        if memory is not None:
            keys, values = memory.store(0, keys, values)
            known = memory.known
        gathered = attend(queries, keys, values, window, known, self.dropout if self.training else 0.0)
        return self.out(gathered.transpose(1, 2).flatten(2))


def attend(
    queries: Float[Tensor, "b h n size"],
    keys: Float[Tensor, "b h p size"],
    values: Float[Tensor, "b h p size"],
    window: int,
    known: Sequence[int] = (),
    dropout: float = 0.0,
) -> Float[Tensor, "b h n size"]:
    """Softmax attention of the last n of p positions, each over itself and the `window - 1` before it.

    Time is cut into blocks of at least the window. The first looks at what is before it, of which row i has `known[i]`
    positions (all, unless told); each other at itself and the last `window - 1` positions of the block before. No mask
    is larger than a block, and work and memory are O(n window), not O(n^2).
    """
    n, past = queries.shape[-2], keys.shape[-2] - queries.shape[-2]
    block = max(window, LEAST_BLOCK)
    first = min(n, block)
    mask = band(first, past, window, queries.device)
    if any(places < past for places in known):
        begin = past - torch.tensor(known, device=queries.device)[:, None]
        real = (torch.arange(past + first, device=queries.device) >= begin)[:, None, None]
        mask = real if mask is None else mask & real
    gathered = F.scaled_dot_product_attention(
        queries[:, :, :first],
        keys[:, :, : past + first],
        values[:, :, : past + first],
        attn_mask=mask,
        is_causal=mask is None and not past and n > 1,
        dropout_p=dropout,
    )
    rest = n - first
    if not rest:
        return gathered
    reach, blocks = window - 1, -(-rest // block)
    # Zeros fill the last block; nobody before them looks there.
    behind = (0, 0, 0, blocks * block - rest)

    def slices(x: Tensor) -> Tensor:
        padded = F.pad(x[:, :, past + first - reach :], behind)
        return padded.unfold(-2, reach + block, block).transpose(-1, -2).flatten(1, 2)

    others = F.scaled_dot_product_attention(
        F.pad(queries[:, :, first:], behind).unflatten(-2, (blocks, block)).flatten(1, 2),
        slices(keys),
        slices(values),
        attn_mask=band(block, reach, window, queries.device),
        dropout_p=dropout,
    )
    others = others.unflatten(1, (-1, blocks)).flatten(2, 3)
    return torch.cat((gathered, others[:, :, :rest]), 2)


def band(n: int, past: int, window: int, device: torch.device) -> Bool[Tensor, "n p"] | None:
    """What the last n of past + n positions look at: the `window` places up to their own. None where that is all there
    is, and for the causal attention that kernels have built in.
    """
    if past + n <= window and (n == 1 or not past):
        return None
    return torch.ones(n, past + n, dtype=torch.bool, device=device).tril(past).triu(past + 1 - window)
