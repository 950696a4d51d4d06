"""The scan itself. `extend` is everything: Alg. 1 is `extend` from nothing, Alg. 2 is `extend` by one.

The tree is fixed by global position: node (k, j) covers the elements j*2^k to (j+1)*2^k - 1, whoever computes it and
when. Letters: t elements came before, m are new, k is a tree level.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, TypeVar

import torch
from torch import Tensor
from torch.utils.checkpoint import checkpoint as recompute_in_backward

from scannable.scan.element_type import ElementType, Leaves, aggregate_leaves, check_state, sequence, spread
from scannable.scan.state import ScanState, empty
from scannable.scan.tree import flatten, unflatten

T = TypeVar("T")
Agg = Callable[[T, T], T]
LevelAgg = Callable[[Leaves, Leaves], Leaves]


def scan(
    agg: Agg[T],
    xs: T,
    *,
    identity: Any,
    dim: int = 0,
    inclusive: bool = False,
    literal: bool = False,
    checkpoint: bool = False,
) -> T:
    """All prefixes of a sequence in parallel: Alg. 1, "StaticBlellochScan", for any length and any tree of tensors.

        exclusive (default):   P_0 = e,   P_t = x_0 Agg ... Agg x_(t-1)
        inclusive:                        P_t = x_0 Agg ... Agg x_t

    bracketed by the fixed binary tree, so `agg` need not be associative. For r elements it takes at most
    2*ceil(log2(r)) + 2 calls of `agg` and less than 2r evaluations in all.

    Args:
        agg: `agg(older, newer)`, called on a whole tree level at once: elements with one more axis in front. It must
            treat every leading axis as batch, and must not change its arguments, which may be strided views.
        xs: a tensor, or a tree of tensors, with time on axis `dim`.
        identity: e, shaped like one element (the time axis removed) or broadcasting to it; may be a parameter.
        dim: the axis that time runs along, in every leaf.
        inclusive: let x_t be part of P_t.
        literal: call Agg(e, x) where Alg. 1 prints it, instead of taking it for x.
        checkpoint: keep no activations of `agg`; compute each level once more in backward.
    """
    leaves, element, r = sequence(xs, dim)
    state = empty(identity, literal=literal)
    check_state(state, element)
    if r == 0:
        return xs
    # The last element is in no exclusive prefix: absorb the others, and read the prefix before and after each.
    absorbed = leaves if inclusive else _part(leaves, dim, 0, r - 1)
    sweep = _absorb(_on_levels(agg, element, dim, checkpoint), state, absorbed, element, dim, inclusive)
    return unflatten(element.structure, _result(sweep, int(inclusive), r, dim))


def extend(
    agg: Agg[T],
    state: ScanState[T],
    xs: T,
    *,
    dim: int = 0,
    inclusive: bool = False,
    literal: bool | None = None,
    checkpoint: bool = False,
) -> tuple[T, ScanState[T]]:
    """Absorb m more elements in parallel: their prefixes, and the state after them.

    Whatever the state's position t, the prefixes are those that one scan of all t + m elements would give at places t
    to t + m - 1. `state` is left as it was: extending it twice is a fork. Arguments as for `scan`; `literal` is the
    state's own, and can be set only before the first element.
    """
    leaves, element, m = sequence(xs, dim)
    check_state(state, element)
    if literal is not None and literal != state.literal:
        if state.position:
            raise ValueError(
                f"literal={literal} does not fit a state that took {state.position} elements with "
                f"literal={state.literal}; start from empty(identity, literal={literal})"
            )
        state = replace(state, literal=literal)
    if m == 0:
        return xs, state
    sweep = _absorb(_on_levels(agg, element, dim, checkpoint), state, leaves, element, dim, inclusive)
    prefixes = _result(sweep, state.position + int(inclusive), m, dim)
    return unflatten(element.structure, prefixes), _advance(state, m, sweep, element, dim)


def _on_levels(agg: Agg[T], element: ElementType, dim: int, checkpoint: bool) -> LevelAgg:
    """`agg` on the leaves of a level, time on axis `dim`; it sees time as the first batch axis, and is checked."""

    def flat_agg(*leaves: Tensor) -> Leaves:
        batch = [leaf.movedim(dim, 0) for leaf in leaves]
        older, newer = batch[: len(batch) // 2], batch[len(batch) // 2 :]
        result = agg(unflatten(element.structure, older), unflatten(element.structure, newer))
        return [leaf.movedim(0, dim) for leaf in aggregate_leaves(result, element.batch_of(len(older[0])))]

    def level_agg(older: Leaves, newer: Leaves) -> Leaves:
        if checkpoint:
            # Flat, because checkpointing looks for devices only in the containers that torch itself knows.
            return recompute_in_backward(flat_agg, *older, *newer, use_reentrant=False)
        return flat_agg(*older, *newer)

    return level_agg


@dataclass(frozen=True)
class _Sweep:
    lefts: list[Leaves]  # for each level that got new nodes, those with an even number
    prefixes: Leaves  # one for each place from `place` to t + m
    place: int


def _absorb(agg: LevelAgg, state: ScanState[T], xs: Leaves, element: ElementType, dim: int, inclusive: bool) -> _Sweep:
    lefts = _upsweep(agg, state, xs, dim)
    # Nobody asked for the e at place 0 of inclusive prefixes; without it an even number is woven from equal halves.
    drop = inclusive and state.starts_at_identity(0)
    prefixes = _downsweep(agg, state, lefts, element, dim, drop)
    return _Sweep(lefts, prefixes, state.position + int(drop))


def _upsweep(agg: LevelAgg, state: ScanState[T], xs: Leaves, dim: int) -> list[Leaves]:
    """T(k+1, j) = Agg(T(k, 2j), T(k, 2j+1)) for all new nodes of a level at once.

    The new nodes of level k are those numbered t>>k to ((t+m)>>k) - 1. Only the left ones, with an even number, are
    returned: they alone become part of a prefix.
    """
    lefts: list[Leaves] = []
    nodes = xs
    while nodes and _length(nodes, dim):
        k = len(lefts)
        first, second = _halves(nodes, dim)
        if state.position >> k & 1:
            # The first new node is a right one; its left sibling is the root that waits at this level.
            lefts.append(second)
            pairs = _length(first, dim)
            older = _joined([_with_time(state.roots[k], dim), _part(second, dim, 0, pairs - 1)], dim)
            newer = first
        else:
            lefts.append(first)
            pairs = _length(second, dim)
            older, newer = _part(first, dim, 0, pairs), second
        nodes = agg(older, newer) if pairs else []
    return lefts


def _downsweep(
    agg: LevelAgg, state: ScanState[T], lefts: list[Leaves], element: ElementType, dim: int, drop: bool
) -> Leaves:
    """P(k, j) = P(k+1, j/2) for even j, and Agg(P(k+1, (j-1)/2), T(k, j-1)) for odd j, a level at once.

    P(k, j) is the prefix at place j*2^k. Level k holds those numbered t>>k to (t+m)>>k; above the topmost new node
    that is a single one, which the state knows. With `drop`, number 0 is left out everywhere (then t = 0).
    """
    prefixes = [leaf.unsqueeze(dim) for leaf in spread(state.prefix(len(lefts)), element)]
    if drop:
        prefixes = _part(prefixes, dim, 0, 0)
    for k in reversed(range(len(lefts))):
        carried = state.position >> k & 1
        by_law = int(not carried and state.starts_at_identity(k + 1))
        # What needs no call: if the level's first number is odd, its prefix is the fold that the state keeps;
        # and by law Agg(e, x) = x, so the prefix after the tree's first left node is that node.
        head = _with_time(state.folds[k], dim) if carried else _part(lefts[k], dim, 0, by_law)
        newer = _part(lefts[k], dim, by_law, _length(lefts[k], dim) - by_law)
        start = 0 if drop else carried + by_law
        new = agg(_part(prefixes, dim, start, _length(newer, dim)), newer) if _length(newer, dim) else []
        odds = _joined([head, new], dim)
        if carried or drop:
            prefixes = _alternate(odds, _part(prefixes, dim, start, _length(prefixes, dim) - start), dim)
        else:
            prefixes = _alternate(prefixes, odds, dim)
    return prefixes


def _advance(state: ScanState[T], m: int, sweep: _Sweep, element: ElementType, dim: int) -> ScanState[T]:
    """The state after t + m elements, read off the sweeps: no further call of Agg."""

    def own(leaves: Leaves, place: int) -> T:
        # A view would keep the whole level alive, and log n elements would hold n.
        copies = [leaf.select(dim, place).clone(memory_format=torch.contiguous_format) for leaf in leaves]
        return unflatten(element.structure, copies)

    end = state.position + m
    roots: dict[int, T] = {}
    folds: dict[int, T] = {}
    for k in reversed(range(end.bit_length())):
        if end >> k & 1:
            if k >= len(sweep.lefts):
                roots[k], folds[k] = state.roots[k], state.folds[k]
                continue
            roots[k] = own(sweep.lefts[k], -1)
            alone = end >> (k + 1) == 0 and not state.literal
            folds[k] = roots[k] if alone else own(sweep.prefixes, (end >> k << k) - sweep.place)
    return state.advanced(end, roots, folds)


def _result(sweep: _Sweep, place: int, count: int, dim: int) -> Leaves:
    """`count` prefixes from `place` on, in memory that is the caller's own."""
    if count == 1:
        # Nothing may have been woven: this may be the identity or an element itself.
        return [leaf.narrow(dim, place - sweep.place, 1).clone() for leaf in sweep.prefixes]
    return [leaf.narrow(dim, place - sweep.place, count) for leaf in sweep.prefixes]


