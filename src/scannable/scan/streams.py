"""Many streams at different positions, advanced together."""

from collections.abc import Callable, Sequence
from typing import TypeVar

import torch

from scannable.scan.counter import push
from scannable.scan.element_type import ElementType, Leaves, aggregate_leaves, check_state, spread
from scannable.scan.state import ScanState
from scannable.scan.tree import flatten, tree_map, unflatten

T = TypeVar("T")


def extend_many(
    agg: Callable[[T, T], T], states: Sequence[ScanState[T]], elements: Sequence[T], *, inclusive: bool = False
) -> tuple[list[T], list[ScanState[T]]]:
    """Advance independent streams by one element each; the values are those of advancing them one by one.

    Agg does not know the level, so in every round the next merge or fold of every stream that has one left is stacked
    into a single call: as many calls as the longest carry, and one more for its fold.

    Args:
        agg: as for `scan`.
        states: one for each stream, at any positions.
        elements: one for each stream, without a time axis; all of one structure, shape and dtype.
        inclusive: give each prefix with the new element instead of before it.

    Returns:
        A prefix and a new state for each stream.
    """
    if len(states) != len(elements):
        raise ValueError(f"{len(states)} states but {len(elements)} elements; each state takes exactly one")
    if not states:
        return [], []
    element = ElementType.of(*flatten(elements[0]))
    for i, (state, x) in enumerate(zip(states, elements, strict=True)):
        difference = ElementType.of(*flatten(x)).difference(element, f"elements[{i}]", "elements[0]")
        if difference:
            raise ValueError(f"streams that advance together need elements of one kind, but {difference}")
        check_state(state, element)

    def leaves_of(value: T, state: ScanState[T]) -> Leaves:
        return spread(value, element) if value is state.identity else flatten(value)[0]

    def rows(leaves: Leaves, count: int) -> list[T]:
        # A view of one row would keep all streams' rows alive for as long as its own.
        return [unflatten(element.structure, [leaf[i].clone() for leaf in leaves]) for i in range(count)]

    def aggregate(pairs: dict[int, tuple[T, T]]) -> dict[int, T]:
        sides = (
            [leaves_of(pair[side], states[i]) for i, pair in pairs.items()]  # streams by leaves
            for side in (0, 1)
        )
        older, newer = ([torch.stack(leaf) for leaf in zip(*side, strict=True)] for side in sides)
        result = agg(unflatten(element.structure, older), unflatten(element.structure, newer))
        leaves = aggregate_leaves(result, element.batch_of(len(pairs)))
        return dict(zip(pairs, rows(leaves, len(pairs)), strict=True))

    updates = [push(state, copied(x)) for state, x in zip(states, elements, strict=True)]
    after = list(states)
    answers: dict[int, T | None] = dict.fromkeys(range(len(states)))  # sending None starts a coroutine
    while answers:
        pairs: dict[int, tuple[T, T]] = {}
        for i, answer in answers.items():
            try:
                pairs[i] = updates[i].send(answer)
            except StopIteration as done:
                after[i] = done.value
        answers = dict(aggregate(pairs)) if pairs else {}

    read = after if inclusive else states
    prefixes = [unflatten(element.structure, leaves_of(state.prefix(), state)) for state in read]
    return [copied(prefix) for prefix in prefixes], after


def copied(x: T) -> T:
    return tree_map(lambda leaf: leaf.clone(memory_format=torch.contiguous_format), x)
