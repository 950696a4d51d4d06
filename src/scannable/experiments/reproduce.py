"""All experiments by name: `scannable reproduce NAME`."""

from importlib import import_module
from typing import Literal

from scannable.experiments.laboratory import Laboratory

Name = Literal["s5", "mqar", "wikitext", "latency", "spd"]

ABOUT: dict[Name, str] = {
    "s5": "state tracking: error by length, far beyond the lengths in training",
    "mqar": "associative recall: error by length",
    "wikitext": "language modelling: perplexity against the chunk length",
    "latency": "time per token and held bytes while a stream grows",
    "spd": "measured work, depth and memory against n: the complexity classes",
}


def perform(name: Name, lab: Laboratory) -> None:
    """Do one of them; its module is found late, since each brings its own libraries."""
    import_module(f"scannable.experiments.{name}").run(lab)
