"""Values of known classes as plain JSON, and back: the one serialiser, of configurations, model files and states.

A dataclass or NamedTuple is an object that says its kind beside its fields: `{"kind": "module:Name", "width": 8}`.
What JSON has no form for says its kind too: `{"kind": "tuple", "items": [1, 2]}`. Where the type of a field leaves no
doubt, a tuple is written as a list and a path as a string.

A configuration is read by the types of its fields, and only if every name and type is right. A state has tensors for
leaves, which the caller keeps elsewhere; there values speak for themselves, because a number may stand for a tensor.
"""

import dataclasses
import difflib
import math
import sys
import types
from collections.abc import Callable, Iterable, Mapping, MutableMapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, TypeGuard, TypeVar, Union, get_args, get_origin, get_type_hints

from scannable.storage.registry import KIND, find, is_record, known, name_of, why_unknown

if TYPE_CHECKING:
    from torch import Tensor

DEEPEST = 20
"""Values in one another."""

ITEMS = "items"
"""The content of what is neither a record nor known to JSON."""


_NO = object()
_TAGS = ("tuple", "dict", "path", "tensor", "number")


class ConfigurationError(ValueError):
    """A configuration with an unknown name, or a value of the wrong type or size."""


def nearest(name: object, known: Iterable[str]) -> str:
    """The end of a sentence about an unknown name: what was probably meant, and what there is."""
    # Of a class, what stands behind its module is what people mistype.
    short = {str(one).rpartition(":")[2]: str(one) for one in known}
    meant = name.rpartition(":")[2] if isinstance(name, str) else ""
    close = difflib.get_close_matches(meant, short, n=1, cutoff=0.5)
    return f"{f'; did you mean {short[close[0]]!r}?' if close else ';'} known: {', '.join(short.values())}"


def to_plain(value: Any, where: str = "the configuration", *, store: "Callable[[Tensor], str] | None" = None) -> Any:
    """A value as JSON can hold it; `store` keeps a tensor, and says under what name."""
    return _Writer(store).write(value, Any, where, 0)


def from_plain(
    plain: Any, expected: Any = Any, where: str = "the configuration", *, tensors: "Mapping[str, Tensor] | None" = None
) -> Any:
    """The inverse of `to_plain`; `expected` is the type that has to come out."""
    reader = _Reader(tensors)
    return reader.read(reader.untagged(plain, where, 0), expected, where)


