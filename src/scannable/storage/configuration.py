"""Configurations are frozen dataclasses: written as plain JSON, read back only if every name and type is right."""

import dataclasses
import difflib
import math
import types
from collections.abc import Iterable
from pathlib import Path
from typing import Any, Literal, TypeVar, Union, get_args, get_origin, get_type_hints

from scannable.storage.registry import find, known, name_of

DEEPEST = 20
"""Lists and dicts in one another, where anything may stand."""


class ConfigurationError(ValueError):
    """A configuration with an unknown name, or a value of the wrong type or size."""


def nearest(name: object, known: Iterable[str]) -> str:
    """The end of a sentence about an unknown name: what was probably meant, and what there is."""
    # Of a class, what stands behind its module is what people mistype.
    short = {str(one).rpartition(":")[2]: str(one) for one in known}
    meant = name.rpartition(":")[2] if isinstance(name, str) else ""
    close = difflib.get_close_matches(meant, short, n=1, cutoff=0.5)
    return f"{f'; did you mean {short[close[0]]!r}?' if close else ';'} known: {', '.join(short.values())}"


def to_plain(value: Any) -> Any:
    """A configuration as JSON can hold it; every dataclass says its kind."""
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        fields = {field.name: to_plain(getattr(value, field.name)) for field in dataclasses.fields(value)}
        return {"kind": name_of(type(value)), **fields}
    if isinstance(value, list | tuple):
        return [to_plain(item) for item in value]
    if isinstance(value, dict):
        return {key: to_plain(item) for key, item in value.items()}
    return str(value) if isinstance(value, Path) else value


def from_plain(plain: Any, expected: Any = Any, where: str = "the configuration") -> Any:
    """The inverse of `to_plain`; `expected` is the type that has to come out."""
    try:
        return _read(plain, expected, where)
    except RecursionError:
        raise ConfigurationError(f"{where} is nested too deeply") from None


def _read(plain: Any, expected: Any, where: str) -> Any:
    options = _options(expected)
    records = {name_of(kind): kind for kind in options if isinstance(kind, type) and dataclasses.is_dataclass(kind)}
    anything = any(option is Any or isinstance(option, TypeVar) for option in options)
    if isinstance(plain, dict) and "kind" in plain and (records or anything):
        return _record(plain, records, where)
    return _checked(plain, expected, where)


def _record(plain: dict[str, Any], expected: dict[str, type], where: str) -> Any:
    name = plain["kind"]
    kind: Any = (expected.get(name) if isinstance(name, str) else None) if expected else find(name)
    if kind is None:
        raise ConfigurationError(f"{where} cannot be of the kind {_shown(name)}{nearest(name, expected or known())}")
    hints = get_type_hints(kind)
    fields = {field.name: field for field in dataclasses.fields(kind)}
    unknown = [name for name in plain if name != "kind" and name not in fields]
    if unknown:
        raise ConfigurationError(f"{where} has no field {_shown(unknown[0])}{nearest(unknown[0], fields)}")
    missing = [
        name
        for name, field in fields.items()
        if name not in plain and field.default is field.default_factory is dataclasses.MISSING
    ]
    if missing:
        raise ConfigurationError(f"{where} lacks the field {missing[0]!r} of a {kind.__name__}")
    values = {name: _read(value, hints[name], f"{where}.{name}") for name, value in plain.items() if name != "kind"}
    try:
        return kind(**values)
    except (TypeError, ValueError, OverflowError) as error:
        raise ConfigurationError(f"{where}: {error}") from error


def _options(expected: Any) -> list[Any]:
    return list(get_args(expected)) if get_origin(expected) in (Union, types.UnionType) else [expected]


def _checked(value: Any, expected: Any, where: str) -> Any:
    """`value` as one of the types that are expected; whole numbers will do for floats, lists for tuples."""
    for option in _options(expected):
        fits, result = _fit(value, option, where)
        if fits:
            return result
    if get_origin(expected) is Literal:
        raise ConfigurationError(f"{where}={_shown(value)} is unknown{nearest(value, get_args(expected))}")
    shown = expected.__name__ if isinstance(expected, type) else str(expected).replace("typing.", "")
    raise ConfigurationError(f"{where}={_shown(value)} is no {shown}")


def _shown(value: Any) -> str:
    """Enough of a value to recognise it; an int of thousands of digits has no text."""
    try:
        return f"{value!r:.60}"
    except ValueError:
        return f"({type(value).__name__} too long to show)"


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


def _plain(value: Any, where: str, depth: int = 0) -> Any:
    """What JSON can hold, where anything may stand."""
    if depth > DEEPEST:
        raise ConfigurationError(f"{where:.60} is nested too deeply")
    if type(value) in (int, float):
        return _number(value, type(value), where)
    if value is None or type(value) in (bool, str):
        return value
    if isinstance(value, list | tuple):
        return [_plain(item, f"{where}[{i}]", depth + 1) for i, item in enumerate(value)]
    if isinstance(value, dict) and all(type(key) is str for key in value):
        return {key: _plain(item, f"{where}.{key}", depth + 1) for key, item in value.items()}
    raise ConfigurationError(f"{where}={_shown(value)} is nothing that JSON can hold")


def _fit(value: Any, option: Any, where: str) -> tuple[bool, Any]:
    origin, inner = get_origin(option), get_args(option)
    if option is Any or isinstance(option, TypeVar):
        return True, _plain(value, where)
    if option is type(None):
        return value is None, None
    if origin is Literal:
        return value in inner and type(value) in {type(item) for item in inner}, value
    if option is float or option is int:
        fits = type(value) is int or (option is float and type(value) is float)
        return fits, _number(value, option, where) if fits else None
    if option is Path:
        return isinstance(value, str | Path), Path(value) if isinstance(value, str | Path) else None
    if origin in (tuple, list):
        if not isinstance(value, list | tuple):
            return False, None
        each = inner[0] if origin is list or inner[-1] is Ellipsis else None
        if each is None and len(inner) != len(value):
            return False, None
        kinds = [each] * len(value) if each is not None else list(inner)
        items = [_read(item, kind, f"{where}[{i}]") for i, (item, kind) in enumerate(zip(value, kinds, strict=True))]
        return True, origin(items)
    if origin is dict:
        return isinstance(value, dict), _plain(value, where)
    if option is str or option is bool:
        return type(value) is option, value
    if isinstance(option, type):
        return isinstance(value, option), value
    return True, value
