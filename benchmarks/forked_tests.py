"""Tests run by forks of one process, each in a copy of the project.

Torch takes seconds to import, so this process imports all that the tests need from others once. It never imports the
project itself: each fork does, from its own copy.
"""

import ast
import contextlib
import importlib
import math
import os
import resource
import shutil
import signal
import sys
import tempfile
import time
import traceback
import warnings
from collections.abc import Callable, Generator, Iterable
from dataclasses import dataclass
from pathlib import Path

import pytest

MEMORY = 16 * 2**30
LEFT_OUT = shutil.ignore_patterns(".git", ".venv", "__pycache__", ".hypothesis", ".*_cache", "runs", "demo", "dist")
WAITING = 8
CANNOT_RUN = (4, 5, 70)
"""Exit codes: pytest was called wrongly, found no tests, or never came to run."""


class Tests:
    """In a fork: runs tests in an order of our own, and notes the seconds of a core that each of them takes."""

    def __init__(self, order: Iterable[str] | None = None) -> None:
        self.rank = None if order is None else {test: i for i, test in enumerate(order)}
        self.seconds: dict[str, float] = {}

    def pytest_collection_modifyitems(self, items: list[pytest.Item]) -> None:
        rank = self.rank
        if rank is not None:
            items[:] = sorted((item for item in items if item.nodeid in rank), key=lambda item: rank[item.nodeid])

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_protocol(self, item: pytest.Item) -> Generator[None, object, object]:
        before = _core_seconds()
        result = yield
        self.seconds[item.nodeid] = _core_seconds() - before
        return result

    def run(self, files: Iterable[str]) -> int:
        options = ["-x", "-q", "-n", "0", "-m", "not slow", "-p", "no:cacheprovider"]
        # What was imported before pytest began, it cannot rewrite, and need not.
        options += ["-W", "ignore::pytest.PytestAssertRewriteWarning"]
        # Else which examples are tried differs from one run to the next.
        options += ["--hypothesis-seed=0"] if "hypothesis" in sys.modules else []
        return int(pytest.main([*options, *files], plugins=[self]))


class Copy:
    """A copy of the project, in which one fork at a time runs tests."""

    def __init__(self, root: Path, place: Path) -> None:
        self.place, self.root, self.writes = place, place / "project", 0
        shutil.copytree(root, self.root, ignore=LEFT_OUT)

    def write(self, file: Path, content: bytes) -> None:
        self.writes += 1
        (self.root / file).write_bytes(content)
        # A compiled file is known by the size of its source and the second of its last change: no two are the same.
        os.utime(self.root / file, (10**9 + self.writes, 10**9 + self.writes))

    def fork(self, body: Callable[[], int], patience: float) -> int:
        with warnings.catch_warnings():
            # Later Pythons warn of threads in the parent, which has but one.
            warnings.simplefilter("ignore")
            pid = os.fork()
        if pid:
            return pid
        code = 70
        try:
            # The leader of a session is ended with all that it started.
            os.setsid()
            signal.signal(signal.SIGTERM, signal.SIG_DFL)
            log = os.open(self.place / "log", os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
            os.dup2(log, 1)
            os.dup2(log, 2)
            # A change may make a tensor huge, or remove what is not in a test's own folder.
            resource.setrlimit(resource.RLIMIT_AS, (MEMORY, MEMORY))
            if math.isfinite(patience):
                # Time on a core, not on the clock: a busy machine is not a change that was noticed.
                resource.setrlimit(resource.RLIMIT_CPU, (math.ceil(patience), resource.RLIM_INFINITY))
            home = self.place / "home"
            shutil.rmtree(home, ignore_errors=True)
            shutil.rmtree(self.root / ".hypothesis", ignore_errors=True)
            home.mkdir()
            os.environ |= {name: str(home) for name in ("HOME", "TMPDIR", "XDG_CACHE_HOME")}
            os.environ |= {"PYTHONPATH": str(self.root / "src"), "OMP_NUM_THREADS": "1"}
            tempfile.tempdir = None
            sys.path.insert(0, str(self.root / "src"))
            os.chdir(self.root)
            code = body()
        except BaseException:
            traceback.print_exc()
        finally:
            sys.stdout.flush()
            sys.stderr.flush()
            os._exit(code)

    def log(self) -> str:
        return (self.place / "log").read_text(errors="replace")


@dataclass
class Job:
    """Something for a fork to do, within so many seconds of a core, or `WAITING` times as many on the clock."""

    body: Callable[[], int]
    patience: float
    done: Callable[[int | None, str, float], None]
    """Told the exit code, or None if the fork took too long; what it printed; and its seconds."""
    change: tuple[Path, bytes, bytes] | None = None
    """A file, what it holds meanwhile, and what it holds afterwards."""


def run(jobs: Iterable[Job], copies: list[Copy]) -> None:
    """One job in each copy at a time."""
    waiting, free = iter(jobs), list(copies)
    running: dict[int, tuple[Job, Copy, float]] = {}
    try:
        while True:
            while free and (job := next(waiting, None)):
                copy = free.pop()
                if job.change:
                    copy.write(job.change[0], job.change[1])
                running[copy.fork(job.body, job.patience)] = job, copy, time.monotonic()
            if not running:
                return
            time.sleep(0.02)
            for pid, (job, copy, began) in list(running.items()):
                ended, status = os.waitpid(pid, os.WNOHANG)
                took = time.monotonic() - began
                if not ended and took < WAITING * job.patience:
                    continue
                _end(pid)
                if not ended:
                    os.waitpid(pid, 0)
                del running[pid]
                free.append(copy)
                if job.change:
                    copy.write(job.change[0], job.change[2])
                code = os.waitstatus_to_exitcode(status) if ended else None
                job.done(None if code == -signal.SIGXCPU else code, copy.log(), took)
    finally:
        for pid in running:
            _end(pid)


def _core_seconds() -> float:
    """Of this process and of those that it waited for: the same on a busy machine as on a quiet one."""
    return sum(os.times()[:4])


def _end(pid: int) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.killpg(pid, signal.SIGKILL)


def import_what_others_wrote(files: Iterable[Path], own: set[str]) -> None:
    """All that these files import, at their top or when used, but the project, of which each fork has its own copy."""
    names: set[str] = set()
    for file in files:
        for node in ast.walk(ast.parse(file.read_text())):
            match node:
                case ast.Import():
                    names |= {alias.name for alias in node.names}
                case ast.ImportFrom(module=str(module), level=0):
                    names.add(module)
                case _:
                    pass
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for name in sorted(names):
            if name.split(".")[0] not in own:
                with contextlib.suppress(Exception):
                    importlib.import_module(name)
