"""A language model made of one row of the zoo: embedding, pre-norm blocks of the row and an MLP, output layer."""

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import ClassVar, cast

import torch
from jaxtyping import Float, Int, Integer
from torch import Tensor, nn
from torch.nn import functional
from torch.utils.checkpoint import checkpoint

from scannable.layers import LAYERS
from scannable.layers.affine.actions import Scalar
from scannable.layers.affine.monoid import Affine
from scannable.layers.affine.recurrence import Mode
from scannable.layers.layer import LayerState, SequenceLayer, held_bytes
from scannable.layers.log_linear_state import LogLinearMemory, RowsAtOnePosition
from scannable.models.base import CausalModel, check_logits_to_keep, last
from scannable.models.lm_config import ZooConfig
from scannable.models.tokens import checked_tokens
from scannable.nn.device import may_look
from scannable.nn.head import TiedHead
from scannable.nn.projection import projection
from scannable.scan import Roots
from scannable.storage.registry import storable

for kind in (LogLinearMemory, RowsAtOnePosition, Roots, Affine, Scalar):
    # What the state of log-linear attention is made of.
    storable(kind)


@storable
@dataclass(frozen=True, eq=False)
class ZooState:
    """The state of each layer. Nothing is ever written into it, so a fork shares it."""

    position: int
    """Tokens consumed; of rows of different lengths, by the longest."""
    layers: tuple[LayerState, ...] = field(repr=False)

    def __post_init__(self) -> None:
        if type(self.position) is not int or self.position < 0 or not isinstance(self.layers, tuple):
            raise TypeError(f"no state of a stream: position {self.position!r}, layers {type(self.layers).__name__}")

    def fork(self) -> "ZooState":
        """An independent stream that goes on from here."""
        return self

    @property
    def nbytes(self) -> int:
        """Bytes held by all layers."""
        return sum(held_bytes(layer) for layer in self.layers)


class ZooBlock(nn.Module):
    """x + row(norm(x)), then x + MLP(norm(x)) if there is one."""

    def __init__(self, config: ZooConfig) -> None:
        super().__init__()
        row = LAYERS[config.row]
        self.norm = nn.RMSNorm(config.width, eps=config.eps)
        try:
            self.mixer: SequenceLayer = row(config.width, config.heads, **config.options)
        except TypeError as error:
            raise ValueError(f"options {config.options!r} do not fit the row {config.row!r}: {error}") from error
        self.dropout = nn.Dropout(config.dropout)
        self.mlp: nn.Sequential | None = None
        if row.usual_mlp if config.mlp is None else config.mlp:
            self.mlp = nn.Sequential(
                nn.RMSNorm(config.width, eps=config.eps),
                projection(config.width, 4 * config.width, bias=True),
                nn.GELU("tanh"),
                projection(4 * config.width, config.width, bias=True),
            )

    def forward(
        self, x: Float[Tensor, "b n d"], state: LayerState, lengths: Tensor | None, mode: Mode
    ) -> tuple[Float[Tensor, "b n d"], LayerState]:
        mixed, state = self.mixer.extend(self.norm(x), state, lengths=lengths, mode=mode)
        x = x + self.dropout(mixed)
        return (x if self.mlp is None else x + self.dropout(self.mlp(x))), state


