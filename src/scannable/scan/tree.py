"""Elements are trees of tensors: a tensor, or a tuple, list, dict, NamedTuple or dataclass of trees.

A field of a NamedTuple or dataclass that holds no tensor is a constant: the same in all elements, and not scanned.

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
    """Fields that hold no tensors."""

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
        inside = [f"{key}: {child}" for key, child in zip(self.keys, self.children, strict=True)]
        inside += [f"{name}={value!r:.40}" for name, value in self.constants]
        return f"{self.kind.__name__}({', '.join(inside)})"


def flatten(
    tree: object, what: str = "an element", *, numbers: bool = False, like: Structure | None = None
) -> tuple[list[Any], Structure]:
    """The tensors of a tree, in a fixed order, and the structure that puts them back.

    With `numbers`, plain numbers may stand for tensors; with `like`, they may where that structure has tensors, and
    are constants where it has constants. `what` names the tree in an error.
    """
    leaves: list[Any] = []
    kinds = (Tensor, int, float, complex) if numbers or like is not None else (Tensor,)
    return leaves, _walk(tree, leaves, kinds, like, what, "")


def unflatten(structure: Structure, leaves: Sequence[Tensor]) -> Any:
    """The inverse of `flatten`."""
    return _rebuild(structure, iter(leaves))


def tree_map(function: Callable[..., Tensor], *trees: T) -> T:
    """`function` on the tensors at each place of trees of one structure."""
    flat = [flatten(tree) for tree in trees]
    return unflatten(flat[0][1], [function(*leaves) for leaves in zip(*(leaves for leaves, _ in flat), strict=True)])


def _walk(
    tree: object, leaves: list[Any], leaf: tuple[type, ...], like: Structure | None, what: str, path: str
) -> Structure:
    if isinstance(tree, leaf):
        leaves.append(tree)
        return Structure(_LEAF)
    kind = type(tree)
    constants: tuple[tuple[str, Any], ...] = ()
    if tree is None:
        return Structure(kind)
    if _has_fields(kind):
        fields = {name: getattr(tree, name) for name in _fields(kind)}
        known = dict(like.constants) if like is not None and like.kind is kind else None
        fixed = [name for name, value in fields.items() if (name in known if known else not _holds(value, leaf))]
        constants = tuple((name, fields.pop(name)) for name in fixed)
        keys: tuple[Any, ...] = tuple(fields)
        values = tuple(fields.values())
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
    inner = dict(zip(like.keys, like.children, strict=True)) if like is not None and like.kind is kind else {}
    children = tuple(
        _walk(value, leaves, leaf, inner.get(key), what, path + (f".{key}" if attribute else f"[{key!r}]"))
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
    if not _has_fields(structure.kind):
        return structure.kind(named.values())
    named.update(structure.constants)
    if _is_named_tuple(structure.kind):
        return cast(Any, structure.kind)._make(named[name] for name in _fields(structure.kind))
    # Not through __init__: it may compute, check or leave out fields, and a frozen one cannot be set up later.
    instance = object.__new__(structure.kind)
    for name, value in named.items():
        object.__setattr__(instance, name, value)
    return instance


def _holds(value: object, leaf: tuple[type, ...]) -> bool:
    """Whether there is a leaf anywhere in a value."""
    if isinstance(value, leaf):
        return True
    if _has_fields(type(value)):
        return any(_holds(getattr(value, name), leaf) for name in _fields(type(value)))
    if isinstance(value, dict):
        return any(_holds(item, leaf) for item in value.values())
    return isinstance(value, tuple | list) and any(_holds(item, leaf) for item in value)


def _fields(kind: Any) -> tuple[str, ...]:
    return kind._fields if _is_named_tuple(kind) else tuple(field.name for field in dataclasses.fields(kind))


def _is_named_tuple(kind: type) -> bool:
    return issubclass(kind, tuple) and hasattr(kind, "_fields")


def _has_fields(kind: type) -> bool:
    return _is_named_tuple(kind) or dataclasses.is_dataclass(kind)
