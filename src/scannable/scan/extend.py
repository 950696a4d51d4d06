"""The scan itself. `extend` is everything: Alg. 1 is `extend` from nothing, Alg. 2 is `extend` by one; and
`extend_many` does it for streams that are anywhere.

Letters: t elements came before, m are new, k is a tree level.
"""

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any, TypeVar

import numpy as np
import torch

from scannable.scan.documents import Documents, documents_of
from scannable.scan.element_type import ElementType, Leaves, check_state, sequence, spread
from scannable.scan.leaves import part
from scannable.scan.many_streams import ManyStreams, from_states, on_device, states_after
from scannable.scan.one_stream import OneStream
from scannable.scan.state import ScanState, empty
from scannable.scan.sweep import on_levels, sweep
from scannable.scan.tree import unflatten

T = TypeVar("T")
Agg = Callable[[T, T], T]


def scan(
    agg: Agg[T],
    xs: T,
    *,
    identity: Any,
    dim: int = 0,
    lengths: Any = None,
    starts: Any = None,
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
        lengths: of the rows of a batch that is padded at its end: each row is a tree of its own, and no padding is
            ever aggregated. Rows are the first axis that is not time; the prefixes of padding are the identity.
        starts: where documents that are packed one after another begin, each a tree of its own: places, or cumulative
            lengths; for rows that differ, a sequence of them for each, or a mask of rows and time.
        inclusive: let x_t be part of P_t.
        literal: call Agg(e, x) where Alg. 1 prints it, instead of taking it for x.
        checkpoint: keep no activations of `agg`; compute each level once more in backward.

    >>> agg = lambda older, newer: 2 * older + 3 * newer
    >>> sc.scan(agg, torch.arange(1, 6), identity=torch.tensor(0))
    tensor([ 0,  1,  8, 25, 70])
    >>> sc.scan(agg, torch.arange(1, 6), identity=torch.tensor(0), inclusive=True)
    tensor([  1,   8,  25,  70, 155])
    """
    leaves, element, r = sequence(xs, dim)
    state = empty(identity, literal=literal)
    check_state(state, element)
    if lengths is not None or starts is not None:
        rows = next((n for axis, n in enumerate(leaves[0].shape) if axis != dim), 1)
        documents = documents_of(rows, r, lengths=lengths, starts=starts)
        prefixes = _scan_documents(agg, leaves, state, element, dim, documents, inclusive, checkpoint)
        return unflatten(element.structure, prefixes)
    if r == 0:
        return xs
    # The last element is in no exclusive prefix: absorb the others, and read the prefix before and after each.
    layout = OneStream(state, r if inclusive else r - 1, element, dim, inclusive=inclusive)
    absorbed = leaves if inclusive else part(leaves, dim, 0, r - 1)
    swept = sweep(on_levels(agg, element, dim, checkpoint), layout, absorbed)
    return unflatten(element.structure, layout.prefixes(swept, int(inclusive), r))


def _scan_documents(
    agg: Agg[T],
    leaves: Leaves,
    state: ScanState[T],
    element: ElementType,
    dim: int,
    documents: Documents,
    inclusive: bool,
    checkpoint: bool,
) -> Leaves:
    """Every document a tree of its own, all of them in the same calls."""
    identity = spread(state.identity, element)
    rows_at = int(dim == 0)  # where the axis of rows is
    if documents.same_in_all_rows:
        flat = [leaf.movedim(dim, 0) for leaf in leaves]
        kind = element
    else:
        if any(leaf.ndim < 2 or leaf.shape[rows_at] != documents.rows for leaf in leaves):
            raise ValueError(
                f"rows of different lengths are the first axis that is not time, and all leaves have {documents.rows} "
                f"of them; found the shapes {[tuple(leaf.shape) for leaf in leaves]} with time on axis {dim}"
            )
        flat = [leaf.movedim((rows_at, dim), (0, 1)).flatten(0, 1) for leaf in leaves]
        kind = replace(element, shapes=tuple(shape[1:] for shape in element.shapes))
    counts = documents.counts
    absorbed = counts if inclusive else np.maximum(counts - 1, 0)
    device = element.devices[0]
    where = on_device(documents.places(absorbed), device)
    row = on_device(documents.row, device)

    def tops(levels: object) -> Leaves:
        if documents.same_in_all_rows:
            return [leaf.expand(len(counts), *leaf.shape) for leaf in identity]
        return [leaf.index_select(0, row) for leaf in identity]

    def nothing_kept(what: str, k: int, streams: object) -> Leaves:
        raise AssertionError(f"a document that starts from nothing has no {what} at level {k}")

    layout = ManyStreams(
        np.zeros_like(counts),
        absorbed,
        np.full(len(counts), state.literal),
        kept=nothing_kept,
        tops=tops,
        device=device,
    )
    swept = sweep(on_levels(agg, kind, 0, checkpoint), layout, [leaf.index_select(0, where) for leaf in flat])
    # An exclusive scan reads the prefix after its last absorbed element too; an empty document reads nothing.
    read = on_device(documents.prefixes(absorbed, inclusive=inclusive), device)
    place = on_device(documents.places(counts), device)
    found: Leaves = []
    for prefixes, e in zip(swept.prefixes, identity, strict=True):
        prefixes = prefixes.index_select(0, read)
        if documents.same_in_all_rows:
            found.append(prefixes.movedim(0, dim))
            continue
        padding = e.unsqueeze(1).expand(documents.rows, documents.length, *e.shape[1:]).flatten(0, 1)
        whole = padding.index_copy(0, place, prefixes)
        found.append(whole.unflatten(0, (documents.rows, documents.length)).movedim((0, 1), (rows_at, dim)))
    return found


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

    >>> agg = lambda older, newer: 2 * older + 3 * newer
    >>> prefixes, state = sc.extend(agg, sc.empty(torch.tensor(0)), torch.arange(1, 4))
    >>> sc.extend(agg, state, torch.arange(4, 6))[0]
    tensor([25, 70])
    >>> state.position
    3
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
    layout = OneStream(state, m, element, dim, inclusive=inclusive)
    swept = sweep(on_levels(agg, element, dim, checkpoint), layout, leaves)
    prefixes = layout.prefixes(swept, state.position + int(inclusive), m)
    return unflatten(element.structure, prefixes), layout.after(swept)


def extend_many(
    agg: Agg[T],
    states: Sequence[ScanState[T]],
    elements: Sequence[T],
    *,
    dim: int = 0,
    inclusive: bool = False,
    checkpoint: bool = False,
) -> tuple[list[T], list[ScanState[T]]]:
    """`extend` for many independent streams at once, each at its own position and by its own number of elements.

    Agg knows neither level nor stream, so the merges of all streams at a level share a call: as many evaluations as
    one by one, in at most 2*ceil(log2(t + m + 1)) + 2 calls, with the t + m of the stream that is furthest.

    Args:
        agg: as for `scan`.
        states: one for each stream, at any positions.
        elements: a sequence for each stream, with time on axis `dim`; it may be empty. All of one structure, and, time
            aside, of one shape and dtype.
        dim: the axis that time runs along, in every leaf.
        inclusive: let x_t be part of P_t.
        checkpoint: keep no activations of `agg`; compute each level once more in backward.

    Returns:
        The prefixes and the new state of each stream.

    >>> agg = lambda older, newer: 2 * older + 3 * newer
    >>> start = sc.empty(torch.tensor(0))
    >>> prefixes, states = sc.extend_many(agg, [start, start], [torch.arange(1, 6), torch.arange(1, 3)])
    >>> prefixes
    [tensor([ 0,  1,  8, 25, 70]), tensor([0, 1])]
    >>> [state.position for state in states]
    [5, 2]
    """
    if len(states) != len(elements):
        raise ValueError(f"{len(states)} states but {len(elements)} elements; each state takes exactly one sequence")
    if not states:
        return [], []
    if len(states) == 1:
        prefixes, state = extend(agg, states[0], elements[0], dim=dim, inclusive=inclusive, checkpoint=checkpoint)
        return [prefixes], [state]
    sequences = [sequence(xs, dim) for xs in elements]
    element = sequences[0][1]
    counts = [m for _, _, m in sequences]
    checked: set[int] = set()
    for i, (state, (_, kind, _)) in enumerate(zip(states, sequences, strict=True)):
        difference = kind.difference(element, f"elements[{i}]", "elements[0]")
        if difference:
            raise ValueError(f"streams that advance together need elements of one kind, but {difference}")
        if id(state) not in checked:
            check_state(state, element)
            checked.add(id(state))
    layout = from_states(states, counts, element)
    flat = [
        torch.cat([leaf.movedim(dim, 0) for leaf in each]) for each in zip(*(x for x, _, _ in sequences), strict=True)
    ]
    swept = sweep(on_levels(agg, element, 0, checkpoint), layout, flat)
    # Each stream's part is its own memory: a view would keep all the others alive.
    found = [leaf.split(counts) for leaf in layout.before(swept, inclusive=inclusive)]
    prefixes = [
        unflatten(element.structure, [leaf.movedim(0, dim).clone() for leaf in each])
        for each in zip(*found, strict=True)
    ]
    return prefixes, states_after(states, layout, swept, element)
