"""The one way to time something here: candidates in turn within one run, the best of several rounds.

Seconds on a shared machine drift; what lies between two candidates of the same round drifts together, so ratios hold.
"""

import time
from collections.abc import Callable, Mapping


def best_of(
    rounds: int, candidates: Mapping[str, Callable[[], object]], *, warm_up: bool = True, patience: float = float("inf")
) -> dict[str, float]:
    """Seconds of each candidate's best round; one more round in front warms up, unless told not to.

    A candidate whose first round takes longer than `patience` seconds is not run again: warming up is nothing to it.
    """
    best = dict.fromkeys(candidates, float("inf"))
    slow: set[str] = set()
    names = list(candidates)
    for round_number in range(0 if warm_up else 1, rounds + 1):
        # Another one first each time: who runs after a slow one finds cold caches.
        first = round_number % len(names)
        for name in names[first:] + names[:first]:
            run = candidates[name]
            if name in slow:
                continue
            start = time.perf_counter()
            run()
            seconds = time.perf_counter() - start
            if seconds > patience:
                slow.add(name)
            if round_number or seconds > patience:
                best[name] = min(best[name], seconds)
    return best
