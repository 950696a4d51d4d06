"""What stays of a finished run without its weights: what was asked for, and everything that was found.

A run takes megabytes, its record kilobytes: records can be kept beside the page that they make, and an experiment that
is too long for one machine, or for one day, goes on elsewhere from them.

    RESULTS/configurations/NAME.json    the recipe, as it was run
    RESULTS/finished/NAME.json          its result, and what was measured with its weights, file by file
"""

import json
from collections.abc import Callable, Collection
from fnmatch import fnmatch
from pathlib import Path
from typing import Any, TypeVar

from scannable.experiments.figure import save_json
from scannable.storage.configuration import from_plain, to_plain
from scannable.storage.files import write_whole
from scannable.training.recipe import Recipe
from scannable.training.run_folder import TrainingError, load_recipe

RESULT, DIVERGED = "result.json", "diverged.json"
"""What a run leaves at its end; one of them is in every record."""
FOUND = ("best", "parameters", "steps", "test", "tokens")
"""What a result has to hold."""
MEASURED = ("reading-*.json", "stream-*.json", "windows-*.json", "factor-*.json", "defects.json")
"""What experiments measure with the weights of a run, and leave in its folder."""
POSITIONS = "error_by_position"

T = TypeVar("T")


def save_record(results: Path, name: str, run: Path) -> None:
    """Write the record of a run that has ended."""
    # As it was run: with the identity of its text.
    save_json(to_plain(load_recipe(run)), _configuration(results, name))
    if (run / RESULT).exists():
        found = {RESULT: without_positions(_read(run / RESULT))}
    else:
        found = {DIVERGED: _read(run / DIVERGED)}
    for path in sorted(path for pattern in MEASURED for path in run.glob(pattern)):
        found[path.name] = _read(path)
    save_json(found, _finished(results, name))


def without_positions(result: dict[str, Any]) -> dict[str, Any]:
    """A result without the error at every single position, which would be most of a record, and no page shows."""
    scores = [{key: value for key, value in score.items() if key != POSITIONS} for score in result["test"]]
    return {**result, "test": scores}


def has_record(results: Path, name: str) -> bool:
    return _configuration(results, name).is_file() and _finished(results, name).is_file()


def recorded_recipe(results: Path, name: str) -> Recipe[Any, Any]:
    """The recipe of a record; options that are newer than it have their defaults."""
    path = _configuration(results, name)
    return from_plain(_read(path), Recipe, str(path))


def restore(results: Path, name: str, run: Path) -> None:
    """Make the folder of a run from its record: all that was there but the weights and the course of the training.

    What was measured and is not in the record goes.
    """
    path = _finished(results, name)
    found = _read(path)
    if not isinstance(found, dict) or not {RESULT, DIVERGED} & set(found):
        raise TrainingError(f"{path} is damaged: it has no {RESULT!r}; put it back, or delete it")
    for file in found:
        if not any(fnmatch(file, pattern) for pattern in (RESULT, DIVERGED, *MEASURED)) or Path(file).name != file:
            raise TrainingError(f"{path} is damaged: {file!r:.60} is no file of a run; put it back, or delete it")
    lacking = [key for key in FOUND if RESULT in found and key not in found[RESULT]]
    if lacking:
        raise TrainingError(f"{path} is damaged: its result has no {lacking[0]!r}; put it back, or delete it")
    for path in [path for pattern in MEASURED for path in run.glob(pattern)]:
        path.unlink()
    write_whole(run / "config.json", _text(to_plain(recorded_recipe(results, name))))
    # The result last: with it the run is finished.
    for file in sorted(found, key=lambda file: file in (RESULT, DIVERGED)):
        write_whole(run / file, _text(found[file]))


def drop_other_records(results: Path, names: Collection[str]) -> None:
    """Remove the records of runs that a page is not made of."""
    for folder in (_configuration(results, "x").parent, _finished(results, "x").parent):
        for path in folder.glob("*.json"):
            if path.stem not in names:
                path.unlink()


# What was measured with the weights of a run, in its folder: minutes or hours that need not be spent again.


def leave(path: Path, plain: Any) -> None:
    """Write it beside the run; one of the names in MEASURED."""
    write_whole(path, _text(plain))


def left(path: Path, parse: Callable[[Any], T]) -> T | None:
    """What was left there; None if nothing was."""
    if not path.is_file():
        return None
    try:
        return parse(json.loads(path.read_bytes()))
    except (ValueError, TypeError, KeyError) as error:
        raise ValueError(f"{path} cannot be read: {error}; delete it, and it is made again") from error


def _configuration(results: Path, name: str) -> Path:
    return results / "configurations" / f"{name}.json"


def _finished(results: Path, name: str) -> Path:
    return results / "finished" / f"{name}.json"


def _read(path: Path) -> Any:
    try:
        return json.loads(path.read_bytes())
    except (ValueError, RecursionError) as error:
        raise TrainingError(f"{path} is damaged: {error}; put it back, or delete it") from error


def _text(plain: Any) -> bytes:
    return json.dumps(plain, indent=1).encode() + b"\n"
