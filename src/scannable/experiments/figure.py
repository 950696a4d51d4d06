"""What every figure leaves behind: the picture as PNG and SVG, and the numbers as CSV beside it."""

import dataclasses
import io
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from matplotlib.figure import Figure

from scannable.files import write_csv, write_whole


def save_figure(figure: Figure, folder: Path, name: str) -> Path:
    """Write `name`.png and `name`.svg; returns the PNG."""
    for kind in ("svg", "png"):
        picture = io.BytesIO()
        # No date inside: the same numbers give the same file.
        figure.savefig(picture, format=kind, dpi=160, metadata={"Date": None} if kind == "svg" else None)
        write_whole(folder / f"{name}.{kind}", picture.getvalue())
    return folder / f"{name}.png"


def save_rows(rows: Sequence[Any], path: Path) -> Path:
    """Write dataclass instances as CSV, a column for each field."""
    names = [field.name for field in dataclasses.fields(rows[0])]
    write_csv(path, names, (dataclasses.astuple(row) for row in rows))
    return path
