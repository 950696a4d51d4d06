"""Configurations are frozen dataclasses: written as plain JSON, read back only if every name and type is right."""

import dataclasses
import difflib
import types
from collections.abc import Iterable
from pathlib import Path
from typing import Any, Literal, TypeVar, Union, get_args, get_origin, get_type_hints

C = TypeVar("C", bound=type)

_kinds: dict[str, type] = {}


class ConfigurationError(ValueError):
    """A configuration with an unknown name, or a value of the wrong type or size."""


def configurable(kind: C) -> C:
    """Let a frozen dataclass be part of a saved configuration where its field says only that something is there."""
    _kinds[kind.__name__] = kind
    return kind


def nearest(name: object, known: Iterable[str]) -> str:
    """The end of a sentence about an unknown name: what was probably meant, and what there is."""
    known = list(known)
    close = difflib.get_close_matches(str(name), known, n=1, cutoff=0.5)
    meant = f"; did you mean {close[0]!r}?" if close else ";"
    return f"{meant} known: {', '.join(known)}"


def to_plain(value: Any) -> Any:
    """A configuration as JSON can hold it; every dataclass says its kind."""
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        fields = {field.name: to_plain(getattr(value, field.name)) for field in dataclasses.fields(value)}
        return {"kind": type(value).__name__, **fields}
    if isinstance(value, list | tuple):
        return [to_plain(item) for item in value]
    if isinstance(value, dict):
        return {key: to_plain(item) for key, item in value.items()}
    return str(value) if isinstance(value, Path) else value


def from_plain(plain: Any, expected: Any = Any, where: str = "the configuration") -> Any:
    """The inverse of `to_plain`; `expected` is the type that has to come out."""
    if isinstance(plain, dict) and "kind" in plain:
        return _record(plain, expected, where)
    return _checked(plain, expected, where)


def _record(plain: dict[str, Any], expected: Any, where: str) -> Any:
    known = dict(_kinds)
    options = [kind for kind in _options(expected) if dataclasses.is_dataclass(kind)]
    known |= {kind.__name__: kind for kind in options if isinstance(kind, type)}
    kind = known.get(plain["kind"]) if isinstance(plain["kind"], str) else None
    if kind is None or (options and kind not in options):
        raise ConfigurationError(f"{where} is of the unknown kind {plain['kind']!r:.60}{nearest(plain['kind'], known)}")
    hints = get_type_hints(kind)
    fields = {field.name: field for field in dataclasses.fields(kind)}
    unknown = [name for name in plain if name != "kind" and name not in fields]
    if unknown:
        raise ConfigurationError(f"{where} has no field {unknown[0]!r:.60}{nearest(unknown[0], fields)}")
    values = {
        name: from_plain(value, hints[name], f"{where}.{name}") for name, value in plain.items() if name != "kind"
    }
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
    shown = expected.__name__ if isinstance(expected, type) else str(expected).replace("typing.", "")
    raise ConfigurationError(f"{where}={value!r:.60} is no {shown}")


def _fit(value: Any, option: Any, where: str) -> tuple[bool, Any]:
    origin, inner = get_origin(option), get_args(option)
    if option is Any or isinstance(option, type(dataclasses.MISSING)):
        return True, value
    if option is type(None):
        return value is None, None
    if origin is Literal:
        return value in inner and type(value) in {type(item) for item in inner}, value
    if option is float:
        return type(value) in (int, float), float(value) if type(value) in (int, float) else None
    if option is Path:
        return isinstance(value, str | Path), Path(value) if isinstance(value, str | Path) else None
    if origin in (tuple, list):
        if not isinstance(value, list | tuple):
            return False, None
        each = inner[0] if origin is list or inner[-1] is Ellipsis else None
        if each is None and len(inner) != len(value):
            return False, None
        kinds = [each] * len(value) if each is not None else list(inner)
        items = [
            from_plain(item, kind, f"{where}[{i}]") for i, (item, kind) in enumerate(zip(value, kinds, strict=True))
        ]
        return True, origin(items)
    if origin is dict:
        return isinstance(value, dict), value
    if isinstance(option, type) and option in (int, str, bool):
        return type(value) is option, value
    if isinstance(option, type):
        return isinstance(value, option), value
    return True, value
