"""`transformers serve` with a model of this library."""

import sys
from types import ModuleType

import transformers


def let_serve_find(model_class: type) -> None:
    """Put a class where `transformers serve` looks for it: by its name in the package `transformers`.

    That package may be in memory twice, because transformers imports itself anew for its processors, and serve keeps
    the one that it began with.
    """
    of_serve = [module for name, module in list(sys.modules.items()) if name.startswith("transformers.cli.")]
    for package in (transformers, *(vars(module).get("transformers") for module in of_serve)):
        if isinstance(package, ModuleType):
            setattr(package, model_class.__name__, model_class)
