"""A Transformer in which each position looks at the last `window` positions: constant state, linear work."""

from dataclasses import dataclass, field
from typing import ClassVar

import torch
from jaxtyping import Bool, Float
from torch import Tensor, nn
from torch.nn import functional as F

from scannable.baselines.model import Baseline, check_config, check_part, output_layer
from scannable.nn.block import Attention, Block, Memory, initialise
from scannable.nn.decay import undecayed
from scannable.nn.positions import starting_positions
from scannable.nn.rotary import Rotation
from scannable.storage.registry import register_model, storable


@dataclass(frozen=True)
class SlidingWindowConfig:
    """The knobs of a `SlidingWindowTransformer`."""

    vocab_size: int
    width: int = 256
    layers: int = 4
    heads: int = 1
    window: int = 64
    """Positions that each position looks at, itself included."""
    context: int = 1024
    """How many positions are learned, and so the longest input."""
    out_size: int | None = None
    """Outputs a position, for tasks that are not language modelling; the vocabulary, unless told."""
    tie_weights: bool = False
    """Use the embedding as the output layer; needs outputs that are the vocabulary."""
    dropout: float = 0.0
    sinusoids: bool = False
    """Start the learned positions as sinusoids instead of noise."""

    def __post_init__(self) -> None:
        check_config(self, "heads", "window", "context")


@storable
@dataclass(frozen=True, eq=False)
class SlidingWindowState:
    """The last window - 1 keys and values of each layer. Nothing is ever written into them, so a fork shares them."""

    position: int
    keys: Float[Tensor, "layers b h p size"] = field(repr=False)
    values: Float[Tensor, "layers b h p size"] = field(repr=False)

    def __post_init__(self) -> None:
        parts = isinstance(self.keys, Tensor) and isinstance(self.values, Tensor)
        if type(self.position) is not int or self.position < 0 or not parts:
            raise TypeError(f"no state of a stream: position {self.position!r}, keys {type(self.keys).__name__}")

    def fork(self) -> "SlidingWindowState":
        """An independent stream that goes on from here."""
        return self

    @property
    def nbytes(self) -> int:
        """Bytes held."""
        return self.keys.nbytes + self.values.nbytes


class SlidingWindowTransformer(Baseline[SlidingWindowState]):
    """GPT-2 blocks with attention over a window, and learned absolute positions.

        model = SlidingWindowTransformer(SlidingWindowConfig(vocab_size=50257, window=64))

    Weights start as those of Transformer-PSM do.
    """

    state_kind: ClassVar[type] = SlidingWindowState

    def __init__(self, config: SlidingWindowConfig) -> None:
        super().__init__()
        self.config: SlidingWindowConfig = config
        self.embedding = nn.Embedding(config.vocab_size, config.width)
        self.positions = nn.Parameter(starting_positions(config.context, config.width, sinusoids=config.sinusoids))
        undecayed(self, "positions")
        self.dropout = nn.Dropout(config.dropout)
        self.blocks = nn.ModuleList()
        for _ in range(config.layers):
            block = Block(config.width, config.heads, config.dropout)
            block.attention = WindowAttention(config.width, config.heads, config.dropout, config.window)
            initialise(block, config.layers)
            self.blocks.append(block)
        self.norm = nn.LayerNorm(config.width)
        self.head: nn.Module = output_layer(config, self.embedding, config.width**-0.5, config.width**-0.5)

    def _nbytes(self, position: int, batch_size: int) -> int:
        """Constant once the window is full."""
        vectors = 2 * self.config.layers * batch_size * min(position, self.config.window - 1)
        return vectors * self.config.width * self.positions.itemsize

    def _empty(self, batch_size: int) -> SlidingWindowState:
        nothing = self.positions.detach().new_zeros(self._held(0, batch_size))
        return SlidingWindowState(0, nothing, nothing)

    def _held(self, position: int, rows: int) -> tuple[int, ...]:
        c = self.config
        return c.layers, rows, c.heads, min(position, c.window - 1), c.width // c.heads

    def _check_state(self, state: SlidingWindowState, rows: int) -> None:
        check_part("keys", state.keys, self._held(state.position, rows), self.positions.dtype)
        check_part("values", state.values, self._held(state.position, rows), self.positions.dtype)

    def _run(self, tokens: Tensor, state: SlidingWindowState | None) -> tuple[Tensor, SlidingWindowState | None]:
        start = 0 if state is None else state.position
        end = start + tokens.shape[1]
        if end > self.config.context:
            raise ValueError(
                f"{end} tokens are more than the {self.config.context} positions this model has learned; build it with "
                "a larger context"
            )
        cache = None if state is None else WindowMemory(state.keys, state.values, self.config.window - 1)
        x = self.dropout(self.embedding(tokens) + self.positions[start:end])
        for layer, block in enumerate(self.blocks):
            x = block(x, x.shape[1], causal=True, cache=cache, layer=layer)
        return self.norm(x), None if cache is None else SlidingWindowState(end, *cache.following())


