"""Before anything is exchanged: every rank says what it has, and whatever does not fit is an error on all of them.

A rank that raised alone would leave the others waiting in a collective for ever. So what a rank cannot accept goes into
the same message of one fixed size, and all ranks raise together.
"""

import hashlib
import json
from collections.abc import Callable
from typing import Any, TypeVar, cast

import torch

from scannable.distributed.messages import Group, all_gather, here, message_device

SIZE = 1024
"""Bytes of the message of a rank."""
SHOWN = 600
"""Characters of what a rank has that fit in it."""

R = TypeVar("R")


class DisagreementError(ValueError):
    """Ranks that do not fit together, or one of them that cannot go on; raised on every rank.

    >>> from scannable.distributed import DisagreementError
    >>> issubclass(DisagreementError, ValueError)
    True
    """


def agree(
    prepare: Callable[[], tuple[R, int, str]], group: Group, device: torch.device | None = None
) -> tuple[R, list[int]]:
    """What `prepare` returned, and the numbers of all ranks; if what they say of themselves is equal.

    Args:
        prepare: checks this rank's input and returns anything, a number that may differ between ranks (a length), and
            words that must be equal on all of them. What it raises is raised here, and named by all others.
        group: the ranks.
        device: of the elements, for backends that know no other.
    """
    ranks = here(group)[1]
    if ranks == 1:
        result, number, _ = prepare()
        return result, [number]
    result, failed = None, None
    try:
        result, number, words = prepare()
        said: dict[str, Any] = {"n": number, "w": words[:SHOWN], "s": hashlib.sha256(words.encode()).hexdigest()[:16]}
    except Exception as error:
        failed = error
        said = {"e": f"{type(error).__name__}: {error}"[:SHOWN]}
    heard = _exchange(said, group, device)
    if failed is not None:
        raise failed
    for other, theirs in enumerate(heard):
        if "e" in theirs:
            raise DisagreementError(f"rank {other} of {ranks} cannot go on: {theirs['e']}")
    for other, theirs in enumerate(heard):
        if theirs["s"] != heard[0]["s"]:
            raise DisagreementError(
                f"ranks 0 and {other} of {ranks} do not fit together: rank 0 has {heard[0]['w']}; rank {other} has "
                f"{theirs['w']}; time aside, all ranks pass the same"
            )
    return cast("R", result), [int(theirs["n"]) for theirs in heard]


def _exchange(said: dict[str, Any], group: Group, device: torch.device | None) -> list[dict[str, Any]]:
    text = json.dumps(said).encode()
    while len(text) > SIZE:
        # Letters beyond ASCII take six bytes each.
        said = {name: value[: len(value) // 2] if name in "ew" else value for name, value in said.items()}
        text = json.dumps(said).encode()
    where = message_device(group, device or torch.device("cpu"))
    mine = torch.frombuffer(bytearray(text.ljust(SIZE)), dtype=torch.uint8).to(where)
    return [json.loads(bytes(row)) for row in all_gather(mine, group, kind="agreement").cpu().numpy()]
