"""Which process is missing, when an exchange between processes fails.

An error of a collective says that it failed, not because of whom. So every process leaves word in the store that holds
them together, once a second and from a thread of its own: that it lives, and what its main thread is doing. Whoever
fails says so too, and then looks at the others:

    silent     nothing was heard of it any more: it was killed or stopped, or its machine is gone
    ended      it says why; the first cause is one that is no failed exchange
    elsewhere  it lives, but does something else than wait for the others: it hangs

No clocks are compared: a process is silent if its count does not rise while another one looks.
"""

import json
import os
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from types import TracebackType
from typing import Any

from torch import distributed as c10d

from scannable.training.run_folder import TrainingError

BEAT = 0.5
"""Seconds between two words of a process."""
SILENT = 4.0
"""Seconds without one after which it is taken to be gone."""
GRACE = 15.0
"""Seconds in which the others may still end by themselves, before one that lives is said to hang."""
EXCHANGES = ("gloo", "nccl", "connection", "timed out", "timeout", "socket", "c10d", "store", "peer", "collective")
"""Words in the errors of an exchange that failed."""


class LostRankError(TrainingError):
    """Another process is gone, hangs, or has ended with an error; the message names it."""


@dataclass
class _Word:
    """What was last heard of a process, and when that was."""

    count: int
    heard: float
    waits: bool
    where: str


class RollCall:
    """The processes of a run, and what each is doing; `with RollCall(...)` keeps this one among them.

    Args:
        rank, count: this process, and how many there are.
        store: that all of them have; None if this one is alone.
    """

    def __init__(self, rank: int = 0, count: int = 1, store: Any = None) -> None:
        self.rank, self.count = rank, count
        self.doing: str = "starting"
        self._store: Any = None if store is None else c10d.PrefixStore("roll-call", store)
        self._main = threading.get_ident()
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._beat, name="roll call", daemon=True)

    def __enter__(self) -> "RollCall":
        if self._store is not None:
            self._thread.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None) -> None:
        if self._store is None:
            return
        self._stop.set()
        self._thread.join(5)

    @contextmanager
    def explaining(self) -> Iterator[None]:
        """Errors of exchanges inside name the process that was missing."""
        try:
            yield
        except Exception as error:
            explained = self.explained(error)
            if explained is error:
                if not isinstance(error, LostRankError):
                    self._leave(error)
                raise
            raise explained from error

    def explained(self, error: BaseException) -> BaseException:
        """The error to raise: the same, or, if an exchange failed, one that names who was missing from it."""
        if self._store is None or not is_exchange(error):
            return error
        self._leave(error)
        try:
            missing = self._look()
        except Exception as lost:
            return LostRankError(
                f"the store that holds the processes together is gone ({_line(lost)}): rank 0 or its machine"
            )
        return (
            error if missing is None else LostRankError(f"{missing}; this is rank {self.rank}, which was {self.doing}")
        )

    # What this process says.

    def _beat(self) -> None:
        number = 0
        while not self._stop.is_set():
            number += 1
            waits, where = self._place()
            try:
                self._store.set(f"beat/{self.rank}", json.dumps([number, waits, f"{self.doing}{where}"]))
            except Exception:
                return  # whoever looks will say that the store is gone
            self._stop.wait(BEAT)

    def _place(self) -> tuple[bool, str]:
        """Whether the main thread waits for others, and where it is."""
        frame, waits, where = sys._current_frames().get(self._main), False, ""
        for _ in range(12):
            if frame is None:
                break
            name = frame.f_code.co_filename
            waits = waits or f"{os.sep}torch{os.sep}distributed{os.sep}" in name
            where = where or f", in {frame.f_code.co_name} ({os.path.basename(name)}:{frame.f_lineno})"
            frame = frame.f_back
        return waits, where

    def _leave(self, error: BaseException) -> None:
        if self._store is None:
            return
        try:
            cause = "" if is_exchange(error) else f"{type(error).__name__}: {_line(error)}"
            self._store.set(f"ended/{self.rank}", cause)
        except Exception:
            return

    # What the others said.

    def _look(self) -> str | None:
        """Who is missing, in words; None if nobody can be named."""
        words: dict[int, _Word] = {}
        began = time.monotonic()
        while True:
            now = time.monotonic()
            causes = {rank: self._cause(rank) for rank in range(self.count) if rank != self.rank}
            for rank, cause in causes.items():
                if cause:
                    return f"rank {rank} of {self.count} has ended with {cause}"
                if cause is None:
                    self._hear(rank, words, now)
            left = [rank for rank, cause in causes.items() if cause is None]
            silent = [rank for rank in left if now - words[rank].heard > SILENT]
            if silent and (len(silent) == len(left) or now - began > GRACE):
                why = "killed, stopped, or its machine is down"
                return f"{self._named(silent)} gone: nothing was heard for {SILENT:g} s ({why})"
            if not left and now - began > SILENT:
                return None
            if left and now - began > GRACE:
                elsewhere = [rank for rank in left if not words[rank].waits] or left
                places = ", ".join(f"{words[rank].where}" for rank in elsewhere)
                return f"{self._named(elsewhere)} alive, but did not come to an exchange in time: {places}"
            time.sleep(BEAT / 2)

    def _cause(self, rank: int) -> str | None:
        """Why a process has ended; "" if because of others, None if it has not."""
        key = f"ended/{rank}"
        return self._store.get(key).decode() if self._store.check([key]) else None

    def _hear(self, rank: int, words: dict[int, _Word], now: float) -> None:
        key = f"beat/{rank}"
        count, waits, where = (
            json.loads(self._store.get(key)) if self._store.check([key]) else (0, False, "not started")
        )
        if rank not in words or words[rank].count != count:
            words[rank] = _Word(count, now, waits, where)
        else:
            words[rank].waits, words[rank].where = waits, where

    def _named(self, ranks: list[int]) -> str:
        return (
            f"rank {ranks[0]} of {self.count} is"
            if len(ranks) == 1
            else f"ranks {', '.join(map(str, ranks))} of {self.count} are"
        )


def is_exchange(error: BaseException | None) -> bool:
    """Whether an error, or what it came from, is that of an exchange between processes."""
    while error is not None:
        if isinstance(error, c10d.DistError):
            return True
        # Most come as plain RuntimeErrors; what others raise knows what it says.
        plain = type(error) is RuntimeError or type(error).__name__ == "CheckpointException"
        if plain and any(word in str(error).lower() for word in EXCHANGES):
            return True
        # Cleaning up after it may have failed in turn.
        error = error.__cause__ or error.__context__
    return False


def _line(error: BaseException) -> str:
    return " ".join(str(error).split())[:300]
