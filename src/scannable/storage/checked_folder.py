"""A folder of files that is there and right, or not there.

It is written under another name beside its place, flushed to the disk, and a rename makes it appear. One of its files,
the manifest, has the size and SHA-256 of each of the others, what else there is to know about them, and its own sum.
"""

import hashlib
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any, TypedDict

from scannable.storage.files import sync
from scannable.storage.strict_json import seal, unseal


class DamagedError(ValueError):
    """A folder that is not what was written; the message names the file."""


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
        size = os.fstat(file.fileno()).st_size
        return {"size": size, "sha256": hashlib.file_digest(file, "sha256").hexdigest()}


def manifest_of(about: Mapping[str, Any], files: Mapping[str, Sum]) -> bytes:
    """What a folder holds, in one exact form."""
    return seal({**about, "files": files})


def read_manifest(path: Path) -> tuple[dict[str, Any], dict[str, Sum]]:
    """What a manifest says about its folder, and about each file in it; their contents are still to be compared.

    Files that it does not name are refused, but for hidden ones, which an operating system may leave anywhere.
    """
    try:
        written = path.read_bytes()
        beside = {one.name for one in path.parent.iterdir() if not one.name.startswith(".")} - {path.name}
    except FileNotFoundError as error:
        raise DamagedError(f"{path.name} is missing") from error
    except OSError as error:
        raise DamagedError(f"{path.name} cannot be read: {error.strerror or error}") from error
    try:
        about = unseal(written)
        files: Any = about.pop("files")
        if not isinstance(files, dict) or not all(_is_beside(path, name) and _is_sum(files[name]) for name in files):
            raise ValueError("its files are not beside it, or have no sums")
    except (ValueError, KeyError) as error:
        raise DamagedError(f"{path.name} is damaged or of another format: {error!s:.200}") from error
    for name in sorted(beside - set(files)):
        raise DamagedError(f"{name} is a stray file, which {path.name} does not name; move it elsewhere")
    return about, files


def check_sum(name: str, found: Sum, known: Sum) -> None:
    """Refuse a file that is not the one that the manifest knows."""
    if found["size"] != known["size"]:
        raise DamagedError(f"{name} is not what was written: {found['size']:,} bytes instead of {known['size']:,}")
    if found != known:
        raise DamagedError(f"{name} is not what was written: its checksum does not match")


def check_files(folder: Path, files: Mapping[str, Sum]) -> None:
    """Refuse a folder with a file that is missing, or not the one that its manifest knows."""
    for name, known in files.items():
        try:
            check_sum(name, sum_of_file(folder / name), known)
        except FileNotFoundError as error:
            raise DamagedError(f"{name} is missing") from error
        except OSError as error:
            raise DamagedError(f"{name} cannot be read: {error.strerror or error}") from error


def put_in_place(temporary: Path, folder: Path, aside: Path | None = None) -> None:
    """Make a written folder appear in one step: all that is in it is on the disk before its name is.

    What is there already goes to the place `aside`, if that is given, and else is in the way.
    """
    for path in (*temporary.iterdir(), temporary):
        sync(path)
    if aside is not None and folder.exists():
        folder.rename(aside)
    temporary.rename(folder)
    sync(folder.parent)


def _is_beside(path: Path, name: str) -> bool:
    return Path(name).name == name and name not in ("", "..", path.name) and name.isprintable()


def _is_sum(value: Any) -> bool:
    return isinstance(value, dict) and {name: type(one) for name, one in value.items()} == {"size": int, "sha256": str}
