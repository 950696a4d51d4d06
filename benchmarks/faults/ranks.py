"""Runs over several processes, one of which is killed, stopped or hangs: the others must end by themselves, within a
stated time and with its name, and what is started anew must end as if nothing had happened.

This process does what torchrun does: it holds the store, starts all ranks, and after a fault all of them once more.
"""

import os
import random
import shutil
import signal
import threading
import time
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any

from rich.console import Console
from torch.distributed import TCPStore
from torch.distributed.fsdp import fully_shard

import scannable.training.checkpoint as checkpoints
from benchmarks.faults.life import Life
from benchmarks.faults.tally import Tally
from benchmarks.faults.tiny_run import RECIPE, Reference
from scannable.training.loop import Run
from scannable.training.parallel import Parallel
from scannable.training.roll_call import GRACE, SILENT
from scannable.training.shard_file import ShardWriter

TIMEOUT = 5.0
"""Seconds that ranks wait for each other."""
LIMIT = TIMEOUT + GRACE + SILENT + 20
"""Seconds after a fault within which all others must have ended; the last ones are for a busy machine."""
LAYOUTS = (
    Parallel(2, 1, shard=True, timeout=TIMEOUT),
    Parallel(1, 2, shard=True, timeout=TIMEOUT),
    Parallel(1, 2, timeout=TIMEOUT),
    Parallel(1, 3, shard=True, timeout=TIMEOUT),
)
IMPORTED = fully_shard
"""By this process, so that no fork has to."""
WAYS = ("killed", "stopped", "hung")
MOMENTS = ("anywhere", "anywhere", "saving")


@dataclass(frozen=True)
class Fault:
    """What happens to one rank, and when."""

    rank: int
    way: str
    moment: str
    after: float
    """Seconds after the start; or the number of the checkpoint in which it happens."""

    def arm(self) -> None:
        """In the process that it happens to."""
        if self.moment == "anywhere":
            if self.way == "hung":
                # In the main thread, wherever Python next looks for signals.
                signal.signal(signal.SIGALRM, lambda *_: self._happen())
                signal.setitimer(signal.ITIMER_REAL, self.after)
            else:
                threading.Thread(target=lambda: (time.sleep(self.after), self._happen()), daemon=True).start()
            return
        owner: Any = ShardWriter
        write, calls = owner.write_data, iter(range(10**6))

        def write_data(*arguments: Any) -> Any:
            if next(calls) == int(self.after):
                self._happen()
            return write(*arguments)

        owner.write_data = write_data

    def _happen(self) -> None:
        if self.way == "hung":
            while True:
                time.sleep(0.1)
        os.kill(os.getpid(), signal.SIGKILL if self.way == "killed" else signal.SIGSTOP)


def ranks(count: int, place: Path, tally: Tally, *, seed: int = 0) -> None:
    """Let `count` faults happen to runs of all layouts; each run is started anew until it has come to its end."""
    chance = random.Random(seed)
    references = {layout: _reference(layout, place / f"ranks-{i}") for i, layout in enumerate(LAYOUTS)}
    happened = number = 0
    while happened < count:
        layout = chance.choice(LAYOUTS)
        folder, wrong = place / f"lost-{number}", list[str]()
        number += 1
        faults, attempt = list[str](), 0
        for _ in range(chance.randint(1, 3)):
            fault = _fault(layout, references[layout].seconds, chance)
            what = _one_fault(folder, layout, attempt, fault, wrong)
            attempt += 1
            if what is None:
                break
            faults.append(what)
            happened += 1
        finished = _start(folder, layout, attempt, None)
        codes = [life.wait() for life in finished]
        if any(codes):
            wrong.append(f"what was started anew ended with {codes}: {finished[0].said()[-500:]}")
        else:
            wrong += references[layout].differences(folder)
        for what in faults:
            tally.add("ranks", what, [])
        shape = f"{layout.data} x {layout.sequence}, {'sharded' if layout.shard else 'replicated'}"
        tally.add("ranks", f"runs that end as if nothing had happened, {shape}", wrong)
        if not wrong:
            shutil.rmtree(folder)
        print(f"\rranks: {happened} of {count}, {number} runs, {len(tally.failures)} failures", end="", flush=True)
    print()


