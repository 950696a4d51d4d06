"""A small slice of `python -m benchmarks.faults`: kills, damage, changed configurations, full disks and signals."""

from pathlib import Path

import pytest

from benchmarks.faults.changes import FORCED, KILLS, change
from benchmarks.faults.corruptions import corruptions
from benchmarks.faults.disks import file_limits
from benchmarks.faults.kills import SAVING, kills
from benchmarks.faults.signals import signals
from benchmarks.faults.tally import Tally
from benchmarks.faults.tiny_run import Reference, finish, reference, stopped_at


@pytest.fixture(scope="module")
def expected(tmp_path_factory: pytest.TempPathFactory) -> Reference:
    """The run that nothing happens to."""
    return reference(tmp_path_factory.mktemp("faults") / "reference")


@pytest.fixture
def tally() -> Tally:
    return Tally()


@pytest.mark.slow
def test_a_run_that_is_killed_at_any_moment_ends_as_if_nothing_had_happened(
    tmp_path: Path, expected: Reference, tally: Tally
) -> None:
    # These are aimed by what the run does; the clock has no part in it.
    ways = ("starting", "evaluating", "saving", "saving", "saving", "renames", "finishing")
    deaths = kills(8, tmp_path, expected, tally, ways=ways, seed=3)
    assert tally.failures == []
    assert deaths.total() == 8
    assert sum(deaths[moment] for moment in SAVING) >= 4


def test_a_run_that_is_killed_in_its_test_is_tested_when_it_goes_on(
    tmp_path: Path, expected: Reference, tally: Tally
) -> None:
    deaths = kills(2, tmp_path, expected, tally, ways=("testing",))
    assert tally.failures == []
    assert deaths == {"testing": 2}


def test_a_damaged_checkpoint_is_refused_and_the_one_before_is_taken(
    tmp_path: Path, expected: Reference, tally: Tally
) -> None:
    resumed = corruptions(60, tmp_path, expected, tally)
    assert tally.failures == []
    assert resumed == 3


def test_a_save_goes_on_beside_a_damaged_checkpoint_of_a_later_step(tmp_path: Path, expected: Reference) -> None:
    folder = tmp_path / "run"
    stopped_at(folder, 41)
    (folder / "checkpoints" / "step-00000041").rename(folder / "checkpoints" / "step-00000070")
    assert "step-00000070: MANIFEST.json is not what was written" in finish(folder)
    assert expected.differences(folder) == []


def test_a_run_that_is_killed_before_its_forced_configuration_is_written_goes_on_with_it(
    tmp_path: Path, tally: Tally
) -> None:
    stopped_at(tmp_path / "stopped", 12)
    after_the_save = tuple(kill for kill in KILLS if kill.what == "after the save, no --force")
    change("forced", tmp_path / "stopped", FORCED, tally, after_the_save)
    assert tally.failures == []
    assert len(tally.rows) == 1


def test_a_disk_that_is_full_leaves_the_last_checkpoint_and_says_what_to_do(
    tmp_path: Path, expected: Reference, tally: Tally
) -> None:
    file_limits(tmp_path, expected, tally)
    assert tally.failures == []
    assert [tried for tried, _ in tally.rows.values()] == [1, 1, 1]


def test_a_signal_saves_and_exits_with_its_code_and_a_second_one_stops_at_once(
    tmp_path: Path, expected: Reference, tally: Tally
) -> None:
    once = ("SIGTERM in a step", "SIGUSR1 in an evaluation")
    signals(tmp_path, expected, tally, once=once, twice=("SIGINT twice in a save",))
    assert tally.failures == []
    assert len(tally.rows) == 3
