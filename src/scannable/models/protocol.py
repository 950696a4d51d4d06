"""What every model here can do, and all that generation, training and verification ask of it.

A model of your own that has these methods is verified by `verify_duality` and driven by `generate` like any other.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Protocol, Self, TypeVar, runtime_checkable

from jaxtyping import Float, Int
from torch import Tensor, nn


@runtime_checkable
class StreamState(Protocol):
    """What a stream remembers between tokens.

    >>> state = sc.LM(sc.LMConfig(vocab_size=50, width=16, heads=2, layers=("gla",))).initial_state(1)
    >>> isinstance(state, sc.StreamState), state.position
    (True, 0)
    """

    @property
    def position(self) -> int:
        """Tokens consumed so far."""
        ...

    @property
    def nbytes(self) -> int:
        """Bytes held now."""
        ...

    def fork(self) -> Self:
        """An independent stream that goes on from here."""
        ...


S = TypeVar("S", bound=StreamState)


@runtime_checkable
class SequenceModel(Protocol):
    """A causal sequence model (Def. "Sequence model") in both its forms: at once, and token by token.

    >>> model = sc.TransformerPSM(sc.TransformerPSMConfig(vocab_size=50, width=16, heads=2, chunk_length=4))
    >>> isinstance(model, sc.SequenceModel)
    True
    """

    def __call__(self, tokens: Int[Tensor, "b n"]) -> Float[Tensor, "b n out"]:
        """Outputs at every position, in parallel (Def. "Parallel circuit family"); output t sees tokens 0 to t."""
        ...

    def initial_state(self, batch_size: int) -> Any:
        """The state before the first token of `batch_size` streams."""
        ...

    def prefill(self, tokens: Int[Tensor, "b m"], state: Any) -> tuple[Float[Tensor, "b m out"], Any]:
        """Consume m tokens in parallel, from any state. It may reuse the state's buffers: fork first to branch."""
        ...

    def step(self, token: Int[Tensor, " b"], state: Any) -> tuple[Float[Tensor, "b out"], Any]:
        """Consume one token. It may reuse the state's buffers: fork first to branch."""
        ...


@contextmanager
def evaluating(model: object) -> Iterator[None]:
    """Evaluation mode for a while, if the model has modes; afterwards every module is as it was."""
    training = [module for module in model.modules() if module.training] if isinstance(model, nn.Module) else []
    for module in training:
        module.training = False
    try:
        yield
    finally:
        for module in training:
            module.training = True
