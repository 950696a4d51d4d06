"""Signals: one ends `scannable train` with a checkpoint and the exit code of that signal, a second SIGINT at once."""

import re
import signal
from pathlib import Path

import scannable.training.checkpoint as checkpoints
from benchmarks.faults.life import Life
from benchmarks.faults.tally import Tally
from benchmarks.faults.tiny_run import Reference, command_line, whole
from benchmarks.faults.watching import Aim

ONCE: dict[str, tuple[signal.Signals, Aim, str, int]] = {
    "SIGTERM in a step": (signal.SIGTERM, Aim("step", 13, 0), "stopped at step 13 of 60", 13),
    "SIGUSR1 in a step": (signal.SIGUSR1, Aim("step", 20, 0), "stopped at step 20 of 60", 20),
    "SIGINT in a step": (signal.SIGINT, Aim("step", 27, 0), "stopped at step 27 of 60", 27),
    # An evaluation at the first length has 2 batches.
    "SIGUSR1 in an evaluation": (signal.SIGUSR1, Aim("validation batch", 2, 0), "stopped at step 10 of 60", 10),
    "SIGINT in the test": (signal.SIGINT, Aim("test batch", 6, 0), "stopped in the test after step 60 of 60", 60),
}
"""The signal, when it comes, what the command says, and the step of the checkpoint that it leaves."""

TWICE: dict[str, Aim] = {
    "SIGINT twice in a step": Aim("step", 13, 0),
    "SIGINT twice in a save": Aim("saving", 3, 4),
    "SIGINT twice in an evaluation": Aim("validation batch", 2, 0),
}


def signals(
    place: Path,
    expected: Reference,
    tally: Tally,
    *,
    once: tuple[str, ...] = (*ONCE,),
    twice: tuple[str, ...] = (*TWICE,),
) -> None:
    """Send signals to runs that wait for them at an exact moment, and resume these."""
    for what in (*once, *twice):
        folder = place / what.replace(" ", "-")
        try:
            wrong = _not_stopped_at_once(folder, TWICE[what]) if what in TWICE else _badly_stopped(folder, *ONCE[what])
            wrong += _badly_resumed(folder, expected)
        except RuntimeError as error:
            wrong = [str(error)]
        tally.add("signals", what, wrong)


def _badly_stopped(folder: Path, number: signal.Signals, aim: Aim, message: str, step: int) -> list[str]:
    life = _signalled(folder, number, aim)
    life.let_go()
    code, said = life.wait(), " ".join(life.said().split())
    wrong = [] if code == 128 + number else [f"exit code {code}: {said[-300:]}"]
    if message not in said or not re.search(r"To go on: .*train faults .*--resume", said):
        wrong.append(f"it said {said[-300:]!r}")
    if checkpoints.steps(folder / "checkpoints")[-1:] != [step] or not whole(folder, step):
        wrong.append(f"no checkpoint of step {step}")
    if (folder / "result.json").exists():
        wrong.append("there is a result before the test has ended")
    return wrong


def _not_stopped_at_once(folder: Path, aim: Aim) -> list[str]:
    """The run is never let go: it can end only where it waits."""
    life = _signalled(folder, signal.SIGINT, aim)
    before = checkpoints.steps(folder / "checkpoints")
    life.send(signal.SIGINT)
    code, said = life.wait(), life.said()
    wrong = [] if code == 130 else [f"exit code {code}: {said[-300:]}"]
    if "stopped at" in said or "Traceback" in said:
        wrong.append(f"it said {said[-300:]!r}")
    if checkpoints.steps(folder / "checkpoints") != before:
        wrong.append("it saved a checkpoint")
    return wrong


def _signalled(folder: Path, number: signal.Signals, aim: Aim) -> Life:
    """A run that has heard a signal and waits."""
    life = Life(lambda: command_line("--out", str(folder)), folder.with_suffix(".log"), aim=aim)
    if not life.told():
        raise RuntimeError(f"the run never came to {aim}: {life.said()[-800:]}")
    life.send(number)
    if not life.told():
        raise RuntimeError(f"the run ended at {number.name} instead of hearing it: {life.said()[-800:]}")
    return life


def _badly_resumed(folder: Path, expected: Reference) -> list[str]:
    life = Life(lambda: command_line("--out", str(folder), "--resume"), folder.with_suffix(".log"))
    code = life.wait()
    return [f"resuming ended with {code}: {life.said()[-300:]}"] if code else expected.differences(folder)