def _fault(layout: Parallel, seconds: float, chance: random.Random) -> Fault:
    moment = chance.choice(MOMENTS) if layout.shard else "anywhere"
    size = (layout.data or 1) * layout.sequence
    # Three files a checkpoint, and a checkpoint every five steps.
    after = chance.uniform(0.05, seconds) if moment == "anywhere" else chance.randint(0, 30)
    return Fault(chance.randrange(size), chance.choice(WAYS), moment, after)


def _one_fault(folder: Path, layout: Parallel, attempt: int, fault: Fault, wrong: list[str]) -> str | None:
    """Start, and see the fault happen; what it was, or None if the run had ended before."""
    lives = _start(folder, layout, attempt, fault)
    other = [life for rank, life in enumerate(lives) if rank != fault.rank]
    began = time.monotonic()
    codes = [_ended(life, began + 60 + LIMIT) for life in other]
    lives[fault.rank].send(signal.SIGKILL)
    lives[fault.rank].wait()
    what = f"{fault.way} {'while saving' if fault.moment == 'saving' else 'anywhere'}"
    if None in codes:
        wrong.append(f"{what}: {codes.count(None)} ranks hang {LIMIT:.0f} s after rank {fault.rank} was {fault.way}")
        return what
    if all(code == 0 for code in codes):
        return None
    for life in other:
        if f"rank {fault.rank} of " not in life.error() and "rank 0 or its machine" not in life.error():
            wrong.append(f"{what}: a rank ended without the name of rank {fault.rank}: {life.said()[-600:]}")
    damaged = [step for step in checkpoints.steps(folder / "checkpoints") if not _whole(folder, step)]
    wrong += [f"{what}: the checkpoint of step {step} is there and not whole" for step in damaged]
    return what


def _ended(life: Life, deadline: float) -> int | None:
    """The exit code, or None for a rank that had to be killed."""
    while time.monotonic() < deadline:
        if life.finished():
            return life.wait()
        time.sleep(0.05)
    life.send(signal.SIGKILL)
    life.wait()
    return None


def _whole(folder: Path, step: int) -> bool:
    try:
        checkpoints.read(checkpoints.path_of(folder / "checkpoints", step))
    except checkpoints.CheckpointError:
        return False
    return True


def _start(folder: Path, layout: Parallel, attempt: int, fault: Fault | None) -> list[Life]:
    size = (layout.data or 1) * layout.sequence
    store = TCPStore("127.0.0.1", 0, is_master=True, timeout=timedelta(seconds=60), wait_for_workers=False)

    def body(rank: int) -> None:
        os.environ.update(
            RANK=str(rank),
            LOCAL_RANK=str(rank),
            WORLD_SIZE=str(size),
            MASTER_ADDR="127.0.0.1",
            MASTER_PORT=str(store.port),
            TORCHELASTIC_USE_AGENT_STORE="True",
            TORCHELASTIC_RESTART_COUNT=str(attempt),
        )
        if fault is not None and fault.rank == rank:
            fault.arm()
        Run(RECIPE, folder, console=Console(width=1000), parallel=layout).train(resume=attempt > 0)

    lives = [Life(lambda rank=rank: body(rank), folder.with_suffix(f".{rank}.log")) for rank in range(size)]
    for life in lives:
        life.store = store  # pyright: ignore[reportAttributeAccessIssue]  (it lives as long as they do)
    return lives


def _reference(layout: Parallel, folder: Path) -> Reference:
    began = time.monotonic()
    lives = _start(folder, layout, 0, None)
    if any(life.wait() for life in lives):
        raise RuntimeError(f"the reference failed: {lives[0].said()}")
    return Reference(folder, time.monotonic() - began)
