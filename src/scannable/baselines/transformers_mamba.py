"""Mamba as people use it: the model of transformers.

An `LM` of "mamba" layers is the same function, and much faster without a GPU: transformers runs the recurrence there
one token after the other. This one is the reference.
"""

from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from scannable.baselines.model import Baseline, check_config, check_part, output_layer, transformers
from scannable.layers.state import TensorState, advanced
from scannable.nn.decay import undecayed
from scannable.storage.registry import register_model


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


class MambaBaseline(Baseline[TensorState]):
    """The MambaModel of transformers with the protocol that all models here have.

        model = MambaBaseline(MambaBaselineConfig(vocab_size=50257, tie_weights=True))

    `prefill` is parallel from the empty state only: transformers' scan cannot start from another one, and from there it
    goes token by token. Norms and recurrence round to float32, also where the weights are float64.
    """

    state_kind: ClassVar[type] = TensorState

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

    def _empty(self, batch_size: int) -> TensorState:
        device = self.backbone.embeddings.weight.device
        parts = {
            name: torch.zeros(shape, dtype=dtype, device=device)
            for name, (shape, dtype) in self._expected(batch_size).items()
        }
        return TensorState((0,) * batch_size, parts)

    def _expected(self, rows: int) -> dict[str, tuple[tuple[int, ...], torch.dtype]]:
        """Shape and dtype of what each layer's convolution and recurrence hold."""
        kinds = zip(("convolution", "recurrence"), self._shapes(rows), self._dtypes, strict=True)
        return {f"{name} {i}": (shape, dtype) for name, shape, dtype in kinds for i in range(self.config.layers)}

    def _check_state(self, state: TensorState, rows: int) -> None:
        expected = self._expected(rows)
        if len(state.parts) != len(expected):
            raise ValueError(f"the state has {len(state.parts) // 2} layers, this model {self.config.layers}")
        for name, (shape, dtype) in expected.items():
            if name not in state.parts:
                raise ValueError(f"the state has no {name!r}; was it made by another model?")
            check_part(name, state.parts[name], shape, dtype)

    def _run(self, tokens: Tensor, state: TensorState | None) -> tuple[Tensor, TensorState | None]:
        dtype, precise = self._dtypes
        if state is None:
            return self.backbone(tokens, use_cache=False).last_hidden_state.to(dtype), None
        cache = self._cache(state)
        pieces = tokens.split(1, 1) if state.position else (tokens,)
        hidden = [self.backbone(piece, cache_params=cache, use_cache=True).last_hidden_state for piece in pieces]
        # Under autocast the cache would hold half precision.
        parts = {f"convolution {i}": layer.conv_states[0].to(dtype) for i, layer in enumerate(cache.layers)}
        parts |= {f"recurrence {i}": layer.recurrent_states[0].to(precise) for i, layer in enumerate(cache.layers)}
        return torch.cat(hidden, 1).to(dtype), TensorState(advanced(state.positions, tokens.shape[1], None), parts)

    def _cache(self, state: TensorState) -> Any:
        """A cache of transformers with a copy of the state; before the first token an empty one."""
        cache = transformers().DynamicCache(config=self.backbone.config)
        if state.position:
            for i in range(self.config.layers):
                cache.update_conv_state(state[f"convolution {i}"], i, conv_kernel_size=self.config.convolution)
                cache.update_recurrent_state(state[f"recurrence {i}"], i)
        return cache


register_model(MambaBaseline, MambaBaselineConfig)