def _length(leaves: Leaves, dim: int) -> int:
    return leaves[0].shape[dim]


def _with_time(element: object, dim: int) -> Leaves:
    return [leaf.unsqueeze(dim) for leaf in flatten(element)[0]]


def _part(leaves: Leaves, dim: int, start: int, length: int) -> Leaves:
    """`length` places from `start` on."""
    total = _length(leaves, dim)
    if length == total:
        return leaves
    # The gradient of a split is one concatenation; that of a slice zeroes a whole level first.
    return [leaf.split((start, length, total - start - length), dim)[1] for leaf in leaves]


def _joined(parts: list[Leaves], dim: int) -> Leaves:
    """The parts one after another; those without leaves or without length are left out."""
    parts = [part for part in parts if part and _length(part, dim)]
    return parts[0] if len(parts) == 1 else [torch.cat(leaf, dim) for leaf in zip(*parts, strict=True)]


def _halves(leaves: Leaves, dim: int) -> tuple[Leaves, Leaves]:
    """The nodes at even and at odd places, as views."""
    n = _length(leaves, dim)
    if n % 2:
        before = (slice(None),) * dim
        return [leaf[(*before, slice(0, n, 2))] for leaf in leaves], [
            leaf[(*before, slice(1, n, 2))] for leaf in leaves
        ]
    # The gradient of unbind writes each number once; that of two slices would zero and add two whole levels.
    pairs = [leaf.unflatten(dim, (n // 2, 2)).unbind(dim + 1) for leaf in leaves]
    return [first for first, _ in pairs], [second for _, second in pairs]


def _alternate(first: Leaves, second: Leaves, dim: int) -> Leaves:
    """The inverse of `_halves`: nodes of `first` and `second` in turn; `first` may have one more."""
    n = _length(second, dim)
    woven = [
        torch.stack(two, dim + 1).flatten(dim, dim + 1) for two in zip(_part(first, dim, 0, n), second, strict=True)
    ]
    return _joined([woven, _part(first, dim, n, _length(first, dim) - n)], dim)
