"""The scan and `extend` of a sequence that is split over ranks: the same tree, the same values, the same gradients."""

from collections.abc import Callable, Sequence
from itertools import accumulate
from typing import Any, TypeVar

import torch

from scannable.distributed.agreement import agree
from scannable.distributed.gather import Exchange, gathered, tied
from scannable.distributed.messages import Group, here
from scannable.distributed.part import Downward, border, sent, upward
from scannable.distributed.split import Node, Split, blocks
from scannable.scan.element_type import ElementType, Leaves, check_state, sequence
from scannable.scan.leaves import part, with_time
from scannable.scan.state import ScanState, empty
from scannable.scan.sweep import on_levels
from scannable.scan.tree import unflatten

T = TypeVar("T")
Agg = Callable[[T, T], T]


def scan(
    agg: Agg[T],
    shard: T,
    *,
    identity: Any,
    dim: int = 0,
    group: Group = None,
    inclusive: bool = False,
    literal: bool = False,
    checkpoint: bool = False,
    split: Split | None = None,
) -> T:
    """The prefixes of this rank's part of a sequence; all ranks of `group` call together, each with its own part.

    They are those that `scannable.scan` of the whole sequence gives at these places, and so are the gradients, if each
    rank calls `backward` on its own share of the loss: those of `shard` are whole, those of what all ranks have alike
    (parameters of `agg`, the identity) are to be summed over ranks. Call `backward` on every rank, and with
    `.backward()`: `torch.autograd.grad` leaves out what it was not asked for, and the other ranks would wait for it.

    One all-gather in forward, one reduce-scatter in backward; of m of r elements a rank takes at most
    2*m + 4*log2(r) evaluations of `agg` with up to four ranks before it.

    Args:
        agg, identity, dim, inclusive, literal, checkpoint: as for `scannable.scan`.
        shard: this rank's elements, in the order of ranks; of any number, and none is a number.
        group: the ranks; None for all processes. Without torch.distributed this one is alone.
        split: who has what, from `agreed_split`, for many scans of one sequence. Without it the ranks exchange one
            small message first, and whatever does not fit is an error on all of them.

    >>> from scannable import distributed
    >>> distributed.scan(torch.add, torch.arange(6), identity=torch.tensor(0))
    tensor([ 0,  0,  1,  3,  6, 10])
    """
    state = empty(identity, literal=literal)
    return _run(agg, state, shard, dim, group, inclusive, checkpoint, split, with_state=False)[0]


def extend(
    agg: Agg[T],
    state: ScanState[T],
    shard: T,
    *,
    dim: int = 0,
    group: Group = None,
    inclusive: bool = False,
    checkpoint: bool = False,
    split: Split | None = None,
) -> tuple[T, ScanState[T]]:
    """Absorb the elements of all ranks: the prefixes of this rank's, and the state after all of them, on every rank.

    `state` is the same on all ranks, and so is the one that is returned. A gradient in the state is this rank's share,
    as for a parameter. Everything else as for `scan`.

    >>> from scannable import distributed
    >>> prefixes, state = distributed.extend(torch.add, sc.empty(torch.tensor(0)), torch.arange(6))
    >>> prefixes, state.position
    (tensor([ 0,  0,  1,  3,  6, 10]), 6)
    """
    prefixes, after = _run(agg, state, shard, dim, group, inclusive, checkpoint, split, with_state=True)
    assert after is not None
    return prefixes, after


def _run(
    agg: Agg[T],
    state: ScanState[T],
    shard: T,
    dim: int,
    group: Group,
    inclusive: bool,
    checkpoint: bool,
    split: Split | None,
    *,
    with_state: bool,
) -> tuple[T, ScanState[T] | None]:
    def prepare() -> tuple[tuple[Leaves, ElementType], int, str]:
        leaves, element, m = sequence(shard, dim)
        check_state(state, element)
        what = _words(element, state, dim, inclusive=inclusive, checkpoint=checkpoint, with_state=with_state)
        return (leaves, element), m, what

    if split is None:
        (leaves, element), counts = agree(prepare, group)
        split = split_of(counts, here(group)[0])
    else:
        (leaves, element), m, _ = prepare()
        check_part(split, m, group)
    whole = split.bounds[-1] - split.bounds[0]
    if not whole:
        return shard, (state if with_state else None)
    split = split.shifted(state.position - split.bounds[0])
    first = [leaf.movedim(dim, 0) for leaf in leaves]
    prefixes, after = scan_part(
        agg, state, first, element, split, group, inclusive=inclusive, checkpoint=checkpoint, with_state=with_state
    )
    return unflatten(element.structure, [leaf.movedim(0, dim) for leaf in prefixes]), after


