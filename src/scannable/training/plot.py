"""Loss and error of runs, drawn."""

from pathlib import Path
from typing import Any

from matplotlib.figure import Figure

from scannable.storage.files import write_csv
from scannable.training.logging import read_metrics


def plot_runs(runs: list[Path], out: Path) -> None:
    """Draw training loss and validation error of each run against its steps; the numbers go beside the picture."""
    if not runs:
        raise ValueError("no run to draw; give one folder or several")
    once = list(dict.fromkeys(runs))
    found = {name: _metrics(run) for name, run in zip(_names(once), once, strict=True)}
    figure = Figure(figsize=(10, 4), layout="constrained")
    losses, errors = figure.subplots(1, 2)
    for name, records in found.items():
        train = [record for record in records if record["kind"] == "train"]
        looked = [record for record in records if record["kind"] == "evaluation"]
        losses.plot([r["step"] for r in train], [r["loss"] for r in train], label=name, linewidth=1)
        (line,) = errors.plot([r["step"] for r in looked], [r["error"] for r in looked], ".-", label=name)
        for record in records:
            if record["kind"] == "stage":
                errors.axvline(record["step"], color=line.get_color(), linewidth=0.5, linestyle=":")
    losses.set(xlabel="step", ylabel="training loss (nats a token)", yscale="log")
    errors.set(xlabel="step", ylabel="validation error at the current length", ylim=(-0.02, 1.02))
    errors.text(
        0.99, 0.98, "dotted: on to the next length", transform=errors.transAxes, ha="right", va="top", fontsize=8
    )
    for axes in (losses, errors):
        axes.grid(alpha=0.3)
        axes.legend()
    out.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(out, dpi=150)
    rows = [
        [name, record["step"], record["kind"], record.get("length"), record.get("loss"), record.get("error")]
        for name, records in found.items()
        for record in records
    ]
    write_csv(out.with_suffix(".csv"), ["run", "step", "kind", "length", "loss", "error"], rows)


def _names(runs: list[Path]) -> list[str]:
    """As much of the end of each path as tells all runs apart: a whole path would leave no room for the curves."""
    for count in range(1, max(len(run.parts) for run in runs)):
        names = [str(Path(*run.parts[-count:])) for run in runs]
        if len(set(names)) == len(runs):
            return names
    return [str(run) for run in runs]


def _metrics(run: Path) -> list[dict[str, Any]]:
    path = run / "metrics.jsonl"
    if not path.is_file():
        raise ValueError(f"{run} holds no run: metrics.jsonl is missing")
    try:
        records = read_metrics(path)
    except (UnicodeDecodeError, RecursionError) as error:
        raise ValueError(f"{path} is damaged: {error}") from error
    for number, record in enumerate(records, 1):
        if not _whole(record):
            raise ValueError(f"{path}, line {number} is damaged: {str(record)[:80]!r}")
    return records


def _whole(record: Any) -> bool:
    """Whether all that is drawn is there, and is a number."""
    if not isinstance(record, dict) or record.get("kind") not in ("train", "evaluation", "stage"):
        return False
    drawn = {"train": ("step", "loss"), "evaluation": ("step", "error"), "stage": ("step",)}[record["kind"]]
    return all(type(record.get(name)) in (int, float) for name in drawn)
