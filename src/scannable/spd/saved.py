"""What autograd keeps for the backward pass, counted: the space of training."""

import weakref
from collections.abc import Iterable
from typing import Any

from torch import Tensor
from torch.autograd.graph import saved_tensors_hooks


class _Kept:
    """A tensor in the graph; it goes when the graph does."""

    __slots__ = ("__weakref__", "tensor")

    def __init__(self, tensor: Tensor) -> None:
        self.tensor: Tensor = tensor


class SavedBytes(saved_tensors_hooks):
    """The bytes that the graph of everything inside `with SavedBytes() as saved:` holds.

        with SavedBytes(apart=model.parameters()) as saved:
            loss = model.loss(tokens, targets)
        print(saved.nbytes)                     # as long as the loss, and with it the graph, is there

    A block of memory counts once and whole, however many views of it are kept. What is there anyway, such as the
    parameters, is given as `apart` and does not count. Of a part that is computed again in backward
    (`torch.utils.checkpoint`) only what it starts from is kept, and counted.
    """

    def __init__(self, apart: Iterable[Tensor] = ()) -> None:
        self._apart: set[int] = {_block(tensor) for tensor in apart}
        self._kept: weakref.WeakSet[_Kept] = weakref.WeakSet()
        super().__init__(self._keep, lambda kept: kept.tensor)

    def __enter__(self) -> "SavedBytes":  # pyright: ignore[reportIncompatibleMethodOverride]
        super().__enter__()
        return self

    def _keep(self, tensor: Tensor) -> Any:
        # A result that is kept for its own derivative knows the graph that would hold it: a circle, never let go.
        kept = _Kept(tensor.detach())
        if _block(tensor) not in self._apart:
            self._kept.add(kept)
        return kept

    @property
    def nbytes(self) -> int:
        """What is held now: nothing, once the backward pass has gone through."""
        storages = (kept.tensor.untyped_storage() for kept in self._kept)
        return sum({storage._cdata: storage.nbytes() for storage in storages}.values())


def _block(tensor: Tensor) -> int:
    return tensor.untyped_storage()._cdata
