"""The one way to time something here: candidates in turn within one run, the best of several rounds.

Seconds on a shared machine drift; what lies between two candidates of the same round drifts together, so ratios hold.
"""

import csv
import time
from collections.abc import Callable, Mapping
from pathlib import Path


def best_of(rounds: int, candidates: Mapping[str, Callable[[], object]]) -> dict[str, float]:
    """Seconds of each candidate's best round; one more round in front warms up."""
    best = dict.fromkeys(candidates, float("inf"))
    for round_number in range(rounds + 1):
        for name, run in candidates.items():
            start = time.perf_counter()
            run()
            seconds = time.perf_counter() - start
            if round_number:
                best[name] = min(best[name], seconds)
    return best


def write_csv(path: Path, header: list[str], rows: list[list[object]]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(header)
        writer.writerows(rows)
    print(f"written: {path}")
