"""What the baselines have in common: all of the protocol but the way from tokens to hidden vectors."""

from abc import ABC, abstractmethod
from importlib import import_module
from typing import Any, ClassVar, Generic, TypeVar

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from scannable.models.tokens import checked_tokens
from scannable.nn.head import TiedHead
from scannable.nn.loss import sliced_cross_entropy

S = TypeVar("S")


class Baseline(nn.Module, ABC, Generic[S]):
    """A causal sequence model; it brings `config`, `head`, and the four methods that are abstract here."""

    state_kind: ClassVar[type]
    config: Any
    head: nn.Module

    def forward(self, tokens: Int[Tensor, "b n"], *, logits_to_keep: int | None = None) -> Float[Tensor, "b m out"]:
        """Outputs at every position, or at the last `logits_to_keep` of them."""
        hidden = self.hidden(tokens)
        if logits_to_keep is not None:
            if logits_to_keep < 0:
                raise ValueError(f"logits_to_keep={logits_to_keep} must not be negative; None keeps all")
            hidden = hidden[:, max(0, hidden.shape[1] - logits_to_keep) :]
        return self.head(hidden)

    def hidden(self, tokens: Int[Tensor, "b n"]) -> Float[Tensor, "b n d"]:
        """What `forward` gives to the head."""
        return self._extend(checked_tokens(tokens, 2, self.config.vocab_size), None)[0]

    def loss(
        self, tokens: Int[Tensor, "b n"], targets: Int[Tensor, "b n"], *, slice_length: int = 1024
    ) -> Float[Tensor, ""]:
        """Mean cross-entropy over the targets that are not -100, without ever holding all logits."""
        return sliced_cross_entropy(self.hidden(tokens), targets, self.head, slice_length=slice_length)

    def initial_state(self, batch_size: int) -> S:
        """The state before the first token."""
        if type(batch_size) is not int or batch_size < 1:
            raise ValueError(f"batch_size={batch_size!r} must be a whole number of at least 1")
        return self._empty(batch_size)

    @torch.no_grad()
    def prefill(self, tokens: Int[Tensor, "b m"], state: S) -> tuple[Float[Tensor, "b m out"], S]:
        """Consume m tokens, from any state."""
        tokens = checked_tokens(tokens, 2, self.config.vocab_size)
        if not isinstance(state, self.state_kind):
            raise TypeError(
                f"a stream goes on from a state of initial_state, prefill or step, not {type(state).__name__}"
            )
        self._check_state(state, tokens.shape[0])
        hidden, after = self._extend(tokens, state)
        return self.head(hidden), state if after is None else after

    @torch.no_grad()
    def step(self, token: Int[Tensor, " b"], state: S) -> tuple[Float[Tensor, "b out"], S]:
        """Consume one token."""
        logits, state = self.prefill(checked_tokens(token, 1, None)[:, None], state)
        return logits[:, 0], state

    def _extend(self, tokens: Tensor, state: S | None) -> tuple[Tensor, S | None]:
        if not tokens.numel():
            return next(self.parameters()).new_zeros(*tokens.shape, self.config.width), state
        return self._run(tokens, state)

    @abstractmethod
    def state_nbytes(self, position: int, batch_size: int = 1) -> int:
        """The formula for `state.nbytes` after `position` tokens."""

    @abstractmethod
    def _empty(self, batch_size: int) -> S:
        """The state before the first token."""

    @abstractmethod
    def _check_state(self, state: S, rows: int) -> None:
        """Refuse a state of a model of another shape. (One of the same shape with other weights goes unnoticed.)"""

    @abstractmethod
    def _run(self, tokens: Tensor, state: S | None) -> tuple[Tensor, S | None]:
        """The hidden vectors of at least one token, and the state behind them if one was given.

        Without a state everything is differentiable, and nothing is kept.
        """


def output_layer(config: Any, embedding: nn.Embedding, std: float, scale: float = 1.0) -> nn.Module:
    """The embedding once more, times `scale`, or a layer without bias that starts at N(0, std^2)."""
    if config.tie_weights:
        return TiedHead(embedding, scale)
    head = nn.Linear(config.width, config.out_size or config.vocab_size, bias=False)
    nn.init.normal_(head.weight, std=std)
    return head


def check_config(config: Any, *sizes: str) -> None:
    """Refuse sizes that are no whole numbers above 0, and what no baseline can have."""
    for name in (*sizes, *(() if config.out_size is None else ("out_size",))):
        value = getattr(config, name)
        if type(value) is not int or value < 1:
            raise ValueError(f"{name}={value!r} must be a whole number of at least 1")
    if "heads" in sizes and config.width % config.heads:
        raise ValueError(f"width={config.width} is not a multiple of heads={config.heads}; choose heads that divide it")
    for name in ("tie_weights", "sinusoids"):
        if type(value := getattr(config, name, False)) is not bool:
            raise ValueError(f"{name}={value!r} must be True or False")
    if config.tie_weights and config.out_size not in (None, config.vocab_size):
        raise ValueError(
            f"tie_weights needs one output for each token, but out_size={config.out_size} and "
            f"vocab_size={config.vocab_size}; drop one of the two"
        )
    dropout = getattr(config, "dropout", 0)
    if type(dropout) not in (int, float) or not 0 <= dropout < 1:
        raise ValueError(f"dropout={dropout!r} must lie in [0, 1)")


def check_part(name: str, part: Tensor, shape: tuple[int, ...], dtype: torch.dtype) -> None:
    """Refuse a part of a state that another model made, or another batch."""
    if tuple(part.shape) != shape or part.dtype != dtype:
        raise ValueError(
            f"the state's {name} have the shape {tuple(part.shape)} and dtype {part.dtype}, but this model and batch "
            f"need {shape} and {dtype}; was it made by another one?"
        )


def transformers() -> Any:
    """The library, imported when it is needed: that takes seconds."""
    try:
        return import_module("transformers")
    except ImportError as error:
        raise ImportError(
            "this baseline is a model of transformers, which is missing; pip install 'scannable[hf]'"
        ) from error
