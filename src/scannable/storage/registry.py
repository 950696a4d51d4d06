"""Which classes a file may name, each by its module and name, as in `scannable.tasks.groups:GroupTask`.

A file never decides what is imported: only modules of this package that are listed here, and those that an installed
package brings through the entry points `scannable.plugins`, are looked into. So a class is found whether its module
happens to have been imported or not, and two classes of one name never get into each other's way.
"""

from importlib import import_module
from importlib.metadata import entry_points
from typing import TypeVar

C = TypeVar("C", bound=type)

PLUGINS = "scannable.plugins"
"""The group of entry points through which a package brings models, tasks and recipes: each names a module."""

BUILT_IN = (
    "scannable.models.transformer_psm_config",
    "scannable.models.lm_config",
    "scannable.models.psm_state",
    "scannable.models.stream_batch",
    "scannable.models.lm",
    "scannable.baselines.gpt2",
    "scannable.baselines.sliding_window",
    "scannable.baselines.transformers_mamba",
    "scannable.tasks.groups",
    "scannable.tasks.mqar",
    "scannable.tasks.text",
    "scannable.recipes.aids",
    "scannable.training.recipe",
)
"""Modules of this package that register classes when they are imported."""

_kinds: dict[str, type] = {}
_models: dict[str, str | type] = {}
_plugins_loaded = False


def name_of(kind: type) -> str:
    """How a file calls a class."""
    return f"{kind.__module__}:{kind.__qualname__}"


def configurable(kind: C) -> C:
    """Let a frozen dataclass be part of a saved configuration, of a recipe for example."""
    settings = getattr(kind, "__dataclass_params__", None)
    if settings is None or not settings.frozen:
        raise TypeError(f"{kind.__name__} cannot be part of a configuration: it is no frozen dataclass")
    return _register(kind)


def storable(kind: C) -> C:
    """Let a dataclass or NamedTuple be part of a saved state; its fields are tensors, numbers, strings, containers of
    them, or other storable classes.
    """
    if not hasattr(kind, "__dataclass_fields__") and not hasattr(kind, "_fields"):
        raise TypeError(f"{kind.__name__} cannot be part of a state: it is neither a dataclass nor a NamedTuple")
    return _register(kind)


def register_model(model: str | type, config: C) -> C:
    """Let a configuration of the class `config` stand for the model that `model(config)` builds.

    `model` is a class that keeps its configuration as `model.config`, or its "module:name", which is imported when a
    model is first built.
    """
    configurable(config)
    name = model if isinstance(model, str) else name_of(model)
    before = _models.get(name_of(config))
    if before is not None and (before if isinstance(before, str) else name_of(before)) != name:
        raise ValueError(f"{name_of(config)} stands for {before} already; give {name} a configuration of its own")
    _models[name_of(config)] = model
    return config


def _register(kind: C) -> C:
    # A class defined anew, as in a notebook, takes the place of the old one.
    _kinds[name_of(kind)] = kind
    return kind


def find(name: object) -> type | None:
    """The class that a file calls by this name, if it may be named."""
    if not isinstance(name, str):
        return None
    module = name.partition(":")[0]
    if name not in _kinds and module in BUILT_IN:
        import_module(module)
    if name not in _kinds:
        # What knows nothing of files, such as the state of a scan, is registered by the module that stores it.
        for module in BUILT_IN:
            import_module(module)
        load_plugins()
    return _kinds.get(name)


def model_of(config: type) -> type | None:
    """The class of the model that a configuration of this class stands for, if it is one of a model."""
    model = _models.get(name_of(config)) if _kinds.get(name_of(config)) is config else None
    if isinstance(model, str):
        module, _, attribute = model.partition(":")
        return getattr(import_module(module), attribute)
    return model


def is_model_configuration(config: type) -> bool:
    """Whether configurations of this class stand for models."""
    return name_of(config) in _models and _kinds.get(name_of(config)) is config


def known() -> list[str]:
    """The names of all classes that are known by now."""
    return sorted(_kinds)


def known_models() -> list[str]:
    """The names of all configurations of models that are known by now."""
    return sorted(_models)


def load_plugins() -> None:
    """Import what installed packages bring."""
    global _plugins_loaded
    if _plugins_loaded:
        return
    _plugins_loaded = True
    for point in entry_points(group=PLUGINS):
        point.load()
