"""A small slice of benchmarks/faults.py: kills, damage, full disks and signals."""

import importlib.util
import signal
import sys
from pathlib import Path
from typing import Any

import pytest

BENCHMARK = Path(__file__).parents[2] / "benchmarks" / "faults.py"


def load() -> Any:
    spec = importlib.util.spec_from_file_location("faults", BENCHMARK)
    assert spec and spec.loader
    module = importlib.util.module_from_spec(spec)
    # Where dataclasses look for the module that they are in.
    sys.modules["faults"] = module
    spec.loader.exec_module(module)
    return module


faults = load()


@pytest.fixture(scope="module")
def reference(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, float]:
    """The run that nothing happens to, and its seconds."""
    folder = tmp_path_factory.mktemp("faults") / "reference"
    return folder, faults.reference(folder)


@pytest.fixture
def tally() -> Any:
    return faults.Tally()


def test_a_run_that_is_killed_at_any_moment_ends_as_if_nothing_had_happened(
    tmp_path: Path, reference: tuple[Path, float], tally: Any
) -> None:
    # These are aimed by what the run does; the clock has no part in it.
    ways = ("starting", "evaluating", "saving", "saving", "saving", "renames", "finishing")
    deaths = faults.kills(8, tmp_path, *reference, tally, ways=ways, seed=2)
    assert tally.failures == []
    assert deaths.total() == 8
    assert sum(deaths[moment] for moment in faults.SAVING) >= 4


def test_a_damaged_checkpoint_is_refused_and_the_one_before_is_taken(
    tmp_path: Path, reference: tuple[Path, float], tally: Any
) -> None:
    resumed = faults.corruptions(60, tmp_path, reference[0], tally)
    assert tally.failures == []
    assert resumed == 3


def test_a_save_goes_on_beside_a_damaged_checkpoint_of_a_later_step(
    tmp_path: Path, reference: tuple[Path, float]
) -> None:
    folder = tmp_path / "run"
    faults.stopped_at(folder, 41)
    (folder / "checkpoints" / "step-00000041").rename(folder / "checkpoints" / "step-00000070")
    assert "step-00000070: MANIFEST.json is not what was written" in faults.finish(folder)
    assert faults.differences(folder, reference[0]) == []


def test_a_disk_that_is_full_leaves_the_last_checkpoint_and_says_what_to_do(
    tmp_path: Path, reference: tuple[Path, float], tally: Any
) -> None:
    faults.file_limits(tmp_path, reference[0], tally)
    assert tally.failures == []
    assert [tried for tried, _ in tally.rows.values()] == [1, 1, 1]


def test_a_signal_saves_and_exits_with_its_code_and_a_second_one_stops_at_once(
    tmp_path: Path, reference: tuple[Path, float], tally: Any
) -> None:
    faults.signals(tmp_path, reference[0], tally, (signal.SIGTERM,), twice=True)
    assert tally.failures == []
    assert len(tally.rows) == 3
