"""All experiments by name: `scannable reproduce NAME`."""

from importlib import import_module
from typing import TYPE_CHECKING, Literal

from scannable.storage.configuration import ConfigurationError, nearest

if TYPE_CHECKING:
    from collections.abc import Sequence

    # A wrong name is told before torch is there, which takes longer to import than all else together.
    from scannable.experiments.laboratory import Laboratory

Name = Literal["s5", "mqar", "wikitext", "latency", "spd", "space", "corrected"]

ABOUT: dict[Name, str] = {
    "s5": "state tracking: error by length, far beyond the lengths in training",
    "mqar": "associative recall: error by length",
    "wikitext": "language modelling: perplexity against the chunk length",
    "latency": "time per token and held bytes while a stream grows",
    "spd": "measured work, depth and memory against n: the complexity classes",
    "space": "bytes kept for backward against n, c and the layers: the space of training",
    "corrected": "every departure from the paper as a switch, with the difference it makes; errata",
}

MODULES: dict[Name, str] = {
    "s5": "state_tracking",
    "mqar": "recall",
    "wikitext": "language_modelling",
    "latency": "latency",
    "spd": "complexity",
    "space": "training_space",
    "corrected": "corrected",
}


PARTS: dict[Name, tuple[str, ...]] = {
    "s5": ("psm", "opponents", "noise", "ablation", "longer", "generators", "seeds", "direct", "reading"),
    "mqar": ("sweep", "first", "seeds", "pairs"),
    "wikitext": ("sweep", "modern", "further", "paper", "longer", "seeds", "streams"),
}
"""What can be trained by itself, in the order in which all of it is."""


def checked_parts(chosen: "Sequence[Name]", parts: "Sequence[str] | None") -> tuple[str, ...] | None:
    """The parts that are asked for, if these experiments have them."""
    if parts is None:
        return None
    known = tuple(dict.fromkeys(part for name in chosen for part in PARTS.get(name, ())))
    for part in parts:
        if part not in known:
            raise ConfigurationError(f"{', '.join(chosen)} has no part {part!r:.60}{nearest(part, known)}")
    return tuple(parts)


def named(name: str) -> list[Name]:
    """The experiment of that name, or all of them."""
    if name != "all" and name not in ABOUT:
        raise ConfigurationError(f"there is no experiment {name!r:.60}{nearest(name, (*ABOUT, 'all'))}")
    return [known for known in ABOUT if name in (known, "all")]


def perform(name: Name, lab: "Laboratory") -> None:
    """Do one of them; its module is found late, since each brings its own libraries."""
    import_module(f"scannable.experiments.{MODULES[name]}").run(lab)
