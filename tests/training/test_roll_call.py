"""When an exchange fails, the error says because of whom; torchrun starts the run anew, and it ends as it would have."""

import json
import os
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

import pytest
from torch import distributed as c10d

from scannable.training import roll_call
from scannable.training.checkpoint import CheckpointError
from scannable.training.roll_call import LostRankError, RollCall, is_exchange

CLOSED = RuntimeError("[gloo/transport/tcp/pair.cc:547] Connection closed by peer [127.0.0.1]:1234")


@pytest.fixture
def store(monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.setattr(roll_call, "BEAT", 0.02)
    monkeypatch.setattr(roll_call, "SILENT", 0.3)
    monkeypatch.setattr(roll_call, "GRACE", 0.8)
    return c10d.HashStore()


def explained(store: Any, count: int = 2) -> BaseException:
    with RollCall(0, count, store) as call:
        call.doing = "at step 7"
        return call.explained(CLOSED)


def test_a_process_that_is_silent_is_gone(store: Any) -> None:
    error = explained(store)
    assert isinstance(error, LostRankError)
    assert "rank 1 of 2 is gone: nothing was heard for 0.3 s" in str(error)
    assert "this is rank 0, which was at step 7" in str(error)


def test_a_process_that_ended_says_why(store: Any) -> None:
    with pytest.raises(ZeroDivisionError), RollCall(1, 2, store) as call, call.explaining():
        raise ZeroDivisionError("its own mistake")
    assert "rank 1 of 2 has ended with ZeroDivisionError: its own mistake" in str(explained(store))


def test_a_process_that_lives_and_does_something_else_hangs(store: Any) -> None:
    done = threading.Event()

    def other() -> None:
        with RollCall(2, 3, store) as call:
            call.doing = "at step 6"
            done.wait(10)

    def another_that_waits() -> None:
        call = RollCall(1, 3, store)
        call._place = lambda: (True, "")  # pyright: ignore[reportAttributeAccessIssue]
        with call:
            done.wait(10)

    threads = [threading.Thread(target=each) for each in (other, another_that_waits)]
    for thread in threads:
        thread.start()
    time.sleep(0.1)
    error = str(explained(store, 3))
    done.set()
    for thread in threads:
        thread.join()
    assert "rank 2 of 3 is alive, but did not come to an exchange in time: at step 6, in " in error


def test_when_all_ended_because_of_each_other_the_error_stays(store: Any) -> None:
    RollCall(1, 2, store)._leave(CLOSED)
    assert explained(store) is CLOSED


def test_a_mistake_of_its_own_is_no_failed_exchange() -> None:
    assert not is_exchange(ValueError("timed out"))
    assert not is_exchange(RuntimeError("mat1 and mat2 shapes cannot be multiplied"))
    assert is_exchange(CLOSED)
    saving = CheckpointError("a checkpoint could not be written")
    saving.__cause__ = CLOSED
    assert is_exchange(saving)


SCRIPT = """\
import os, signal, sys, threading, time
from pathlib import Path
sys.path.insert(0, sys.argv[1])
import torch; torch.set_num_threads(1)
from training_cases import *
from scannable.training.processes import restarted
if sys.argv[3] == "killed" and os.environ["RANK"] == "1" and not restarted():
    one_step = Run._one_step
    def lethal(run, length):
        if run.progress.step == 5:
            os.kill(os.getpid(), signal.SIGKILL)
        return one_step(run, length)
    Run._one_step = lethal
from scannable.cli.commands import train
from unittest.mock import patch
recipe = recipe_of(steps=9, checkpoint_every=2)
with patch.object(train, "recipe_named", lambda name: recipe), patch.object(train, "about", lambda name: name):
    train.train(["tiny", "--out", sys.argv[2], "--parallel.sequence", "2", "--parallel.shard", "--parallel.timeout", "120"])
"""


@pytest.mark.slow
def test_torchrun_starts_a_run_anew_which_ends_as_it_would_have(tmp_path: Path) -> None:
    script = tmp_path / "run.py"
    script.write_text(SCRIPT)
    for what in ("undisturbed", "killed"):
        command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
        where = ["--max-restarts", "1", str(script), str(Path(__file__).parent.parent), str(tmp_path / what), what]
        environment = os.environ | {"OMP_NUM_THREADS": "1"}
        done = subprocess.run(
            [*command, *where], capture_output=True, text=True, env=environment, timeout=300, check=False
        )
        assert done.returncode == 0, done.stderr[:2500] + done.stdout[-1500:]
        if what == "killed":
            assert "rank 1 of 2 is gone" in done.stderr
    one, other = tmp_path / "undisturbed", tmp_path / "killed"
    assert json.loads((one / "result.json").read_bytes()) == json.loads((other / "result.json").read_bytes())
    for name in ("model", "optimizer", "average"):
        mine, theirs = (path / "checkpoints" / "step-00000009" / f"{name}.safetensors" for path in (one, other))
        assert mine.read_bytes() == theirs.read_bytes()
