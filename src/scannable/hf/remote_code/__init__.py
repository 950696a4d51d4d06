"""The two files beside a saved model that make trust_remote_code=True work: they only import this package."""

import os
from pathlib import Path
from typing import Any

from scannable.storage.files import write_whole

FILES = ("configuration_scannable.py", "modeling_scannable.py")


def write(folder: str | os.PathLike[Any]) -> None:
    """Put both into a folder."""
    for name in FILES:
        write_whole(Path(folder) / name, (Path(__file__).parent / name).read_bytes())
