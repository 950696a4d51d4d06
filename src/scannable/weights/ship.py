"""Turn a finished run into a model that is shipped: python -m scannable.weights.ship RUN NAME TITLE"""

import re
import shutil
import sys
import tempfile
from pathlib import Path

from scannable.storage.checked_folder import manifest_of, put_in_place, sum_of_file
from scannable.storage.configuration import to_plain
from scannable.storage.files import write_whole
from scannable.storage.model_file import save_model
from scannable.tasks.sample import PinnedTask
from scannable.training.run_folder import TrainingError, load_recipe, load_result, load_trained
from scannable.weights.shipped_model import FORMAT, MANIFEST, PLACE, Shipped, shipped

FOUND = ("length", "samples", "loss", "error", "bits_per_byte")


def ship(run: Path, name: str, title: str, place: Path = PLACE) -> Shipped:
    """Write the weights that a run tests at its end, its recipe and its numbers into `place`/NAME, in one step.

    A model of that name is replaced. The optimizer, the metrics and all other checkpoints stay behind.
    """
    if not re.fullmatch(r"[a-z][a-z0-9-]*", name):
        raise ValueError(f"name={name!r:.60} must be of small letters, digits and dashes, such as s5")
    if not title.strip() or len(title.splitlines()) != 1:
        raise ValueError(f"title={title!r:.60} must be one line that says what the model is")
    result = load_result(run)
    if result is None:
        raise TrainingError(f"{run} has not come to its end, so that nothing is known of its weights; go on with it")
    found = load_trained(run)
    place.mkdir(parents=True, exist_ok=True)
    temporary = Path(tempfile.mkdtemp(dir=place, prefix=f".{name}."))
    aside = temporary.with_name(f"{temporary.name}.old")
    try:
        temporary.chmod(0o755)
        save_model(found.model, temporary)
        if isinstance(found.recipe.task, PinnedTask):
            found.recipe.task.keep(temporary)
        about = {
            "format": FORMAT,
            "title": title.strip(),
            "recipe": to_plain(load_recipe(run)),
            "step": found.step,
            "which": found.weights,
            "parameters": result["parameters"],
            "tokens": result["tokens"],
            "test": [{key: score[key] for key in FOUND} for score in result["test"]],
        }
        files = {path.name: sum_of_file(path) for path in sorted(temporary.iterdir())}
        write_whole(temporary / MANIFEST, manifest_of(about, files))
        put_in_place(temporary, place / name, aside)
    finally:
        shutil.rmtree(temporary, ignore_errors=True)
        shutil.rmtree(aside, ignore_errors=True)
    return shipped(name, place)


def main() -> None:
    if len(sys.argv) != 4:
        sys.exit('usage: python -m scannable.weights.ship RUN NAME "what it is, in a line"')
    _, run, name, title = sys.argv
    made = ship(Path(run), name, title)
    print(f"{made.folder}: {made.parameters:,} parameters, {made.nbytes:,} bytes; {made.found}")


if __name__ == "__main__":
    main()
