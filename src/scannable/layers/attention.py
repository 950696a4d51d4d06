"""Softmax attention, to all positions so far or to the last few."""

from collections.abc import Sequence
from functools import lru_cache
from typing import Any, Literal

import torch
from jaxtyping import Float
from torch import Tensor, nn

from scannable.layers.affine.recurrence import Mode
from scannable.layers.attention_state import AttentionState, capacity
from scannable.layers.layer import SequenceLayer, check_sizes, head_size, not_a_state
from scannable.layers.recurrent import check_parts
from scannable.layers.state import State, TensorState, advanced
from scannable.layers.window_attention import INPUTS, WindowAttention, WindowMemory
from scannable.nn.block import convolution as short_convolution
from scannable.nn.block import convolved
from scannable.nn.block_config import BlockConfig
from scannable.nn.cache import Continuation, KVCache
from scannable.nn.device import widest
from scannable.nn.rotary import LONGEST_WAVE, Rotation, rotations
from scannable.scan.documents import whole_numbers

LONGEST_TABLE = 1 << 15
"""Places whose rotations are kept. A stream has no end, so those further on are computed when they are needed."""


class Attention(SequenceLayer):
    """Multi-head softmax attention, causal.

        y_t = W_o sum_s softmax_s(q_t . k_s / sqrt(size)) v_s        over s <= t, or t - window < s <= t

    Args:
        window: how many positions each looks at, itself included. None: all, and the state grows with the stream; its
            buffers double when they are full. With a window it holds the last `window - 1` keys and values.
        positions: "rotary" turns queries and keys by their place in the stream (arXiv 2104.09864), so that they see
            how far they are apart; "none" leaves the order to the causal mask, or to what is added to x.
        qk_norm: bring queries and keys to a mean square of 1, with one learned gain for each head.
        convolution: positions of short causal convolutions, x + conv(x), of what comes in and of queries, keys and
            values (points A and B of Canon layers, arXiv 2512.17351); 0 for none.
        bias: of the projections, as in GPT-2.
        dropout: of the attention weights.

    >>> layer = sc.zoo.Attention(width=16, heads=2, window=8, qk_norm=True)
    >>> y, state = layer.extend(torch.randn(1, 50, 16), layer.initial_state(1))
    >>> y.shape, state.position
    (torch.Size([1, 50, 16]), 50)
    """

    title = "softmax attention"
    action = "no state update: keys kept"
    spd_class = "(n^2, n)"

    def __init__(
        self,
        width: int,
        heads: int = 4,
        *,
        window: int | None = None,
        positions: Literal["rotary", "none"] = "rotary",
        qk_norm: bool = False,
        convolution: int = 0,
        bias: bool = True,
        dropout: float = 0.0,
    ) -> None:
        super().__init__(width, heads)
        self.size: int = head_size(width, heads)
        if window is not None:
            check_sizes(window=window)
        if positions not in ("rotary", "none"):
            raise ValueError(f"positions={positions!r} is neither 'rotary' nor 'none'; a model adds learned ones to x")
        if type(bias) is not bool:
            raise ValueError(f"bias={bias!r} must be True or False")
        if not 0 <= dropout < 1:
            raise ValueError(f"dropout={dropout!r} must lie in [0, 1)")
        self.window: int | None = window
        self.rotary: bool = positions == "rotary"
        config = BlockConfig(positions=positions, qk_norm=qk_norm, convolution=convolution)
        self.convolution = short_convolution(width, config)
        self.attention = WindowAttention(width, heads, dropout, config)
        for linear in (self.attention.query, self.attention.key_value, self.attention.out):
            nn.init.normal_(linear.weight, std=width**-0.5)
            nn.init.zeros_(linear.bias)
            if not bias:
                linear.register_parameter("bias", None)

    @property
    def out(self) -> Any:
        """The projection that writes to the residual stream, or what was put around it."""
        return self.attention.out

    # In parallel.

    def forward(
        self, x: Float[Tensor, "b n d"], *, lengths: Any = None, starts: Any = None, mode: Mode = "chunkwise"
    ) -> Float[Tensor, "b n d"]:
        if starts is not None:
            return super().forward(x, lengths=lengths, starts=starts, mode=mode)
        keep = self.check(x, lengths, mode)
        if x.numel() == 0:
            return x
        x = x if keep is None else x.masked_fill(~keep[..., None], 0)
        x = convolved(self.convolution, x, None, 0, 0)
        n, rotation = x.shape[1], self.rotation((0,), x.shape[1])
        if self.window is None:
            return self.attention(x, n, causal=True, mask=None, cache=None, layer=0, rotation=rotation)
        return self.attention.over_window(x, self.window, rotation, None)

    # In a stream.

    def initial_state(self, batch_size: int) -> State:
        check_sizes(batch_size=batch_size)
        positions = (0,) * batch_size
        if self.window is None:
            like = self.out.weight.detach()
            return AttentionState(
                positions, KVCache.empty(1, batch_size, self.heads, 0, self.size, like, self._carried())
            )
        return TensorState(positions, {name: self.zeros(*shape) for name, shape in self._held(batch_size, 0).items()})

    def state_nbytes(self, position: int, batch_size: int = 1) -> int:
        """Keys and values of the window, but one, or of all positions and the room for more; inputs of convolutions."""
        places = capacity(position) if self.window is None else self.window - 1
        numbers = 2 * places * self.width + sum(before * channels for before, channels in self._carried())
        return batch_size * numbers * self.out.weight.itemsize

    def check_state(self, state: object, rows: int) -> None:
        if torch.compiler.is_compiling():
            return
        if not isinstance(state, AttentionState if self.window is None else TensorState):
            raise not_a_state(self, state, rows)
        held = state.parts if isinstance(state, TensorState) else _parts(state.current())
        dtype = self.out.weight.dtype
        expected = {name: (torch.Size(shape), dtype) for name, shape in self._held(rows, state.position).items()}
        check_parts(self, held, expected, rows)

    def extend(
        self, x: Float[Tensor, "b n d"], state: Any, *, lengths: Any = None, mode: Mode = "chunkwise"
    ) -> tuple[Float[Tensor, "b n d"], State]:
        keep = self.check(x, lengths, mode)
        self.check_state(state, x.shape[0])
        counts = None if keep is None else tuple(whole_numbers(lengths, "lengths").tolist())
        n = x.shape[1] if counts is None else max(counts, default=0)
        if not n or not len(x):
            return torch.zeros_like(x), state
        if n < x.shape[1]:
            y, state = self.extend(x[:, :n], state, lengths=counts, mode=mode)
            return nn.functional.pad(y, (0, 0, 0, x.shape[1] - n)), state
        if counts is not None and min(counts) == n:
            counts = keep = None
        if keep is not None:
            # Nobody looks at the padding, but what is no number would come back from sums of gradients.
            x = x.masked_fill(~keep[..., None], 0)
        state = state.usable()
        if isinstance(state, AttentionState):
            return self._over_all(x, state, counts, keep)
        return self._over_window(x, state, counts, keep)

    def _over_all(
        self, x: Float[Tensor, "b n d"], state: AttentionState, counts: Sequence[int] | None, keep: Tensor | None
    ) -> tuple[Float[Tensor, "b n d"], AttentionState]:
        n, recording = x.shape[1], torch.is_grad_enabled()
        after = advanced(state.positions, n, counts)
        # A container of its own, and what is not only appended to copied: a call that is interrupted changes nothing.
        cache = state.cache.branch()
        if not recording:
            cache.inputs = [one.clone() for one in cache.inputs]
        cache.make_room(capacity(max(after)))
        if cache.length is None:
            new = Continuation(cache, n, counts, recording=recording)
        else:
            new = _FromOnePlace(cache, n, recording=recording)
            new.counted = keep
        x = convolved(self.convolution, x, new, 0, 0)
        rotation = self.rotation(state.positions, n)
        y = self.attention(x, n, causal=True, mask=new.mask(n), cache=new, layer=0, rotation=rotation)
        cache.lengths = after
        if not recording:
            state.cache.lengths = after
        return y, AttentionState(after, cache)

    def _over_window(
        self, x: Float[Tensor, "b n d"], state: TensorState, counts: Sequence[int] | None, keep: Tensor | None
    ) -> tuple[Float[Tensor, "b n d"], TensorState]:
        window = self.window or 1
        memory = WindowMemory(state.parts, [min(p, window - 1) for p in state.positions], keep)
        x = convolved(self.convolution, x, memory, 0, 0)
        y = self.attention.over_window(x, window, self.rotation(state.positions, x.shape[1]), memory)
        parts = {name: memory.after[name] for name in state.parts}
        return y, TensorState(advanced(state.positions, x.shape[1], counts), parts)

    # What both have.

    def _carried(self) -> list[tuple[int, int]]:
        """(positions, channels) that each convolution looks back at."""
        if self.convolution is None:
            return []
        return [(self.convolution.length - 1, channels * self.width) for channels in (1, 1, 2)]

    def _held(self, rows: int, position: int) -> dict[str, tuple[int, ...]]:
        """The shapes of what a state holds."""
        places = capacity(position) if self.window is None else self.window - 1
        keys = (rows, self.heads, places, self.size)
        inputs = {name: (rows, *shape) for name, shape in zip(INPUTS, self._carried(), strict=False)}
        return {"keys": keys, "values": keys} | inputs

    def rotation(self, positions: tuple[int, ...], n: int) -> Rotation | None:
        """Of n new places of each row."""
        if not self.rotary:
            return None
        weight = self.out.weight
        if len(set(positions)) == 1:
            positions = positions[:1]
        return _rotation(positions, n, self.size, weight.device, weight.dtype)


