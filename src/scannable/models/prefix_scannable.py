"""Definition "Prefix-Scannable Model", for any three modules: an embedding, a prefix-scannable layer, and a head."""

from typing import Any, ClassVar

import torch
from jaxtyping import Float, Integer
from torch import Tensor, nn

from scannable.layers.psm import PSMLayer
from scannable.layers.psm_state import PSMState
from scannable.models.base import CausalModel, check_whole
from scannable.models.tokens import checked_tokens
from scannable.scan.tree import flatten, tree_map


class PrefixScannableModel(CausalModel[PSMState]):
    """Enc, Agg, Inf and an identity, over chunks of c tokens (Def. PSM).

        x_i = Enc(C_i)        s = Scan(x, Agg, e), exclusive        y_i = Inf(s_i, x_i)

    Args:
        enc: tokens (..., n) to elements (..., n, d), token by token (an embedding).
        agg, inf, identity, chunk_length, recent, literal_identity, checkpoint: as for `PSMLayer`.
        head: applied to Inf's outputs last, and only where outputs are wanted.

    >>> class Agg(nn.Module):
    ...     def forward(self, older, newer):
    ...         return torch.tanh(0.5 * older + newer)
    >>> class Inf(nn.Module):
    ...     def forward(self, prefix, x):
    ...         return prefix + x
    >>> enc, head, e = nn.Embedding(10, 8), nn.Linear(8, 10), nn.Parameter(torch.zeros(4, 8))
    >>> model = sc.PrefixScannableModel(enc, Agg(), Inf(), e, chunk_length=4, head=head)
    >>> model(torch.randint(10, (2, 15))).shape
    torch.Size([2, 15, 10])
    """

    state_kind: ClassVar[type] = PSMState
    embedding_name: ClassVar[str | None] = "enc"

    def __init__(
        self,
        enc: nn.Module,
        agg: nn.Module,
        inf: nn.Module,
        identity: Any,
        chunk_length: int,
        *,
        head: nn.Module | None = None,
        recent: int = 0,
        literal_identity: bool = False,
        checkpoint: bool = False,
    ) -> None:
        super().__init__()
        check_whole("chunk_length", chunk_length, 1)
        self.enc = enc
        self.layer = PSMLayer(
            agg,
            inf,
            identity,
            chunk_length,
            like=_one_element(enc, identity, chunk_length),
            recent=recent,
            literal_identity=literal_identity,
            checkpoint=checkpoint,
        )
        self.head: nn.Module = nn.Identity() if head is None else head

    def __setattr__(self, name: str, value: Any) -> None:
        # A module of that name beside the layer's would be another one.
        if name in ("agg", "inf", "checkpoint"):
            setattr(self.layer, name, value)
        else:
            super().__setattr__(name, value)

    @property
    def agg(self) -> nn.Module:
        """Agg of the layer."""
        return self.layer.agg

    @property
    def inf(self) -> nn.Module:
        """Inf of the layer."""
        return self.layer.inf

    @property
    def identity(self) -> Any:
        """e, of the shape of one element."""
        return self.layer.identity

    @property
    def chunk_length(self) -> int:
        """C."""
        return self.layer.chunk_length

    @property
    def checkpoint(self) -> bool:
        """Whether activations of Agg are computed anew for backward."""
        return self.layer.checkpoint

    @property
    def vocab_size(self) -> int | None:
        """The size of Enc's table, if it has one."""
        return getattr(self.enc, "num_embeddings", None)

    def hidden(
        self, tokens: Integer[Tensor, "b n"], *, lengths: Any = None, starts: Any = None
    ) -> Float[Tensor, "b n d"]:
        """What `forward` gives to the head."""
        tokens = checked_tokens(tokens, 2, self.vocab_size)
        return self.layer(self.enc(tokens), lengths=lengths, starts=starts)

    def _empty(self, batch_size: int) -> PSMState:
        return self.layer.initial_state(batch_size)

    def _nbytes(self, position: int, batch_size: int) -> int:
        return self.layer.state_nbytes(position, batch_size)

    def _check_state(self, state: PSMState, rows: int) -> None:
        self.layer.check_state(state, rows)

    def _consume(self, tokens: Tensor, state: PSMState, lengths: Any) -> tuple[Tensor, PSMState]:
        return self.layer.extend(self.enc(tokens), state, lengths=lengths)


@torch.no_grad()
def _one_element(enc: nn.Module, identity: Any, chunk_length: int) -> Any:
    """What Enc makes of a chunk."""
    leaves, _ = flatten(identity, "the identity", numbers=True)
    device = next((leaf.device for leaf in (*enc.parameters(), *leaves) if isinstance(leaf, Tensor)), None)
    one = enc(torch.zeros(1, chunk_length, dtype=torch.int64, device=device))
    return tree_map(lambda leaf: leaf[0], one)