class _Writer:
    def __init__(self, store: "Callable[[Tensor], str] | None") -> None:
        self.store = store

    def write(self, value: Any, expected: Any, where: str, depth: int) -> Any:
        """`expected` is what a reader will know about the place."""
        _check_depth(where, depth)
        options = _options(expected)
        if value is None or isinstance(value, bool | str):
            return value
        if type(value) in (list, tuple):
            return self._sequence(value, options, where, depth)
        if type(value) is dict:
            return self._dict(value, options, where, depth)
        if isinstance(value, int) or (isinstance(value, float) and (math.isfinite(value) or not self.store)):
            return _number(value, int if isinstance(value, int) else float, where)
        if isinstance(value, Path):
            return str(value) if Path in options and str not in options else {KIND: "path", ITEMS: str(value)}
        if is_record(type(value)):
            return self._record(value, where, depth)
        if self.store and _is_tensor(value):
            return {KIND: "tensor", ITEMS: self.store(value)}
        if self.store and isinstance(value, float | complex):
            return {KIND: "number", ITEMS: repr(value if isinstance(value, complex) else float(value))}
        raise ConfigurationError(f"{where}={_shown(value)} is a {type(value).__name__}, which no file can keep")

    def _sequence(self, value: Sequence[Any], options: list[Any], where: str, depth: int) -> Any:
        sequences = [option for option in options if get_origin(option) in (list, tuple)]
        kinds = _item_kinds(sequences[0], len(value)) if len(sequences) == 1 else None
        if kinds is None or get_origin(sequences[0]) is not type(value):
            # What could be read as something else says its kind, and so does everything inside.
            items = [self.write(item, Any, f"{where}[{i}]", depth + 1) for i, item in enumerate(value)]
            return items if type(value) is list else {KIND: "tuple", ITEMS: items}
        each = enumerate(zip(value, kinds, strict=True))
        return [self.write(item, kind, f"{where}[{i}]", depth + 1) for i, (item, kind) in each]

    def _dict(self, value: dict[Any, Any], options: list[Any], where: str, depth: int) -> dict[str, Any]:
        mappings = [option for option in options if get_origin(option) is dict]
        kind = get_args(mappings[0])[1] if len(mappings) == 1 else Any
        items = {key: self.write(item, kind, _at(where, key), depth + 1) for key, item in value.items()}
        if KIND not in items and all(type(key) is str for key in items):
            return items
        return {
            KIND: "dict",
            ITEMS: [[self.write(key, Any, where, depth + 1), item] for key, item in items.items()],
        }

    def _record(self, value: Any, where: str, depth: int) -> dict[str, Any]:
        kind = type(value)
        unknown = why_unknown(kind) if self.store else None
        if unknown:
            raise ConfigurationError(f"{where} is a {kind.__name__}, which no file can keep: {unknown} (@sc.storable)")
        hints = {} if self.store else _hints(kind, where)
        fields = {
            name: self.write(getattr(value, name), hints.get(name, Any), f"{where}.{name}", depth + 1)
            for name in _stored(kind, self.store is not None)
        }
        if KIND in fields:
            raise ConfigurationError(f"{where} has a field {KIND!r}, under which files keep its class; rename it")
        return {KIND: name_of(kind), **fields}


class _Record(dict[str, Any]):
    """What says its kind, and is not made yet."""


