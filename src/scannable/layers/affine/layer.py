"""A layer whose state is an affine recurrence: a row of Table 1."""

from abc import abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from torch import Tensor

from scannable.layers.affine.recurrence import Mode, Recurrence
from scannable.layers.layer import check_sizes, head_size
from scannable.layers.recurrent import Parts, RecurrentLayer, owned


@dataclass(frozen=True)
class Prepared:
    """What a row makes of its input before the recurrence runs."""

    recurrence: Recurrence
    gate: Any = None
    """Whatever the read-out needs beside the recurrence's outputs."""
    carried: Mapping[str, Tensor] = field(default_factory=dict)
    """The parts of the next state that are not the affine one."""


class AffineLayer(RecurrentLayer):
    """A layer whose state is an affine recurrence. A row says what the recurrence is and how it is read, no more."""

    @abstractmethod
    def prepare(self, x: Tensor, parts: Parts, keep: Tensor | None) -> Prepared:
        """E_t, f_t and what else there is, from the input and from what was carried. `keep` are the positions that
        count; the recurrence itself is padded later.
        """

    @abstractmethod
    def read_out(self, outputs: Tensor, gate: Any) -> Tensor:
        """The layer's outputs from the recurrence's."""

    def go_on(self, x: Tensor, parts: Parts, keep: Tensor | None, mode: Mode) -> tuple[Tensor, Parts]:
        if keep is not None:
            # Before anything is computed from it: what is not a number stays that, times 0.
            x = x.where(keep[..., None], 0)
        prepared = self.prepare(x, parts, keep)
        recurrence = prepared.recurrence if keep is None else prepared.recurrence.padded(keep)
        outputs, memory = recurrence.run(parts["s"], mode)
        return self.read_out(outputs, prepared.gate), owned({"s": memory, **prepared.carried})


class HeadedLayer(AffineLayer):
    """An affine layer whose memory is (b, heads, key size, value size); both are width / heads unless told."""

    def __init__(self, width: int, heads: int = 4, *, key_size: int | None = None, value_size: int | None = None):
        super().__init__(width, heads)
        self.key_size: int = head_size(width, heads) if key_size is None else key_size
        self.value_size: int = head_size(width, heads) if value_size is None else value_size
        check_sizes(key_size=self.key_size, value_size=self.value_size)

    def empty(self, batch_size: int) -> Parts:
        return {"s": self.zeros(batch_size, self.heads, self.key_size, self.value_size, dtype=self.memory_dtype)}

    def split(self, x: Tensor) -> Tensor:
        """(b, n, heads * size) as (b, n, heads, size)."""
        return x.unflatten(-1, (self.heads, -1))
