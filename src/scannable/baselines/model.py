"""What the baselines share beyond the protocol of all models."""

from abc import abstractmethod
from importlib import import_module
from typing import Any, TypeVar

import torch
from jaxtyping import Float, Integer
from torch import Tensor, nn

from scannable.layers.packing import over_documents
from scannable.models.base import CausalModel
from scannable.models.config_checks import check_dropout, check_heads, check_outputs, check_sizes, check_switches
from scannable.models.tokens import checked_tokens
from scannable.nn.head import TiedHead
from scannable.scan.documents import documents_of

S = TypeVar("S")


class Baseline(CausalModel[S]):
    """A model that runs one function from tokens to hidden vectors, with a state or without; it brings `config`."""

    config: Any

    @property
    def vocab_size(self) -> int:
        """How many tokens there are."""
        return self.config.vocab_size

    def hidden(
        self, tokens: Integer[Tensor, "b n"], *, lengths: Any = None, starts: Any = None
    ) -> Float[Tensor, "b n d"]:
        """What `forward` gives to the head. Nobody looks at the padding, so `lengths` change nothing."""
        tokens = checked_tokens(tokens, 2, self.vocab_size)
        if lengths is not None or starts is not None:
            documents = documents_of(*tokens.shape, lengths=lengths, starts=starts)
            if starts is not None and tokens.numel():
                return over_documents(tokens, documents, lambda rows, _: self._run(rows, None)[0])
        return self._run(tokens, None)[0] if tokens.numel() else self._nothing(tokens)

    def _consume(self, tokens: Tensor, state: S, lengths: Any) -> tuple[Tensor, S]:
        if lengths is not None:
            counts = documents_of(*tokens.shape, lengths=lengths).counts
            if (counts != tokens.shape[1]).any():
                raise ValueError(
                    f"lengths {counts.tolist()}: in a stream of {type(self).__name__}, a model of transformers, all "
                    "rows go on by as many tokens; sc.LM has the same models for rows of different lengths"
                )
        if not tokens.numel():
            return self._nothing(tokens), state
        hidden, after = self._run(tokens, state)
        assert after is not None
        return hidden, after

    def _nothing(self, tokens: Tensor) -> Tensor:
        return next(self.parameters()).new_zeros(*tokens.shape, self.config.width)

    @abstractmethod
    def _run(self, tokens: Tensor, state: S | None) -> tuple[Tensor, S | None]:
        """The hidden vectors of at least one token, and the state after them if one was given.

        Without a state everything is differentiable, and nothing is kept.
        """


def output_layer(config: Any, embedding: nn.Embedding, std: float) -> nn.Module:
    """The embedding once more, or a layer without bias that starts at N(0, std^2)."""
    if config.tie_weights:
        return TiedHead(embedding)
    head = nn.Linear(config.width, config.out_size or config.vocab_size, bias=False)
    nn.init.normal_(head.weight, std=std)
    return head


def check_config(config: Any, *sizes: str) -> None:
    """Refuse what no baseline can have, and `sizes` that are not whole numbers of at least 1."""
    check_sizes(config, "width", "layers", *sizes)
    check_outputs(config)
    if "heads" in sizes:
        check_heads(config.width, config.heads)
    if hasattr(config, "sinusoids"):
        check_switches(config, "sinusoids")
    if hasattr(config, "dropout"):
        check_dropout(config)


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