class ZooLM(CausalModel[ZooState]):
    """Any row of Table 1 as a causal sequence model, with the protocol that all models here have.

        model = ZooLM(ZooConfig(row="mamba", layers=4, width=256, vocab_size=50257))

    Projections start with variance 1 / fan-in, those that write to the residual stream less by the square root of how
    many there are.
    """

    state_kind: ClassVar[type] = ZooState

    def __init__(self, config: ZooConfig) -> None:
        super().__init__()
        self.config: ZooConfig = config
        self.embedding = nn.Embedding(config.vocab_size, config.width)
        self.blocks = nn.ModuleList(ZooBlock(config) for _ in range(config.layers))
        self.norm = nn.RMSNorm(config.width, eps=config.eps)
        self.head: nn.Module
        if config.tie_weights:
            nn.init.normal_(self.embedding.weight, std=config.width**-0.5)
            self.head = TiedHead(self.embedding)
        else:
            self.head = projection(config.width, config.out_size or config.vocab_size)
        self._scale_residuals()

    def _blocks(self) -> Iterator[ZooBlock]:
        return (cast(ZooBlock, block) for block in self.blocks)

    @torch.no_grad()
    def _scale_residuals(self) -> None:
        writers = [
            part
            for block in self._blocks()
            for part in (getattr(block.mixer, "out", None), None if block.mlp is None else block.mlp[-1])
            if isinstance(part, nn.Linear)
        ]
        for writer in writers:
            writer.weight.mul_(len(writers) ** -0.5)

    @property
    def vocab_size(self) -> int:
        """How many tokens there are."""
        return self.config.vocab_size

    def forward(
        self, tokens: Integer[Tensor, "b n"], *, logits_to_keep: int | None = None, mode: Mode = "chunkwise"
    ) -> Float[Tensor, "b m out"]:
        """As for every model; `mode` is which of the three equal ways runs the recurrences."""
        check_logits_to_keep(logits_to_keep)
        return self.head(last(self.hidden(tokens, mode=mode), logits_to_keep))

    def hidden(self, tokens: Integer[Tensor, "b n"], *, mode: Mode = "chunkwise") -> Float[Tensor, "b n d"]:
        """What `forward` gives to the head."""
        tokens = checked_tokens(tokens, 2, self.vocab_size)
        layers = tuple(block.mixer.initial_state(tokens.shape[0]) for block in self._blocks())
        return self._run(tokens, layers, None, mode)[0]

    @torch.no_grad()
    def prefill(
        self,
        tokens: Integer[Tensor, "b m"],
        state: ZooState,
        *,
        logits_to_keep: int | None = None,
        lengths: Int[Tensor, " b"] | None = None,
    ) -> tuple[Float[Tensor, "b k out"], ZooState]:
        """Consume m tokens in parallel, from any state. With `lengths`, only the first so many of each row."""
        return self._go_on(tokens, state, logits_to_keep, lengths=lengths)

    def _empty(self, batch_size: int) -> ZooState:
        return ZooState(0, tuple(block.mixer.initial_state(batch_size) for block in self._blocks()))

    def _nbytes(self, position: int, batch_size: int) -> int:
        """For an affine row it does not depend on the position."""
        return sum(block.mixer.state_nbytes(position, batch_size) for block in self._blocks())

    def _check_state(self, state: ZooState, rows: int) -> None:
        if len(state.layers) != len(self.blocks):
            raise ValueError(
                f"the state has {len(state.layers)} layers, this model {len(self.blocks)}; another model made it"
            )
        for block, layer in zip(self._blocks(), state.layers, strict=True):
            block.mixer.check_state(layer, rows)
            block.mixer.check_position(layer, state.position)

    def _consume(
        self, tokens: Tensor, state: ZooState, lengths: Tensor | None = None
    ) -> tuple[Float[Tensor, "b m d"], ZooState]:
        """One token is O(1) work for an affine row, whatever came before."""
        hidden, layers = self._run(tokens, state.layers, lengths, "step" if tokens.shape[1] == 1 else "chunkwise")
        # A look elsewhere would wait for the device; the longest row is taken to fill the batch there.
        look = lengths is not None and may_look(torch.as_tensor(lengths))
        consumed = int(torch.as_tensor(lengths).max()) if look else tokens.shape[1]
        return hidden, ZooState(state.position + consumed, layers)

    def _run(
        self, tokens: Tensor, layers: tuple[LayerState, ...], lengths: Tensor | None, mode: Mode
    ) -> tuple[Tensor, tuple[LayerState, ...]]:
        x = functional.embedding(tokens, self.embedding.weight)
        after: list[LayerState] = []
        again = self.config.checkpoint and self.training and torch.is_grad_enabled()
        for block, state in zip(self._blocks(), layers, strict=True):
            x, state = (
                checkpoint(block, x, state, lengths, mode, use_reentrant=False)
                if again
                else block(x, state, lengths, mode)
            )
            after.append(state)
        return self.norm(x), tuple(after)
