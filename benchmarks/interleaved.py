"""The one way to time something here: candidates in turn within one run, the best of several rounds.

Seconds on a shared machine drift; what lies between two candidates of the same round drifts together, so ratios hold.
"""

import time
from collections.abc import Callable, Mapping


def best_of(rounds: int, candidates: Mapping[str, Callable[[], object]], *, warm_up: bool = True) -> dict[str, float]:
    """Seconds of each candidate's best round; one more round in front warms up, unless told not to."""
    best = dict.fromkeys(candidates, float("inf"))
    for round_number in range(0 if warm_up else 1, rounds + 1):
        for name, run in candidates.items():
            start = time.perf_counter()
            run()
            seconds = time.perf_counter() - start
            if round_number:
                best[name] = min(best[name], seconds)
    return best
