"""What all models here share: the whole protocol but the way from tokens to hidden vectors."""

from abc import ABC, abstractmethod
from typing import Any, ClassVar, Generic, TypeVar

import torch
from jaxtyping import Float, Integer
from torch import Tensor, nn

from scannable.models.tokens import checked_tokens
from scannable.nn.loss import sliced_cross_entropy

S = TypeVar("S")


class CausalModel(nn.Module, ABC, Generic[S]):
    """A causal sequence model in both its forms: in parallel, and token by token from a state.

    A model brings its `head`, the class of its states, and the methods that are abstract here. Arguments are checked
    before anything is computed or written, so a call that is refused leaves the state as it was.
    """

    state_kind: ClassVar[type]
    head: nn.Module
    """Applied to hidden vectors last, and only where outputs are wanted."""
    embedding_name: ClassVar[str | None] = None
    """The attribute that is the table of token vectors, for those who tie or replace it."""

    @property
    @abstractmethod
    def vocab_size(self) -> int | None:
        """How many tokens there are; None if that is not known."""

    # In parallel.

    def forward(
        self,
        tokens: Integer[Tensor, "b n"],
        *,
        logits_to_keep: int | None = None,
        lengths: Any = None,
        starts: Any = None,
    ) -> Float[Tensor, "b m out"]:
        """Outputs at every position, or at the last `logits_to_keep` of them, if there are so many.

        With `lengths`, only the first so many positions of each row count; with `starts`, documents are packed in a
        row, each as if it were alone (places, the same in all rows; a sequence of them for each row; or a mask (b, n)).
        """
        check_logits_to_keep(logits_to_keep)
        return self.head(last(self.hidden(tokens, lengths=lengths, starts=starts), logits_to_keep))

    @abstractmethod
    def hidden(
        self, tokens: Integer[Tensor, "b n"], *, lengths: Any = None, starts: Any = None
    ) -> Float[Tensor, "b n d"]:
        """What `forward` gives to the head."""

    def loss(
        self,
        tokens: Integer[Tensor, "b n"],
        targets: Integer[Tensor, "b n"],
        *,
        slice_length: int = 1024,
        lengths: Any = None,
        starts: Any = None,
    ) -> Float[Tensor, ""]:
        """Mean cross-entropy over the targets that are not -100, without ever holding all logits."""
        hidden = self.hidden(tokens, lengths=lengths, starts=starts)
        return sliced_cross_entropy(hidden, targets, self.head, slice_length=slice_length)

    # Token by token.

    def initial_state(self, batch_size: int) -> S:
        """The state before the first token of `batch_size` streams."""
        check_whole("batch_size", batch_size, 1)
        return self._empty(batch_size)

    def extend(
        self, tokens: Integer[Tensor, "b m"], state: S, *, logits_to_keep: int | None = None, lengths: Any = None
    ) -> tuple[Float[Tensor, "b k out"], S]:
        """Consume m tokens in parallel, from any state: outputs as `forward` gives them, and the state behind them.
        Differentiable in the weights and in `state`; with `lengths`, only the first so many tokens of each row.
        """
        check_logits_to_keep(logits_to_keep)
        tokens = checked_tokens(tokens, 2, self.vocab_size)
        self._check_kind(state)
        self._check_state(state, tokens.shape[0])
        hidden, state = self._consume(tokens, state, lengths)
        return self.head(last(hidden, logits_to_keep)), state

    @torch.no_grad()
    def prefill(
        self, tokens: Integer[Tensor, "b m"], state: S, *, logits_to_keep: int | None = None, lengths: Any = None
    ) -> tuple[Float[Tensor, "b k out"], S]:
        """`extend` without gradients: it may reuse the state's buffers, so fork first to branch."""
        return self.extend(tokens, state, logits_to_keep=logits_to_keep, lengths=lengths)

    @torch.no_grad()
    def step(self, token: Integer[Tensor, " b"], state: S) -> tuple[Float[Tensor, "b out"], S]:
        """Consume one token."""
        logits, state = self.extend(checked_tokens(token, 1, None)[:, None], state)
        return logits[:, 0], state

    def state_nbytes(self, position: int, batch_size: int = 1) -> int:
        """The formula for `state.nbytes` after `position` tokens of `batch_size` streams."""
        check_whole("position", position, 0)
        check_whole("batch_size", batch_size, 1)
        return self._nbytes(position, batch_size)

    def _check_kind(self, state: object) -> None:
        if not isinstance(state, self.state_kind):
            raise TypeError(
                f"a stream of {type(self).__name__} goes on from a {self.state_kind.__name__}, as initial_state, "
                f"prefill and step return it, not from {type(state).__name__}; initial_state(batch_size) starts one"
            )

    @abstractmethod
    def _empty(self, batch_size: int) -> S:
        """The state before the first token."""

    @abstractmethod
    def _check_state(self, state: S, rows: int) -> None:
        """Refuse a state of another batch, or of a model of another shape. (One of the same shape with other weights
        goes unnoticed.)
        """

    @abstractmethod
    def _consume(self, tokens: Tensor, state: S, lengths: Any) -> tuple[Tensor, S]:
        """The hidden vectors of any number of tokens after a state that was checked, and the state after them; with
        `lengths`, only the first so many tokens of each row count.
        """

    @abstractmethod
    def _nbytes(self, position: int, batch_size: int) -> int:
        """The formula of `state_nbytes`."""


def check_whole(name: str, value: object, least: int) -> None:
    """Refuse what is not a whole number of at least `least`."""
    if type(value) is not int or value < least:
        raise ValueError(f"{name}={value!r} must be a whole number of at least {least}")


def check_logits_to_keep(count: object) -> None:
    """Refuse what is no number of positions."""
    if count is not None and (type(count) is not int or count < 0):
        raise ValueError(f"logits_to_keep={count!r} must be a whole number of at least 0; None keeps all")


def last(hidden: Float[Tensor, "b n d"], count: int | None) -> Float[Tensor, "b m d"]:
    """The last `count` positions, or all if there are fewer; None: all."""
    return hidden if count is None else hidden[:, max(0, hidden.shape[1] - count) :]
