"""SIGKILL at random moments, most of them aimed; every run is resumed to the end."""

import random
import shutil
import signal
import time
from collections import Counter
from pathlib import Path

import scannable.training.checkpoint as checkpoints
from benchmarks.faults.life import Life
from benchmarks.faults.tally import Tally
from benchmarks.faults.tiny_run import Reference, finish, train, whole
from benchmarks.faults.watching import MOMENTS, Aim

SAVING = ("saving", "between the renames")
WAYS = (
    "anywhere",
    "anywhere",
    "starting",
    "evaluating",
    "saving",
    "saving",
    "saving",
    "saving",
    "saving, any time",
    "renames",
    "renames",
    "testing",
    "finishing",
)
"""How a kill is aimed; one is chosen at random each time. Runs that are near their end have little left to save."""


def kills(
    count: int, place: Path, expected: Reference, tally: Tally, *, ways: tuple[str, ...] = WAYS, seed: int = 0
) -> Counter[str]:
    """Kill runs `count` times altogether, each up to six times, and let it finish; deaths by moment."""
    chance = random.Random(seed)
    deaths: Counter[str] = Counter()
    number = 0
    while deaths.total() < count:
        folder = place / f"killed-{number}"
        number += 1
        wrong: list[str] = []
        try:
            for _ in range(min(chance.randint(1, 6), count - deaths.total())):
                died = _one_kill(folder, expected.seconds, chance, ways, wrong)
                if died is None:
                    break
                deaths[died] += 1
            finish(folder)
            wrong += expected.differences(folder)
        except RuntimeError as error:
            wrong.append(str(error))
        tally.add("kills", "runs that end as if nothing had happened", wrong)
        if not wrong:
            shutil.rmtree(folder)
        progress = f"{deaths.total()} of {count}, {number} runs, {len(tally.failures)} failures"
        print(f"\rkills: {progress}", end="", flush=True)
    print()
    for moment in MOMENTS:
        tally.rows["kills", f"killed while {moment}".replace("while between", "between")] = [deaths[moment], 0]
    return deaths


def _one_kill(
    folder: Path, seconds: float, chance: random.Random, ways: tuple[str, ...], wrong: list[str]
) -> str | None:
    """Start or resume, and kill; the moment, or None if the run came to its end before."""
    way = chance.choice(ways)
    if way == "renames" and not _damage_the_newest(folder, chance):
        way = "saving"
    aim, span = _aim(way, chance, seconds)
    life = Life(lambda: train(folder), folder.with_suffix(".log"), aim=aim, slow=0.002 if span else 0.0)
    if life.told():
        time.sleep(chance.uniform(0, span))
        life.send(signal.SIGKILL)
    code = life.wait()
    if code == -signal.SIGKILL:
        if life.moment == "testing" and (folder / "result.json").exists():
            wrong.append("there is a result before the test has ended")
        return life.moment
    if code:
        wrong.append(f"a resumed run ended with {code}: {life.said()[-800:]}")
    return None


def _damage_the_newest(folder: Path, chance: random.Random) -> bool:
    """A checkpoint is replaced when the run comes again to a step whose checkpoint was damaged; False if the run would
    have no other to resume from.
    """
    there = checkpoints.steps(folder / "checkpoints")
    if sum(whole(folder, step) for step in there) < 2:
        return False
    damaged = checkpoints.path_of(folder / "checkpoints", there[-1]) / "model.safetensors"
    content = bytearray(damaged.read_bytes())
    content[chance.randrange(len(content))] ^= 1 << chance.randrange(8)
    damaged.write_bytes(content)
    return True


def _aim(way: str, chance: random.Random, seconds: float) -> tuple[Aim, float]:
    """Where the parent hears from the run, and within how many seconds after that it kills."""
    match way:
        case "anywhere":
            return Aim("starting"), seconds
        case "starting":
            return Aim("starting", 1, chance.randint(1, 5)), 0.0
        case "evaluating":
            # There are 2 at length 4, and 4 at length 8.
            return Aim("validation batch", chance.randint(1, 10), 0), 0.0
        case "saving, any time":
            return Aim("saving", chance.randint(1, 4)), 0.03
        case "renames":
            return Aim("between the renames", 1, chance.choice((0, 0, 1, 2))), 0.0
        case "testing":
            # 4 at length 8, and 7 at length 12.
            return Aim("test batch", chance.randint(1, 11), 0), 0.0
        case "finishing":
            return Aim("finishing", 1, chance.randint(0, 3)), 0.0
        case _:
            return Aim("saving", chance.randint(1, 4), chance.randint(0, 11)), 0.0
