"""What every figure leaves behind: the picture as PNG and SVG, the numbers as CSV beside it, and a page about them."""

import dataclasses
import io
import json
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Literal

import matplotlib
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from scannable.storage.files import write_csv, write_whole


def save_figure(figure: Figure, folder: Path, name: str) -> Path:
    """Write `name`.png and `name`.svg; returns the PNG."""
    for kind in ("svg", "png"):
        picture = io.BytesIO()
        # No date and no random names inside: the same numbers give the same file.
        with matplotlib.rc_context({"svg.hashsalt": name}):
            figure.savefig(picture, format=kind, dpi=160, metadata={"Date": None} if kind == "svg" else None)
        write_whole(folder / f"{name}.{kind}", picture.getvalue())
    return folder / f"{name}.png"


def save_rows(rows: Sequence[Any], path: Path, kind: type[Any] | None = None) -> Path:
    """Write dataclass instances as CSV, a column for each field; `kind` is what they are, if there may be none."""
    names = [field.name for field in dataclasses.fields(rows[0] if kind is None else kind)]
    write_csv(path, names, (dataclasses.astuple(row) for row in rows))
    return path


def save_json(plain: Any, path: Path) -> None:
    write_whole(path, json.dumps(plain, indent=1).encode() + b"\n")


def table(header: Sequence[str], rows: Sequence[Sequence[object]]) -> str:
    """A table in Markdown."""
    lines = [header, ["---"] * len(header), *rows]
    return "\n".join(f"| {' | '.join(str(cell) for cell in line)} |" for line in lines)


def save_page(folder: Path, title: str, *parts: str) -> Path:
    """Write `README.md`: the parts, with an empty line between them."""
    path = folder / "README.md"
    write_whole(path, ("\n\n".join([f"# {title}", *parts]) + "\n").encode())
    return path


def missing_runs(names: Sequence[str]) -> list[str]:
    """A part of a page that says plainly what it was made without; nothing, if all is there."""
    if not names:
        return []
    # Seeds, or learning rates, of one model stand together.
    models: dict[str, list[str]] = {}
    for name in names:
        found = re.fullmatch(r"(.*?)-(\d+(?:\.\d+)?(?:e-\d+)?(?: .*)?)", name)
        assert found, name
        models.setdefault(found[1], []).append(found[2])
    listed = "; ".join(f"`{model}` {', '.join(which)}" for model, which in models.items())
    return [
        f"**Made before all runs were finished.** {len(names)} of them, or of what they were to read, are "
        f"missing, and left out of every number; behind a name its seeds, or learning rates: {listed}."
    ]


def powers(axes: Axes, ticks: Sequence[int]) -> None:
    """A logarithmic x axis with these ticks, written out."""
    axes.set_xscale("log", base=2)
    axes.set_xticks(ticks)
    axes.set_xticklabels([f"{tick:,}" for tick in ticks])
    axes.minorticks_off()


def tidy(axes: Axes, *, legend: Literal["inside", "below", "none"] = "inside") -> None:
    """The look that all figures share; the legend names what has a label, unless the figure has one for all axes.

    Args:
        legend: "below" where curves may be anywhere, so that none runs through it.
    """
    axes.grid(alpha=0.3)
    axes.spines[["top", "right"]].set_visible(False)
    if legend == "none" or not axes.get_legend_handles_labels()[0]:
        return
    below: dict[str, Any] = {"loc": "upper center", "bbox_to_anchor": (0.5, -0.13), "ncols": 2}
    axes.legend(frameon=False, fontsize=9, **(below if legend == "below" else {}))
