"""The messages that ranks exchange: every one is sent and counted here."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch import distributed as c10d

Group = Any
"""A process group of torch; None is all processes."""


# Newer versions of torch have new names for the same.
_all_gather: Any = getattr(c10d, "all_gather_single", c10d.all_gather_into_tensor)
_reduce_scatter: Any = getattr(c10d, "reduce_scatter_single", c10d.reduce_scatter_tensor)


@dataclass(frozen=True)
class Message:
    """One collective call, as this rank saw it.

    >>> from scannable.distributed import Message
    >>> Message("all-gather", nbytes=24, padded=32).nbytes
    24
    """

    kind: str
    nbytes: int
    """That this rank put in, without what only fills up the parts to one length."""
    padded: int
    """That this rank put in."""


_listening: list[list[Message]] = []


@contextmanager
def traffic() -> Iterator[list[Message]]:
    """The messages that this rank takes part in meanwhile, in order.

    >>> from scannable import distributed
    >>> with distributed.traffic() as messages:
    ...     _ = distributed.scan(torch.add, torch.arange(6), identity=torch.tensor(0))
    >>> messages
    []
    """
    heard: list[Message] = []
    _listening.append(heard)
    try:
        yield heard
    finally:
        # By identity: two empty lists are equal.
        _listening[:] = [one for one in _listening if one is not heard]


def here(group: Group) -> tuple[int, int]:
    """This process's rank in a group, and how many are in it; alone without torch.distributed."""
    if not c10d.is_available() or not c10d.is_initialized():
        return 0, 1
    rank, ranks = c10d.get_rank(group), c10d.get_world_size(group)
    if rank < 0:
        raise ValueError("this process is not in the group; only its members call, and all of them do")
    return rank, ranks


def all_gather(mine: Tensor, group: Group, *, kind: str = "all-gather", nbytes: int | None = None) -> Tensor:
    """The tensors of all ranks, of one shape each, stacked."""
    ranks = here(group)[1]
    if ranks == 1:
        return mine[None]
    _note(kind, mine.nbytes if nbytes is None else nbytes, mine.nbytes)
    gathered = mine.new_empty(ranks * mine.numel())
    _all_gather(gathered, mine.contiguous().view(-1), group=group)
    return gathered.view(ranks, *mine.shape)


def reduce_scatter(parts: Tensor, group: Group, *, nbytes: int | None = None) -> Tensor:
    """The sum over ranks of their parts[q], on rank q."""
    if len(parts) == 1:
        return parts[0]
    mine = parts.new_empty(parts[0].numel())
    _note("reduce-scatter", parts.nbytes if nbytes is None else nbytes, parts.nbytes)
    _reduce_scatter(mine, parts.contiguous().view(-1), group=group)
    return mine.view(parts.shape[1:])


def all_to_all(parts: Tensor, sent: list[int], received: list[int], group: Group) -> Tensor:
    """Rows of a tensor to each rank, `sent[q]` of them to rank q; the rows that came, `received[q]` from rank q."""
    rows = parts.new_empty(sum(received), *parts.shape[1:])
    if here(group)[1] == 1:
        return rows
    _note("all-to-all", parts.nbytes, parts.nbytes)
    c10d.all_to_all_single(rows, parts.contiguous(), received, sent, group=group)
    return rows


def message_device(group: Group, device: torch.device) -> torch.device:
    """Where a small message lives: on the CPU, unless the group's backend has only the other device."""
    backends = str(c10d.get_backend_config(group))
    return torch.device("cpu") if "cpu:" in backends or "gloo" in backends else device


def _note(kind: str, nbytes: int, padded: int) -> None:
    for heard in _listening:
        heard.append(Message(kind, nbytes, padded))
