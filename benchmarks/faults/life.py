"""A run in a process of its own, and what its parent can see of it and do to it.

Every run is a fork of this process, which has imported everything already.
"""

import mmap
import os
import signal
import sys
import traceback
import warnings
from collections.abc import Callable
from pathlib import Path
from select import select

from benchmarks.faults.watching import MOMENTS, PATIENCE, Aim, Watcher


class Life:
    """A fork that does `body` and writes to `log`; with an `aim` it is watched.

    Args:
        body: what it does.
        log: where its output goes.
        aim: when to tell the parent.
        slow: seconds before each system call of a watched run that changes the disk.
    """

    def __init__(self, body: Callable[[], object], log: Path, *, aim: Aim | None = None, slow: float = 0.0) -> None:
        self.log = log
        self.page = mmap.mmap(-1, mmap.PAGESIZE)
        self.hears, tell = os.pipe()
        let_go, self.lets_go = os.pipe()
        sys.stdout.flush()
        sys.stderr.flush()
        with warnings.catch_warnings():
            # Later Pythons warn of threads in the parent; the fork has but its own and never meets theirs.
            warnings.simplefilter("ignore")
            self.pid = os.fork()
        if self.pid:
            os.close(tell)
            os.close(let_go)
            return
        code = 1
        try:
            _write_to(log)
            if aim is not None:
                Watcher(self.page, tell, let_go, aim, slow)
            body()
            code = 0
        except SystemExit as leaving:
            code = leaving.code if isinstance(leaving.code, int) else int(leaving.code is not None)
            if isinstance(leaving.code, str):
                print(leaving.code)
        except BaseException as error:
            traceback.print_exc()
            print(f"\nERROR {type(error).__name__}: {error}")
        finally:
            os._exit(code)

    def told(self) -> bool:
        """Wait until the run is where it was aimed at, or has heard a signal; False if it ended before."""
        ready, _, _ = select([self.hears], [], [], PATIENCE)
        if not ready:
            self.send(signal.SIGKILL)
            self.wait()
            raise RuntimeError(f"a run hangs; it said: {self.said()[-500:]}")
        return os.read(self.hears, 1) == b"!"

    def send(self, number: int) -> None:
        os.kill(self.pid, number)

    def let_go(self) -> None:
        """A run that waits where it was aimed at goes on."""
        os.write(self.lets_go, b"!")

    def wait(self) -> int:
        """The exit code; negative after a signal."""
        while self.told():
            pass
        _, status = os.waitpid(self.pid, 0)
        os.close(self.hears)
        os.close(self.lets_go)
        return os.waitstatus_to_exitcode(status)

    def finished(self) -> bool:
        """Whether it has ended, without waiting for it; `wait` has the code."""
        return os.waitid(os.P_PID, self.pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is not None

    @property
    def moment(self) -> str:
        """The last one that the run came to."""
        return MOMENTS[self.page[0]]

    def said(self) -> str:
        return self.log.read_text()

    def error(self) -> str:
        """The type and message of the exception that ended it, or nothing."""
        found = self.said().rpartition("\nERROR ")
        return found[2].strip() if found[1] else ""


def _write_to(log: Path) -> None:
    output = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o644)
    os.dup2(output, 1)
    os.dup2(output, 2)
    sys.stdout = open(1, "w", buffering=1, closefd=False)  # noqa: SIM115
    sys.stderr = open(2, "w", buffering=1, closefd=False)  # noqa: SIM115
