"""Mamba as people use it: the model of transformers.

An `LM` of "mamba" layers is the same function, and much faster without a GPU: transformers runs the recurrence there
one token after the other. This one is the reference.
"""

from dataclasses import dataclass, field
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from scannable.baselines.model import Baseline, check_config, check_part, output_layer, transformers
from scannable.nn.decay import undecayed
from scannable.storage.registry import register_model, storable


@dataclass(frozen=True)
class MambaBaselineConfig:
    """The knobs of a `MambaBaseline`."""

    vocab_size: int
    width: int = 256
    layers: int = 4
    state_size: int = 16
    """Numbers that each channel remembers."""
    expand: int = 2
    """Channels, in widths."""
    convolution: int = 4
    """Tokens that the short convolution sees."""
    out_size: int | None = None
    """Outputs a position, for tasks that are not language modelling; the vocabulary, unless told."""
    tie_weights: bool = False
    """Use the embedding as the output layer; needs outputs that are the vocabulary."""

    def __post_init__(self) -> None:
        check_config(self, "state_size", "expand", "convolution")


@storable
@dataclass(frozen=True, eq=False)
class MambaState:
    """What each layer's convolution and recurrence hold. Nothing is ever written into it, so a fork shares it."""

    position: int
    convolutions: tuple[Tensor, ...] = field(repr=False)
    recurrences: tuple[Tensor, ...] = field(repr=False)

    def __post_init__(self) -> None:
        parts = isinstance(self.convolutions, tuple) and isinstance(self.recurrences, tuple)
        if type(self.position) is not int or self.position < 0 or not parts:
            raise TypeError(f"no state of a stream: position {self.position!r}, {type(self.recurrences).__name__}")

    def fork(self) -> "MambaState":
        """An independent stream that goes on from here."""
        return self

    @property
    def nbytes(self) -> int:
        """Bytes held by all layers."""
        return sum(part.nbytes for part in (*self.convolutions, *self.recurrences))


class MambaBaseline(Baseline[MambaState]):
    """The MambaModel of transformers with the protocol that all models here have.

        model = MambaBaseline(MambaBaselineConfig(vocab_size=50257, tie_weights=True))

    `prefill` is parallel from the empty state only: transformers' scan cannot start from another one, and from there it
    goes token by token. Norms and recurrence round to float32, also where the weights are float64.
    """

    state_kind: ClassVar[type] = MambaState

    def __init__(self, config: MambaBaselineConfig) -> None:
        super().__init__()
        self.config: MambaBaselineConfig = config
        library = transformers()
        theirs = library.MambaConfig(
            vocab_size=config.vocab_size,
            hidden_size=config.width,
            num_hidden_layers=config.layers,
            state_size=config.state_size,
            expand=config.expand,
            conv_kernel=config.convolution,
        )
        self.backbone = library.MambaModel(theirs)
        for layer in self.backbone.layers:
            undecayed(layer.mixer, "A_log", "D")
        self.head: nn.Module = output_layer(config, self.backbone.embeddings, theirs.initializer_range)

    @property
    def _dtypes(self) -> tuple[torch.dtype, torch.dtype]:
        """Of what the convolutions hold, and the recurrences."""
        dtype = self.backbone.embeddings.weight.dtype
        return dtype, torch.promote_types(dtype, torch.float32)

    def _shapes(self, rows: int) -> tuple[tuple[int, ...], tuple[int, ...]]:
        channels = self.config.expand * self.config.width
        return (rows, channels, self.config.convolution), (rows, channels, self.config.state_size)

    def _nbytes(self, position: int, batch_size: int) -> int:
        """It does not depend on the position."""
        channels = self.config.layers * batch_size * self.config.expand * self.config.width
        convolution, recurrence = self._dtypes
        per_channel = self.config.convolution * convolution.itemsize + self.config.state_size * recurrence.itemsize
        return channels * per_channel

    def _empty(self, batch_size: int) -> MambaState:
        def zeros(shape: tuple[int, ...], dtype: torch.dtype) -> tuple[Tensor, ...]:
            device = self.backbone.embeddings.weight.device
            return tuple(torch.zeros(shape, dtype=dtype, device=device) for _ in range(self.config.layers))

        return MambaState(0, *map(zeros, self._shapes(batch_size), self._dtypes))

    def _check_state(self, state: MambaState, rows: int) -> None:
        parts = {"convolutions": state.convolutions, "recurrences": state.recurrences}
        for (name, layers), shape, dtype in zip(parts.items(), self._shapes(rows), self._dtypes, strict=True):
            if len(layers) != self.config.layers:
                raise ValueError(f"the state has {len(layers)} layers, this model {self.config.layers}")
            for layer in layers:
                check_part(name, layer, shape, dtype)

    def _run(self, tokens: Tensor, state: MambaState | None) -> tuple[Tensor, MambaState | None]:
        dtype, precise = self._dtypes
        if state is None:
            return self.backbone(tokens, use_cache=False).last_hidden_state.to(dtype), None
        cache = self._cache(state)
        pieces = tokens.split(1, 1) if state.position else (tokens,)
        hidden = [self.backbone(piece, cache_params=cache, use_cache=True).last_hidden_state for piece in pieces]
        # Under autocast the cache would hold half precision.
        convolutions = tuple(layer.conv_states[0].to(dtype) for layer in cache.layers)
        recurrences = tuple(layer.recurrent_states[0].to(precise) for layer in cache.layers)
        after = MambaState(state.position + tokens.shape[1], convolutions, recurrences)
        return torch.cat(hidden, 1).to(dtype), after

    def _cache(self, state: MambaState) -> Any:
        """A cache of transformers with a copy of the state; before the first token an empty one."""
        cache = transformers().DynamicCache(config=self.backbone.config)
        if state.position:
            for i, (convolution, recurrence) in enumerate(zip(state.convolutions, state.recurrences, strict=True)):
                cache.update_conv_state(convolution, i, conv_kernel_size=self.config.convolution)
                cache.update_recurrent_state(recurrence, i)
        return cache


register_model(MambaBaseline, MambaBaselineConfig)
