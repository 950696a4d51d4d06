"""Layers of a stack as words of a command line: `mamba`, or with options `mamba:state_size=32:mlp=True`."""

import ast
from dataclasses import fields
from typing import Any

from tyro.constructors import ConstructorRegistry, PrimitiveConstructorSpec, PrimitiveTypeInfo

from scannable.models.layer_options import OPTIONS, LayerOptions
from scannable.storage.configuration import nearest

REGISTRY = ConstructorRegistry()
"""How tyro reads the fields of configurations that are no plain types."""


@REGISTRY.primitive_rule
def layers_rule(info: PrimitiveTypeInfo) -> PrimitiveConstructorSpec[Any] | None:
    """The layers of an `LMConfig`; all at once, because tyro would keep what is wrong with one of them to itself."""
    if info.type != tuple[str | LayerOptions, ...]:
        return None
    return PrimitiveConstructorSpec(
        nargs="*",
        metavar="[LAYER [LAYER ...]]",
        instance_from_str=lambda words: tuple(layer_of(word) for word in words),
        is_instance=lambda value: isinstance(value, tuple),
        str_from_instance=lambda layers: [word_of(layer) for layer in layers],
    )


def layer_of(word: str) -> str | LayerOptions:
    """The layer that a word stands for; a bare name is checked by the configuration."""
    name, *options = word.split(":")
    if not options:
        return name
    if name not in OPTIONS:
        raise ValueError(f"there is no layer {name!r}{nearest(name, OPTIONS)}")
    kind, given = OPTIONS[name], dict[str, Any]()
    known = [field.name for field in fields(kind)]
    for option in options:
        field, equals, value = option.partition("=")
        if not equals:
            raise ValueError(f"{option!r} is no option of a layer; write {name}:{known[0]}=2, for example")
        if field not in known:
            raise ValueError(f"{name} has no option {field!r}{nearest(field, known)}")
        try:
            given[field] = ast.literal_eval(value)
        except (ValueError, SyntaxError):
            given[field] = value
    return kind(**given)


def word_of(layer: str | LayerOptions) -> str:
    """The word that stands for a layer: only what is not the default."""
    if isinstance(layer, str):
        return layer
    changed = ((field.name, getattr(layer, field.name)) for field in fields(layer))
    default = type(layer)()
    words = [f"{name}={value}" for name, value in changed if value != getattr(default, name)]
    # Without any it would be read as the bare name, which means the same layer.
    return ":".join((layer.layer, *words))