def scan_part(
    agg: Agg[T],
    state: ScanState[T],
    leaves: Leaves,
    element: ElementType,
    split: Split,
    group: Group,
    *,
    inclusive: bool,
    checkpoint: bool,
    with_state: bool,
) -> tuple[Leaves, ScanState[T] | None]:
    """The prefixes of one part of a sequence that begins where `state` stands, time first."""
    level_agg = on_levels(agg, element, 0, checkpoint)
    # The last element is in no exclusive prefix: unless the state is asked for, nobody needs it.
    absorbed = split.bounds[-1] - int(not inclusive and not with_state)
    stop = min(split.stop, absorbed)
    own = part(leaves, 0, 0, max(0, stop - split.first))
    inside = upward(level_agg, own, split.first)
    mine = blocks_sent(split, with_state=with_state)
    held: dict[Node, Leaves] = {node: inside.node(node) for node in blocks(split.first, stop)}
    token = None
    if any(mine):
        like = sent(inside, split.first, split.stop, leaves) if mine[split.rank] else [leaf[:0] for leaf in leaves]
        exchange = Exchange(tuple(map(len, mine)), element, group)
        everyone, token = gathered(exchange, like)
        # What comes later matters only to the state.
        for place, (rank, node) in enumerate((q, node) for q, nodes in enumerate(mine) for node in nodes):
            if rank < split.rank or (with_state and rank != split.rank):
                held[node] = part(everyone, 0, place, 1)
    end = split.bounds[-1] if with_state else None
    places = (split.first + int(inclusive), split.stop - 1 + int(inclusive)) if split.length else None
    if places or with_state:
        roots = {(k, (state.position >> k) - 1): with_time(root, 0) for k, root in state.roots.items()}
        held = {**roots, **held}
        border(level_agg, held, end if end is not None else places[1] if places else 0)
    prefixes, after = Downward(state, element, inside, held, places, end).run(level_agg)
    if not places:
        prefixes = [leaf[:0] for leaf in leaves]
    elif split.length == 1:
        # It may be the identity or an element itself; what is returned is the caller's own.
        prefixes = [leaf.clone() for leaf in prefixes]
    if after is not None and token is not None:
        after = after.map(lambda leaf: tied(leaf, token))
    return [tied(leaf, token) for leaf in prefixes], after


def blocks_sent(split: Split, *, with_state: bool) -> list[list[Node]]:
    """The nodes that each rank sends: none, if nobody after it has an element and nobody asks for the state."""
    bounds = split.bounds
    if split.ranks == 1:
        return [[]]
    return [blocks(bounds[q], bounds[q + 1]) if with_state or split.later(q) else [] for q in range(split.ranks)]


def agreed_split(length: int, group: Group = None, *, bounds: Sequence[int] | None = None) -> Split:
    """Who has what, from what each rank says that it has; all ranks call, and an error is raised on all of them.

    Args:
        length: of this rank's part.
        group: the ranks; None for all processes.
        bounds: what all ranks expect, one more than there are ranks.

    >>> from scannable import distributed
    >>> split = distributed.agreed_split(6)
    >>> split.ranks, split.bounds
    (1, (0, 6))
    >>> distributed.scan(torch.add, torch.arange(6), identity=torch.tensor(0), split=split)
    tensor([ 0,  0,  1,  3,  6, 10])
    """
    rank, ranks = here(group)

    def prepare() -> tuple[None, int, str]:
        if type(length) is not int or length < 0:
            raise ValueError(f"length={length!r} must be a whole number of at least 0")
        if bounds is not None:
            if len(bounds) != ranks + 1:
                raise ValueError(
                    f"{len(bounds)} bounds for {ranks} ranks; there is one more than ranks: {bounds!r:.60}"
                )
            if bounds[0] != 0:
                raise ValueError(
                    f"bounds={bounds!r:.60} do not cover the sequence: they begin at {bounds[0]}, not at 0"
                )
            check_part(Split(tuple(bounds), rank), length, group)
        return None, length, "no bounds" if bounds is None else f"the bounds {tuple(bounds)}"

    return split_of(agree(prepare, group)[1], rank)


def split_of(lengths: Sequence[int], rank: int) -> Split:
    """Parts of these lengths, one after another."""
    return Split((0, *accumulate(lengths)), rank)


def check_part(split: Split, m: int, group: Group) -> None:
    """Refuse a split that is not of this rank and its part."""
    rank, ranks = here(group)
    if (split.rank, split.ranks) != (rank, ranks):
        raise ValueError(
            f"the split is for rank {split.rank} of {split.ranks}, this is rank {rank} of {ranks}; each rank makes its "
            "own of the same bounds"
        )
    if split.length != m:
        raise ValueError(
            f"rank {rank} has {m} elements, but its bounds are {split.first} to {split.stop}, {split.length} elements; "
            "bounds and parts must agree, and cover the sequence"
        )


def _words(element: ElementType, state: ScanState[Any], dim: int, **options: bool) -> str:
    """What must be the same on all ranks."""
    leaves = zip(element.structure.paths(), element.shapes, element.dtypes, strict=True)
    shapes = ", ".join(f"{path or 'element'} {tuple(shape)} {kind}" for path, shape, kind in leaves)
    devices = ", ".join(sorted({device.type for device in element.devices}))
    chosen = ", ".join(f"{name}={value}" for name, value in options.items())
    roots = sorted(state.roots)
    return (
        f"{shapes} of the structure {element.structure} on {devices}, dim={dim}, literal={state.literal}, {chosen}, a "
        f"state at {state.position} with roots {roots}, gradients {'on' if torch.is_grad_enabled() else 'off'}"
    )