class _FromOnePlace(Continuation):
    """Rows that go on from one place: all of them are stored alike, zeros behind the end of each. Nobody looks there,
    and what comes next overwrites it, so that no mask is needed but the causal one.
    """

    def store(self, layer: int, keys: Tensor, values: Tensor) -> tuple[Tensor, Tensor]:
        if self.counted is not None:
            padding = ~self.counted[:, None, :, None]
            keys, values = keys.masked_fill(padding, 0), values.masked_fill(padding, 0)
        return super().store(layer, keys, values)


def _parts(cache: KVCache) -> dict[str, Tensor]:
    return dict(zip(("keys", "values", *INPUTS), cache.tensors(), strict=False))


@lru_cache(maxsize=2)
def _rotation(positions: tuple[int, ...], n: int, size: int, device: torch.device, dtype: torch.dtype) -> Rotation:
    """Of n places from each position on; remembered, because all layers of a model ask for the same."""
    end = max(positions) + n
    # For later too, when autograd may have to save them.
    with torch.inference_mode(False), torch.no_grad():
        if end <= LONGEST_TABLE:
            cosines, sines = rotations(capacity(end), size, device, dtype)
            if len(positions) == 1:
                return cosines[positions[0] : end], sines[positions[0] : end]
            places = torch.tensor(positions, device=device)[:, None, None] + torch.arange(n, device=device)
            return cosines[places], sines[places]
        places = torch.tensor(positions, device=device)[:, None] + torch.arange(n, device=device)
        speeds = LONGEST_WAVE ** (-torch.arange(0, size, 2, dtype=widest(device), device=device) / size)
        angles = places[:, None, :, None] * speeds
        return angles.cos().to(dtype), angles.sin().to(dtype)
