"""How much of a recurrence is done side by side: as much as a CPU's caches hold, or as few launches as a GPU wants.

A launch is one call of a kernel. On a CPU it costs little, and what it touches should stay in a cache. On a GPU it
costs as much as the work on a hundred thousand numbers, so few large ones win. Every choice that depends on the device
is made here.
"""

import torch

LANE = 2**17
"""Numbers that one operation should touch on a CPU: enough to hide the call, few enough for a core's cache."""
SLICE = 4096
"""Positions of a memory of outer products that a CPU's cache has room for."""
SHORT = 8
"""Positions in a block where launches count: a tree of such blocks is log_8 n deep, and holds 2/7 of n beside it."""
STATES = 2**26
"""Numbers in the states that are held at once where launches count: 256 MiB in float32."""


def launches_count(device: torch.device) -> bool:
    """Whether a launch costs more than what it computes: everywhere but on a CPU."""
    return device.type != "cpu"


def lanes_for(width: int) -> int:
    """How many states of `width` numbers lie side by side on a CPU."""
    return max(1, LANE // width)


def blocks_for(device: torch.device, n: int, width: int) -> int:
    """Into how many blocks of equal length n positions are cut, for states of `width` numbers.

    Inside a block positions come one after another. On a CPU there are up to sqrt(n) blocks, and fewer where states are
    wide; elsewhere blocks have about `SHORT` positions, whatever the width.
    """
    if launches_count(device):
        return max(1, n // SHORT)
    return min(lanes_for(width), int(n**0.5))


def carries_by_tree(device: torch.device) -> bool:
    """Whether blocks are cut into blocks again; or else the state goes from one to the next in a chain."""
    return launches_count(device)


def positions_at_once(device: torch.device, width: int) -> int | None:
    """Of how many positions all states may be held, where launches count; None where they do not."""
    return max(SHORT, STATES // width) if launches_count(device) else None


def slice_for(device: torch.device, n: int) -> int:
    """How many of n positions of a memory of outer products go together."""
    return n if launches_count(device) else min(n, SLICE)
