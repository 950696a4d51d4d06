"""The folder of a run, as an argument of a command."""

from pathlib import Path
from typing import Annotated

import tyro
from tyro.conf import Positional

from scannable.storage.configuration import ConfigurationError

RunFolder = Positional[Annotated[Path, tyro.conf.arg(metavar="RUN")]]
RunFolders = Positional[Annotated[tuple[Path, ...], tyro.conf.arg(metavar="RUN [RUN ...]")]]


def check_run(folder: Path) -> None:
    """Refuse what holds no run, before anything is imported that would read it."""
    if not folder.is_dir():
        raise ConfigurationError(f"there is no folder {folder}; give the folder of a run, such as runs/s5")
    if not (folder / "config.json").is_file():
        raise ConfigurationError(f"{folder} holds no run: config.json is missing; `scannable train` makes one")
