"""Elements are trees of tensors: a tensor, or a tuple, list, dict, NamedTuple or dataclass of trees.

The scan flattens a tree once, works on the list of its leaves, and rebuilds the tree only where Agg looks at it.
"""

import dataclasses
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar, cast

from torch import Tensor

T = TypeVar("T")

_LEAF = Tensor
_NOTHING = type(None)


@dataclass(frozen=True)
class Structure:
    """The shape of a tree without its tensors; two trees fit together when their structures are equal."""

    kind: type
    keys: tuple[Any, ...] = ()
    children: tuple["Structure", ...] = ()
    constants: tuple[tuple[str, Any], ...] = ()
    """Fields of a dataclass that hold no tensors."""

    def paths(self, prefix: str = "") -> list[str]:
        """Where each leaf hangs, as a person would write it: `.f`, `['key'][0]`; a lone tensor is ''."""
        if self.kind is _LEAF:
            return [prefix]
        return [
            path
            for key, child in zip(self.keys, self.children, strict=True)
            for path in child.paths(prefix + (f".{key}" if _has_fields(self.kind) else f"[{key!r}]"))
        ]

    def __str__(self) -> str:
        if self.kind is _LEAF:
            return "Tensor"
        if self.kind is _NOTHING:
            return "None"
        inside = ", ".join(f"{key}: {child}" for key, child in zip(self.keys, self.children, strict=True))
        return f"{self.kind.__name__}({inside})"


def flatten(tree: object, what: str = "an element", *, numbers: bool = False) -> tuple[list[Any], Structure]:
    """The tensors of a tree, in a fixed order, and the structure that puts them back.

    With `numbers`, plain numbers may stand for tensors. `what` names the tree in an error.
    """
    leaves: list[Any] = []
    structure = _walk(tree, leaves, (Tensor, int, float, complex) if numbers else (Tensor,), what, "")
    return leaves, structure


def unflatten(structure: Structure, leaves: Sequence[Tensor]) -> Any:
    """The inverse of `flatten`."""
    return _rebuild(structure, iter(leaves))


def tree_map(function: Callable[..., Tensor], *trees: T) -> T:
    """`function` on the tensors at each place of trees of one structure."""
    flat = [flatten(tree) for tree in trees]
    return unflatten(flat[0][1], [function(*leaves) for leaves in zip(*(leaves for leaves, _ in flat), strict=True)])


def _walk(tree: object, leaves: list[Any], leaf: tuple[type, ...], what: str, path: str) -> Structure:
    if isinstance(tree, leaf):
        leaves.append(tree)
        return Structure(_LEAF)
    kind = type(tree)
    constants: tuple[tuple[str, Any], ...] = ()
    if tree is None:
        return Structure(kind)
    if _is_named_tuple(kind):
        keys: tuple[Any, ...] = cast(Any, kind)._fields
        values = tuple(cast(tuple[object, ...], tree))
    elif dataclasses.is_dataclass(kind):
        named = [(field.name, getattr(tree, field.name)) for field in dataclasses.fields(kind)]
        keys = tuple(name for name, value in named if _may_hold_tensors(value, leaf))
        values = tuple(value for _, value in named if _may_hold_tensors(value, leaf))
        constants = tuple((name, value) for name, value in named if not _may_hold_tensors(value, leaf))
    elif kind is tuple or kind is list:
        values = tuple(cast(Sequence[object], tree))
        keys = tuple(range(len(values)))
    elif kind is dict:
        # Agg may build its result in another order of keys than its input had.
        keys = tuple(sorted(cast(dict[Any, object], tree), key=repr))
        values = tuple(cast(dict[Any, object], tree)[key] for key in keys)
    else:
        raise TypeError(
            f"found {kind.__name__} {tree!r:.60} at {path or 'the top'} of {what}; elements are tensors, or tuples, "
            "lists, dicts, NamedTuples and dataclasses of tensors (BinaryCounter takes any Python object)"
        )
    attribute = _has_fields(kind)
    children = tuple(
        _walk(value, leaves, leaf, what, path + (f".{key}" if attribute else f"[{key!r}]"))
        for key, value in zip(keys, values, strict=True)
    )
    return Structure(kind, keys, children, constants)


def _rebuild(structure: Structure, leaves: Iterator[Tensor]) -> Any:
    if structure.kind is _LEAF:
        return next(leaves)
    if structure.kind is _NOTHING:
        return None
    named = dict(zip(structure.keys, (_rebuild(child, leaves) for child in structure.children), strict=True))
    if structure.kind is dict:
        return named
    if dataclasses.is_dataclass(structure.kind):
        # Not through __init__: it may compute, check or leave out fields, and a frozen one cannot be set up later.
        instance = object.__new__(structure.kind)
        for name, value in (*named.items(), *structure.constants):
            object.__setattr__(instance, name, value)
        return instance
    return structure.kind(**named) if _is_named_tuple(structure.kind) else structure.kind(named.values())


def _may_hold_tensors(value: object, leaf: tuple[type, ...]) -> bool:
    return value is None or isinstance(value, (*leaf, tuple, list, dict)) or dataclasses.is_dataclass(value)


def _is_named_tuple(kind: type) -> bool:
    return issubclass(kind, tuple) and hasattr(kind, "_fields")


def _has_fields(kind: type) -> bool:
    return _is_named_tuple(kind) or dataclasses.is_dataclass(kind)