@dataclass
class WindowMemory:
    """Keys and values of earlier positions; of all, the new ones included, the last `keep` are put aside for later."""

    keys: Float[Tensor, "layers b h p size"]
    values: Float[Tensor, "layers b h p size"]
    keep: int
    aside: list[tuple[Tensor, Tensor]] = field(default_factory=list)

    def store(self, layer: int, keys: Tensor, values: Tensor) -> tuple[Tensor, Tensor]:
        """All positions that the new ones may look at; the buffers stay as they are."""
        keys = torch.cat((self.keys[layer], keys), -2)
        values = torch.cat((self.values[layer], values), -2)
        first = max(0, keys.shape[-2] - self.keep)
        self.aside.append((keys[:, :, first:], values[:, :, first:]))
        return keys, values

    def following(self) -> tuple[Tensor, Tensor]:
        """The buffers for the next call, of all layers, in memory of their own."""
        keys, values = zip(*self.aside, strict=True)
        return torch.stack(keys), torch.stack(values)


class WindowAttention(Attention):
    """Attention in which each position looks at itself and the `window - 1` positions before it."""

    def __init__(self, width: int, heads: int, dropout: float, window: int) -> None:
        super().__init__(width, heads, dropout)
        self.window: int = window

    def forward(
        self,
        x: Float[Tensor, "b n d"],
        kept: int,
        *,
        causal: bool,
        mask: Tensor | None,
        cache: Memory | None,
        layer: int,
        rotation: Rotation | None = None,
        before: tuple[Tensor, Tensor] | None = None,
    ) -> Float[Tensor, "b m d"]:
        """What the last `kept` positions gather; the window is the mask, there can be no other."""
        if mask is not None or not causal or rotation is not None or before is not None:
            raise ValueError("attention over a window is causal and has a mask of its own")
        keys, values = (self._heads(half) for half in self.key_value(x).chunk(2, -1))
        if cache is not None:
            keys, values = cache.store(layer, keys, values)
        queries = self._heads(self.query(x[:, x.shape[1] - kept :]))
        gathered = attend(queries, keys, values, self.window, self.dropout if self.training else 0.0)
        return self.out(gathered.transpose(1, 2).flatten(2))


def attend(
    queries: Float[Tensor, "b h n size"],
    keys: Float[Tensor, "b h p size"],
    values: Float[Tensor, "b h p size"],
    window: int,
    dropout: float = 0.0,
) -> Float[Tensor, "b h n size"]:
    """Softmax attention of the last n of p positions, each over itself and the `window - 1` before it.

    The queries are cut into chunks of at most `window`, and each chunk looks at the keys of its own positions and of
    the `window - 1` before them: work and memory O(n window), not O(n^2).
    """
    n, past = queries.shape[-2], keys.shape[-2] - queries.shape[-2]
    chunk = min(window, n)
    chunks = -(-n // chunk)
    reach = min(window, past + n) - 1
    # Zeros in front, so that the first chunk can reach as far back as the others, and behind, to fill the last chunk.
    front, behind = reach - past, chunks * chunk - n

    def slices(x: Tensor) -> Tensor:
        padded = F.pad(x, (0, 0, front, behind))
        return padded.unfold(-2, reach + chunk, chunk).transpose(-1, -2).flatten(0, 1)

    gathered = F.scaled_dot_product_attention(
        F.pad(queries, (0, 0, 0, behind)).unflatten(-2, (chunks, chunk)).flatten(0, 1),
        slices(keys),
        slices(values),
        attn_mask=window_mask(window, chunk, chunks, reach, front, queries.device)[None],
        dropout_p=dropout,
    )
    return gathered.flatten(1, 2)[:, :n].unflatten(0, queries.shape[:2])


def window_mask(
    window: int, chunk: int, chunks: int, reach: int, front: int, device: torch.device
) -> Bool[Tensor, "chunks c s"]:
    """Which keys of its slice each query of a chunk looks at; query i stands at place reach + i of the slice."""
    query = reach + torch.arange(chunk, device=device)[:, None]
    place = torch.arange(reach + chunk, device=device)
    near = (place <= query) & (place > query - window)
    real = place + chunk * torch.arange(chunks, device=device)[:, None] >= front
    return near & real[:, None]


register_model(SlidingWindowTransformer, SlidingWindowConfig)
