"""Kills while a run takes on another configuration: `--resume --force`, or more steps for a run that had finished.

Its first checkpoint under the new configuration comes before `config.json`. A run that is killed on the way goes on
with the same options, and is still one of the two configurations.
"""

import shutil
import signal
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from benchmarks.faults.life import Life
from benchmarks.faults.tally import Tally
from benchmarks.faults.tiny_run import RECIPE, Reference, finish, stopped_at, train
from benchmarks.faults.watching import Aim
from scannable.storage.configuration import to_plain
from scannable.training.recipe import Recipe
from scannable.training.run_folder import differences, load_recipe, newest_checkpoint, recipe_of

FORCED = replace(RECIPE, seed=7, optimizer=replace(RECIPE.optimizer, learning_rate=1e-2))
LONGER = replace(RECIPE, steps=70)


@dataclass(frozen=True)
class Kill:
    """When a changing run is killed, whether its checkpoint is the new one by then, and how it is resumed."""

    what: str
    aim: Aim
    taken: bool
    force: bool


KILLS = (
    Kill("in the save, then --force", Aim("saving", 1, 4), taken=False, force=True),
    Kill("between the renames, then --force", Aim("between the renames", 1, 0), taken=False, force=True),
    Kill("after the save, then --force", Aim("writing config.json", 1, 0), taken=True, force=True),
    Kill("after the save, no --force", Aim("writing config.json", 1, 0), taken=True, force=False),
    # The parent folder is made, the new file is flushed, and then it replaces the old one.
    Kill("before config.json is flushed, no --force", Aim("writing config.json", 1, 2), taken=True, force=False),
    Kill("before config.json is replaced, no --force", Aim("writing config.json", 1, 3), taken=True, force=False),
)


def changes(place: Path, expected: Reference, tally: Tally) -> None:
    """Change a run that was stopped, and one that had finished."""
    stopped = place / "to-change"
    stopped_at(stopped, 12)
    change("forced", stopped, FORCED, tally)
    change("more steps", expected.folder, LONGER, tally)


def change(name: str, base: Path, recipe: Recipe[Any, Any], tally: Tally, kills: tuple[Kill, ...] = KILLS) -> None:
    """Change copies of a run, kill them meanwhile, and resume them with what they were changed to."""
    unharmed = base.with_name(f"{name}-unharmed")
    shutil.copytree(base, unharmed)
    finish(unharmed, recipe, force=True)
    for number, kill in enumerate(kills):
        folder = base.with_name(f"{name}-{number}")
        shutil.copytree(base, folder)
        tally.add("changes", f"{name}: {kill.what}", _badly_changed(folder, recipe, kill, Reference(unharmed, 0.0)))


def _badly_changed(folder: Path, recipe: Recipe[Any, Any], kill: Kill, unharmed: Reference) -> list[str]:
    life = Life(lambda: train(folder, recipe, force=True), folder.with_suffix(".log"), aim=kill.aim)
    if not life.told():
        return [f"the run never came to {kill.aim}: {life.said()[-800:]}"]
    life.send(signal.SIGKILL)
    life.wait()
    wrong = [] if load_recipe(folder) == RECIPE else ["config.json was written before the kill"]
    if kill.taken and _differs_from_checkpoint(folder, recipe):
        wrong.append("the checkpoint is not the new one")
    try:
        finish(folder, recipe, force=kill.force)
    except RuntimeError as error:
        return [*wrong, str(error)]
    return wrong + unharmed.differences(folder)


def _differs_from_checkpoint(folder: Path, recipe: Recipe[Any, Any]) -> bool:
    checkpoint = newest_checkpoint(folder, print)
    return checkpoint is None or bool(differences(recipe_of(checkpoint), to_plain(recipe)))