class _Reader:
    def __init__(self, tensors: "Mapping[str, Tensor] | None") -> None:
        self.tensors = tensors

    def untagged(self, plain: Any, where: str, depth: int) -> Any:
        """`plain` with everything in it that JSON has no form for, but for records."""
        _check_depth(where, depth)
        if type(plain) in (list, tuple):
            return type(plain)([self.untagged(item, f"{where}[{i}]", depth + 1) for i, item in enumerate(plain)])
        if not isinstance(plain, dict):
            return plain
        if not all(type(name) is str for name in plain):
            raise ConfigurationError(f"{where}={_shown(plain)} is nothing that JSON can hold")
        values = {name: self.untagged(item, _at(where, name), depth + 1) for name, item in plain.items()}
        if values.keys() == {KIND, ITEMS} and values[KIND] in _TAGS:
            return self._tagged(values[KIND], values[ITEMS], where)
        return _Record(values) if KIND in values else values

    def _tagged(self, kind: str, items: Any, where: str) -> Any:
        try:
            if kind == "tensor" and self.tensors is not None:
                return self.tensors[items]
            if kind == "number" and self.tensors is not None:
                return complex(items) if "j" in items else float(items)
            if kind == "path":
                return Path(items)
            if kind == "tuple" and isinstance(items, list):
                return tuple(items)
            if kind == "dict" and isinstance(items, list) and len(found := dict(items)) == len(items):
                return found
        except (TypeError, ValueError, KeyError) as error:
            raise ConfigurationError(f"{where}={_shown(items)} is no {kind}: {error!s:.60}") from error
        raise ConfigurationError(f"{where}={_shown(items)} is no {kind}, or none can be here")

    def read(self, value: Any, expected: Any, where: str, exact: bool = False) -> Any:
        """`value` as one of the types that `expected` allows: as one that it is exactly, if there is one."""
        options = _options(expected)
        records = {name_of(option): option for option in options if is_record(option)}
        if isinstance(value, _Record) and (records or Any in options):
            return self._made(value, records, where)
        reason: ConfigurationError | None = None
        # Whole numbers will do for floats, lists for tuples and strings for paths, where nothing fits better.
        for strict in (exact,) if exact or len(options) == 1 else (True, False):
            reason = None
            for option in options:
                try:
                    fitted = self._fitted(value, option, where, strict)
                    if fitted is not _NO:
                        return fitted
                except ConfigurationError as error:
                    # Of the right type, with something wrong inside.
                    reason = reason or error
        if reason:
            raise reason
        if get_origin(expected) is Literal:
            raise ConfigurationError(f"{where}={_shown(value)} is unknown{nearest(value, get_args(expected))}")
        shown = expected.__name__ if isinstance(expected, type) else str(expected).replace("typing.", "")
        raise ConfigurationError(f"{where}={_shown(value)} is no {shown}")

    def _fitted(self, value: Any, option: Any, where: str, exact: bool) -> Any:
        kind = type(value)
        if option is Any:
            # The numbers of a state need not be finite.
            numbers = {int: int, float: float} if self.tensors is None else {int: int}
            option = {list: list[Any], tuple: tuple[Any, ...], dict: dict[Any, Any], **numbers}.get(kind, option)
        origin, inner = get_origin(option), get_args(option)
        if origin in (list, tuple):
            fits = kind is origin or (kind in (list, tuple) and not exact)
            kinds = _item_kinds(option, len(value)) if fits else None
            if kinds is not None:
                each = enumerate(zip(value, kinds, strict=True))
                return origin([self.read(item, one, f"{where}[{i}]", exact) for i, (item, one) in each])
        elif origin is dict:
            if isinstance(value, dict):
                return {
                    self.read(key, inner[0], where, exact): self.read(item, inner[1], _at(where, key), exact)
                    for key, item in value.items()
                }
        elif option in (int, float):
            if kind is option or (option is float and kind is int and not exact):
                return _number(value, option, where)
        elif option is Path:
            if isinstance(value, Path) or (kind is str and not exact):
                return Path(value)
        elif option is Any:
            if value is None or isinstance(value, bool | str | Path | float | complex) or _is_tensor(value):
                return value
            raise ConfigurationError(f"{where}={_shown(value)} is nothing that JSON can hold")
        elif origin is Literal:
            if any(kind is type(item) and value == item for item in inner):
                return value
        elif kind is option if option in (str, bool) else isinstance(value, option):
            return value
        return _NO

    def _made(self, record: _Record, expected: Mapping[str, type], where: str) -> Any:
        name, given = record[KIND], {name: value for name, value in record.items() if name != KIND}
        kind: Any = expected.get(name) if isinstance(name, str) else None
        found = find(name) if kind is None else None
        if found is not None and (not expected or issubclass(found, tuple(expected.values()))):
            kind = found
        if kind is None:
            lost = isinstance(name, str) and name.startswith("__main__:") and not expected
            advice = "; it was defined in a script or notebook: run its definition first, or move it to a module"
            fitting = (one for one in known() if issubclass(find(one) or object, tuple(expected.values()) or object))
            raise ConfigurationError(
                f"{where} cannot be of the kind {_shown(name)}"
                f"{advice if lost else nearest(name, sorted({*expected, *fitting}))}"
            )
        fields = _stored(kind, self.tensors is not None)
        for unknown in given.keys() - fields:
            raise ConfigurationError(f"{where} has no field {_shown(unknown)}{nearest(unknown, fields)}")
        for missing in [name for name in fields if name not in given and not _has_default(kind, name)]:
            raise ConfigurationError(f"{where} lacks the field {missing!r} of a {kind.__name__}")
        hints = {} if self.tensors is not None else _hints(kind, where)
        values = {name: self.read(value, hints.get(name, Any), f"{where}.{name}") for name, value in given.items()}
        taken = _stored(kind, False)
        try:
            made = kind(**{name: value for name, value in values.items() if name in taken})
        except (TypeError, ValueError, OverflowError) as error:
            raise ConfigurationError(f"{where}: {error}") from error
        if self.tensors is not None and dataclasses.is_dataclass(kind):
            for name, value in values.items():
                # Exactly what was saved, whatever __post_init__ made of it.
                object.__setattr__(made, name, value)
        return made


