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


def flatten(tree: object) -> tuple[list[Tensor], Structure]:
    """The tensors of a tree, in a fixed order, and the structure that puts them back."""
    leaves: list[Tensor] = []
    structure = _walk(tree, leaves, "")
    return leaves, structure


def unflatten(structure: Structure, leaves: Sequence[Tensor]) -> Any:
    """The inverse of `flatten`."""
    return _rebuild(structure, iter(leaves))


def tree_map(function: Callable[..., Tensor], *trees: T) -> T:
    """`function` on the tensors at each place of trees of one structure."""
    flat = [flatten(tree) for tree in trees]
    return unflatten(flat[0][1], [function(*leaves) for leaves in zip(*(leaves for leaves, _ in flat), strict=True)])


def _walk(tree: object, leaves: list[Tensor], path: str) -> Structure:
    if isinstance(tree, Tensor):
        leaves.append(tree)
        return Structure(_LEAF)
    kind = type(tree)
    if tree is None:
        return Structure(kind)
    if _is_named_tuple(kind):
        keys: tuple[Any, ...] = cast(Any, kind)._fields
        values = tuple(cast(tuple[object, ...], tree))
    elif dataclasses.is_dataclass(kind):
        keys = tuple(field.name for field in dataclasses.fields(kind) if field.init)
        values = tuple(getattr(tree, key) for key in keys)
    elif kind is tuple or kind is list:
        values = tuple(cast(Sequence[object], tree))
        keys = tuple(range(len(values)))
    elif kind is dict:
        # Agg may build its result in another order of keys than its input had.
        keys = tuple(sorted(cast(dict[Any, object], tree), key=repr))
        values = tuple(cast(dict[Any, object], tree)[key] for key in keys)
    else:
        raise TypeError(
            f"found {kind.__name__} {tree!r:.60} at {path or 'the top'} of an element; elements are tensors, or "
            "tuples, lists, dicts, NamedTuples and dataclasses of tensors (BinaryCounter takes any Python object)"
        )
    attribute = _has_fields(kind)
    children = tuple(
        _walk(value, leaves, path + (f".{key}" if attribute else f"[{key!r}]"))
        for key, value in zip(keys, values, strict=True)
    )
    return Structure(kind, keys, children)


def _rebuild(structure: Structure, leaves: Iterator[Tensor]) -> Any:
    if structure.kind is _LEAF:
        return next(leaves)
    if structure.kind is _NOTHING:
        return None
    values = [_rebuild(child, leaves) for child in structure.children]
    if structure.kind is dict:
        return dict(zip(structure.keys, values, strict=True))
    if _has_fields(structure.kind):
        return structure.kind(**dict(zip(structure.keys, values, strict=True)))
    return structure.kind(values)


def _is_named_tuple(kind: type) -> bool:
    return issubclass(kind, tuple) and hasattr(kind, "_fields")


def _has_fields(kind: type) -> bool:
    return _is_named_tuple(kind) or dataclasses.is_dataclass(kind)
