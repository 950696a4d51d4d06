"""Which checkpoints of a run are looked at afterwards."""

from dataclasses import replace
from pathlib import Path

from scannable.experiments.laboratory import Trained
from scannable.experiments.state_tracking import milestones
from scannable.recipes import demo
from scannable.training import checkpoint as checkpoints


def test_those_that_were_kept_on_the_way(tmp_path: Path) -> None:
    for step in (20, 40, 50, 60):
        checkpoints.path_of(tmp_path / "checkpoints", step).mkdir(parents=True)
    for every, steps in ((20, [20, 40, 60]), (30, [60]), (None, [20, 40, 50, 60])):
        run = Trained("run", replace(demo(), checkpoint_every=10, keep_every=every), tmp_path, {})
        assert milestones(run) == steps
