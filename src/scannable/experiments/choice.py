"""With which learning rate and optimizer a model is trained to the end: what a sweep of short runs took."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from scannable.experiments.laboratory import Trained
from scannable.experiments.scores import best_rate, progress

ADAMW = "adamw"
"""What is put behind the name of a model whose sweep tries AdamW as well."""


@dataclass(frozen=True)
class Chosen:
    """What a sweep took."""

    rate: float
    algorithm: str | None = None
    """None: the recipe's own."""


def choices(tried: Mapping[str, Mapping[float, Trained]]) -> dict[str, Chosen]:
    """The best rate of each model, and, where AdamW was tried as well, the better of both."""
    found: dict[str, Chosen] = {}
    for name in dict.fromkeys(name.removesuffix(f"-{ADAMW}") for name in tried):
        ways = {None: tried.get(name, {}), ADAMW: tried.get(f"{name}-{ADAMW}", {})}
        best = {way: best_rate(dict(runs)) for way, runs in ways.items() if runs}
        way = max(best, key=lambda way: progress(ways[way][best[way]]))
        found[name] = Chosen(best[way], way)
    return found


def swept_titles(titles: Mapping[str, str]) -> dict[str, str]:
    """Those of the models, and of each with AdamW."""
    return {**titles, **{f"{name}-{ADAMW}": f"{title}, AdamW" for name, title in titles.items()}}


def taken(chosen: Mapping[str, Chosen]) -> set[tuple[str, float]]:
    """What was taken as the names of runs in a sweep have it."""
    return {(f"{name}-{ADAMW}" if one.algorithm else name, one.rate) for name, one in chosen.items()}


def at_the_edge(
    chosen: Mapping[str, Chosen], rates: Mapping[str, Sequence[float]], titles: Mapping[str, str]
) -> list[str]:
    """A sentence that says which rates were taken although none beyond them was tried; nothing, if there are none."""
    found: list[str] = []
    for name, one in chosen.items():
        label = f"{name}-{ADAMW}" if one.algorithm else name
        for edge, which in ((max(rates[label]), "greatest"), (min(rates[label]), "least")):
            if one.rate == edge:
                found.append(f"{titles[label]} ({one.rate:g}, the {which})")
    if not found:
        return []
    return [f"Taken at the edge of what was tried, so that something beyond may be better still: {'; '.join(found)}."]