def _options(expected: Any) -> list[Any]:
    """The types that a type allows, each in one of the forms that are known here."""
    origin, inner = get_origin(expected), get_args(expected)
    if origin in (Union, types.UnionType):
        options = [option for one in inner for option in _options(one)]
        return [Any] if Any in options else options
    if expected is Any or isinstance(expected, TypeVar):
        return [Any]
    if expected is None or expected is type(None):
        return [type(None)]
    if expected in (list, Sequence) or origin in (list, Sequence):
        each = inner[0] if inner else Any
        return [list[each]] if list in (expected, origin) else [list[each], tuple[each, ...]]
    if expected is tuple or origin is tuple:
        return [expected if inner or origin else tuple[Any, ...]]
    if any(one in (dict, Mapping, MutableMapping) for one in (expected, origin)):
        return [dict.__class_getitem__(inner or (Any, Any))]
    if origin is Literal or isinstance(expected, type):
        return [expected]
    # A generic class with its arguments; what else there may be is read as it stands.
    return [origin if isinstance(origin, type) else Any]


def _item_kinds(option: Any, count: int) -> list[Any] | None:
    """The type of each of `count` items of a list or tuple; None if it cannot have so many."""
    inner = get_args(option)
    if get_origin(option) is list or inner[-1:] == (Ellipsis,):
        return [inner[0]] * count
    return list(inner) if len(inner) == count else None


def _hints(kind: type, where: str) -> dict[str, Any]:
    try:
        return get_type_hints(kind)
    except NameError as error:
        raise ConfigurationError(
            f"{where}: the types of {kind.__name__}'s fields cannot be looked up: {error}"
        ) from error


def _stored(kind: Any, state: bool) -> list[str]:
    """The fields that are kept. What __init__ does not take it makes itself; in a state it may have changed since."""
    if dataclasses.is_dataclass(kind):
        return [field.name for field in dataclasses.fields(kind) if field.init or state]
    return list(kind._fields)


def _has_default(kind: Any, name: str) -> bool:
    if not dataclasses.is_dataclass(kind):
        return name in kind._field_defaults
    field = kind.__dataclass_fields__[name]
    return (
        not field.init or field.default is not dataclasses.MISSING or field.default_factory is not dataclasses.MISSING
    )


def _number(value: float, kind: type, where: str) -> float:
    """A number to calculate with: whole and of 64 bits, or a finite float."""
    try:
        number = kind(value)
        fits = -(2**63) <= value < 2**63 if kind is int else math.isfinite(number)
    except OverflowError:
        number, fits = 0, False
    if not fits:
        raise ConfigurationError(
            f"{where}={_shown(value)} is {'out of the range of 64 bits' if kind is int else 'not finite'}"
        )
    return number


def _is_tensor(value: Any) -> "TypeGuard[Tensor]":
    # Nothing is one before torch is there; a configuration is read and written without it.
    torch: Any = sys.modules.get("torch")
    return torch is not None and isinstance(value, torch.Tensor)


def _check_depth(where: str, depth: int) -> None:
    if depth > DEEPEST:
        raise ConfigurationError(f"{where:.60} is nested too deeply")


def _at(where: str, key: object) -> str:
    return f"{where}.{key}" if isinstance(key, str) else f"{where}[{_shown(key)}]"


def _shown(value: Any) -> str:
    """Enough of a value to recognise it; an int of thousands of digits has no text."""
    try:
        return f"{value!r:.60}"
    except ValueError:
        return f"({type(value).__name__} too long to show)"
