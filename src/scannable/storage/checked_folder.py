"""A folder of files that is there and right, or not there.

It is written under another name beside its place, flushed to the disk, and a rename makes it appear. One of its files,
the manifest, has the size and SHA-256 of each of the others, what else there is to know about them, and its own sum.
"""

import hashlib
import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any, TypedDict


class DamagedError(ValueError):
    """A folder that is not what was written."""


class Sum(TypedDict):
    """What a manifest knows about a file."""

    size: int
    sha256: str


def sum_of(content: bytes) -> Sum:
    """Of a file that is in memory."""
    return {"size": len(content), "sha256": hashlib.sha256(content).hexdigest()}


def sum_of_file(path: Path) -> Sum:
    """Of a file that may be larger than the memory."""
    with path.open("rb") as file:
        return {"size": path.stat().st_size, "sha256": hashlib.file_digest(file, "sha256").hexdigest()}


def manifest_of(about: Mapping[str, Any], files: Mapping[str, Sum]) -> bytes:
    """In one exact form, so that not a bit of it can change unnoticed."""
    body = {**about, "files": files}
    digest = hashlib.sha256(json.dumps(body, sort_keys=True).encode()).hexdigest()
    return json.dumps({**body, "sha256": digest}, indent=1, sort_keys=True).encode()


def read_manifest(path: Path) -> tuple[dict[str, Any], dict[str, Sum]]:
    """What a manifest says about its folder, and about each file in it; these are still to be compared."""
    written = path.read_bytes()
    try:
        about: Any = json.loads(written)
        files: Any = about.pop("files")
        del about["sha256"]
        # Computed anew: it is right to the last bit, or it is not believed.
        right = isinstance(files, dict) and manifest_of(about, files) == written
        if right and all(_is_beside(path, name) for name in files):
            return about, files
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise DamagedError(f"{path} is damaged or of another format: {error!r:.200}") from error
    raise DamagedError(f"{path} is damaged or of another format")


def flush(folder: Path) -> None:
    """Wait until the folder and all files in it are on the disk."""
    for path in (*folder.iterdir(), folder):
        _sync(path)


def put_in_place(temporary: Path, folder: Path) -> None:
    """Make a flushed folder appear in one step; only within one filesystem is a rename atomic."""
    temporary.rename(folder)
    _sync(folder.parent)


def _is_beside(path: Path, name: str) -> bool:
    return Path(name).name == name and name not in ("", "..", path.name) and name.isprintable()


def _sync(path: Path) -> None:
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
