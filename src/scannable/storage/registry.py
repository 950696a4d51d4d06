"""Which classes a file may name, each by its module and name, as in `scannable.tasks.groups:GroupTask`.

A file never decides what is imported: only modules of this package that are listed here, and those that an installed
package brings through the entry points `scannable.plugins`, are looked into. So a class is found whether its module
happens to have been imported or not, and two classes of one name never get into each other's way.

A class that is defined anew under its old name, as in a notebook, takes the old one's place; what was made from the
old one is refused. A class of a script or notebook is `__main__:Name`, and found only where that is running.
"""

import dataclasses
import sys
import warnings
from importlib import import_module
from importlib.metadata import entry_points
from typing import TypeVar

C = TypeVar("C", bound=type)

PLUGINS = "scannable.plugins"
"""The group of entry points through which a package brings models, tasks and recipes: each names a module."""

BUILT_IN = (
    "scannable.models.lm_state",
    "scannable.models.transformer_psm_config",
    "scannable.models.layer_options",
    "scannable.models.lm_config",
    "scannable.baselines.gpt2",
    "scannable.baselines.transformers_mamba",
    "scannable.tasks.groups",
    "scannable.tasks.mqar",
    "scannable.tasks.text",
    "scannable.recipes.aids",
    "scannable.experiments.as_printed_config",
    "scannable.training.recipe",
)
"""Modules of this package that register classes when they are imported."""

KIND = "kind"
"""The name under which a file says of what class a record is; no field can have it."""

_kinds: dict[str, type] = {}
_models: dict[str, str | type] = {}
_plugins_loaded = False


def name_of(kind: type) -> str:
    """How a file calls a class."""
    module = kind.__module__
    if module == "__main__":
        # A module that is run by `python -m` has a name that others can import it by.
        spec = getattr(sys.modules[module], "__spec__", None)
        module = spec.name if spec is not None else module
    return f"{module}:{kind.__qualname__}"


def is_record(kind: object) -> bool:
    """Whether this is a dataclass or NamedTuple."""
    return isinstance(kind, type) and (
        dataclasses.is_dataclass(kind) or (issubclass(kind, tuple) and hasattr(kind, "_fields"))
    )


def configurable(kind: C) -> C:
    """Let a frozen dataclass be part of a saved configuration, of a recipe for example.

    >>> @sc.configurable
    ... @dataclass(frozen=True)
    ... class Copy:
    ...     '''The task of repeating what came `delay` tokens before.'''
    ...
    ...     delay: int = 4
    """
    settings = getattr(kind, "__dataclass_params__", None)
    if settings is None or not settings.frozen:
        raise TypeError(f"{kind.__name__} cannot be part of a configuration: it is no frozen dataclass")
    return _register(kind)


def storable(kind: C) -> C:
    """Let a dataclass or NamedTuple be part of a saved state; its fields are tensors, numbers, strings, containers of
    them, or other storable classes.

    >>> @sc.storable
    ... class Mean(NamedTuple):
    ...     total: Tensor
    ...     count: Tensor
    >>> def agg(older: Mean, newer: Mean) -> Mean:
    ...     return Mean(older.total + newer.total, older.count + newer.count)
    >>> _, state = sc.extend(agg, sc.empty(Mean(0.0, 0)), Mean(torch.arange(5.0), torch.ones(5, dtype=torch.int64)))
    >>> sc.save_state(state, folder / "stream")
    >>> sc.load_state(folder / "stream").prefix()
    Mean(total=tensor(10.), count=tensor(5))
    """
    if not is_record(kind):
        raise TypeError(f"{kind.__name__} cannot be part of a state: it is neither a dataclass nor a NamedTuple")
    return _register(kind)


def register_model(model: str | type, config: C) -> C:
    """Let a configuration of the class `config` stand for the model that `model(config)` builds.

    `config` is a frozen dataclass. `model` is a class that keeps its configuration as `model.config`, or its
    "module:name", which is imported when a model is first built.

    >>> @dataclass(frozen=True)
    ... class BagConfig:
    ...     vocab_size: int
    ...     width: int = 8
    >>> class Bag(nn.Module):
    ...     def __init__(self, config: BagConfig) -> None:
    ...         super().__init__()
    ...         self.config = config
    ...         self.embedding = nn.Embedding(config.vocab_size, config.width)
    >>> _ = sc.register_model(Bag, BagConfig)
    >>> sc.save_model(Bag(BagConfig(5)), folder / "bag")
    >>> sc.load_model(folder / "bag").config
    BagConfig(vocab_size=5, width=8)
    """
    name = model if isinstance(model, str) else name_of(model)
    before = _models.get(name_of(config)) if _kinds.get(name_of(config)) is config else None
    if before is not None and (before if isinstance(before, str) else name_of(before)) != name:
        raise ValueError(f"{name_of(config)} stands for {before} already; give {name} a configuration of its own")
    configurable(config)
    _models[name_of(config)] = model
    return config


def _register(kind: C) -> C:
    if "<locals>" in kind.__qualname__:
        raise TypeError(
            f"{kind.__qualname__} is defined inside a function, where a reader could not find it; define it at the top "
            "level of a module"
        )
    if KIND in getattr(kind, "_fields", getattr(kind, "__dataclass_fields__", ())):
        raise TypeError(f"{kind.__name__} has a field {KIND!r}, under which files keep its class; rename it")
    _kinds[name_of(kind)] = kind
    return kind


def find(name: object) -> type | None:
    """The class that a file calls by this name, if it may be named."""
    if not isinstance(name, str):
        return None
    # The module of the class itself comes first; the others are looked into because what knows nothing of files, such
    # as the state of a scan, is registered by a module that stores it.
    module = name.partition(":")[0]
    for one in (*(one for one in BUILT_IN if one == module), *BUILT_IN):
        if name in _kinds:
            break
        import_module(one)
    if name not in _kinds:
        load_plugins()
    return _kinds.get(name)


def why_unknown(kind: type) -> str | None:
    """What is wrong with storing objects of this class, as the end of a sentence; None if nothing is."""
    found = find(name_of(kind))
    if found is kind:
        return None
    if found is None:
        return f"{name_of(kind)} is not registered"
    return f"{name_of(kind)} was defined anew after this one was made; make it again from the new class"


def model_of(config: type) -> type | None:
    """The class of the model that a configuration of this class stands for, if it is one of a model."""
    model = _models.get(name_of(config)) if find(name_of(config)) is config else None
    if isinstance(model, str):
        module, _, attribute = model.partition(":")
        return getattr(import_module(module), attribute)
    return model


def is_model_configuration(config: type) -> bool:
    """Whether configurations of this class stand for models."""
    return find(name_of(config)) is config and name_of(config) in _models


def known() -> list[str]:
    """The names of all classes that a file may name."""
    _load_all()
    return sorted(_kinds)


def known_models() -> list[str]:
    """The names of all configurations of models."""
    _load_all()
    return sorted(_models)


def load_plugins() -> None:
    """Import what installed packages bring; one that fails is named in a warning, and the others are still there."""
    global _plugins_loaded
    if _plugins_loaded:
        return
    _plugins_loaded = True
    for point in entry_points(group=PLUGINS):
        try:
            point.load()
        except (Exception, SystemExit) as error:
            package = f" of the package {point.dist.name}" if point.dist else ""
            warnings.warn(
                f"the plug-in {point.name!r} ({point.value}{package}) could not be imported, so what it brings is "
                f"missing: {error!r:.200}; mend or uninstall it",
                stacklevel=2,
            )


def _load_all() -> None:
    for module in BUILT_IN:
        import_module(module)
    load_plugins()
