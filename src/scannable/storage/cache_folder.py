"""A folder of files in a cache: built whole or not at all, and checked when it is opened."""

import errno
import os
import shutil
import tempfile
import time
import warnings
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

from scannable.storage.checked_folder import (
    DamagedError,
    check_files,
    manifest_of,
    put_in_place,
    read_manifest,
    sum_of_file,
)

FORMAT = "scannable-folder-2"
SEAL = "meta.json"
BUILDING = ".building-"
ABANDONED = 24 * 60 * 60
"""Seconds after which an unfinished folder belongs to a process that was killed."""


class CacheError(OSError):
    """A cache that cannot be written, or does not keep what was written."""


def default_cache() -> Path:
    """The folder `scannable` in $XDG_CACHE_HOME, or in ~/.cache where that is not set."""
    named = os.environ.get("XDG_CACHE_HOME", "")
    # The standard for these variables wants a relative path ignored.
    return (Path(named) if os.path.isabs(named) else Path.home() / ".cache") / "scannable"


def open_cached(folder: Path, build: Callable[[Path], dict[str, Any]]) -> dict[str, Any]:
    """What `build` said about the folder; it is built where it is missing, and again, with a warning, where damaged.

    Args:
        build: writes files into the folder it is given, a temporary one, and returns what to remember about them, as
            JSON can hold it. It gives the same files each time, so that processes that build at once do not differ.
    """
    for _ in range(3):
        try:
            if folder.exists():
                return _checked(folder)
        except DamagedError as error:
            warnings.warn(f"{error}; it is built again", stacklevel=2)
        _build(folder, build)
    try:
        return _checked(folder)
    except DamagedError as error:
        raise CacheError(f"{error}, though it was just built; pass a folder on another disk as cache=") from error


def check_space(folder: Path, needed: int) -> None:
    """An error, if the disk that holds `folder` has less than `needed` bytes left."""
    free = shutil.disk_usage(folder).free
    if free < needed:
        raise CacheError(
            f"token files may take {needed / 2**20:,.1f} MiB, but {folder} has {free / 2**20:,.1f} MiB left; make "
            "room, or pass a folder on another disk as cache="
        )


def _build(folder: Path, build: Callable[[Path], dict[str, Any]]) -> None:
    cache = folder.parent
    try:
        cache.mkdir(parents=True, exist_ok=True)
        _sweep(cache)
        # In the cache itself, hence on the same filesystem: only there is a rename atomic.
        temporary = Path(tempfile.mkdtemp(dir=cache, prefix=BUILDING))
    except OSError as error:
        raise CacheError(
            f"the cache {cache} cannot be written: {error}; pass another folder as cache=, or set XDG_CACHE_HOME"
        ) from error
    try:
        _seal(temporary, build(temporary))
        _publish(temporary, folder)
    except OSError as error:
        if error.errno in (errno.ENOSPC, errno.EDQUOT):
            raise CacheError(
                f"the disk of the cache {cache} is full; make room, or pass a folder on another one as cache="
            ) from error
        raise
    finally:
        shutil.rmtree(temporary, ignore_errors=True)


def _sweep(cache: Path) -> None:
    """Remove what killed processes left."""
    for path in cache.glob(f"{BUILDING}*"):
        with suppress(FileNotFoundError):
            if time.time() - path.stat().st_mtime > ABANDONED:
                shutil.rmtree(path, ignore_errors=True)


def _seal(folder: Path, about: dict[str, Any]) -> None:
    """Write down what is in the folder."""
    files = {path.name: sum_of_file(path) for path in folder.iterdir()}
    (folder / SEAL).write_bytes(manifest_of({"format": FORMAT, "about": about}, files))
    folder.chmod(0o755)


def _publish(temporary: Path, folder: Path) -> None:
    while True:
        try:
            put_in_place(temporary, folder)
            return
        except OSError as error:
            if error.errno not in (errno.ENOTEMPTY, errno.EEXIST, errno.ENOTDIR):
                raise
        with suppress(DamagedError):
            _checked(folder)
            return  # another process was first
        aside = Path(tempfile.mkdtemp(dir=folder.parent, prefix=BUILDING))
        # Gone already, if another process found the same damage.
        with suppress(FileNotFoundError):
            folder.rename(aside / folder.name)
        shutil.rmtree(aside, ignore_errors=True)


def _checked(folder: Path) -> dict[str, Any]:
    try:
        content, files = read_manifest(folder / SEAL)
        if content.get("format") != FORMAT or "about" not in content:
            raise DamagedError(f"{SEAL} is of another format")
        check_files(folder, files)
        return content["about"]
    except DamagedError as error:
        raise DamagedError(f"{folder}: {error}") from error
