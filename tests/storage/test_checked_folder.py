"""What a manifest says is what was written, to the last bit."""

import hashlib
import json
import os
from pathlib import Path
from typing import Any

import pytest

from scannable.storage.checked_folder import (
    DamagedError,
    check_files,
    manifest_of,
    put_in_place,
    read_manifest,
    sum_of,
    sum_of_file,
)

ABOUT = {"format": "test-1", "text": "ä", "number": 0.1}
FILES = {"b.bin": sum_of(b"bb"), "a.bin": sum_of(b"")}


def write(path: Path, plain: Any) -> None:
    """As somebody would who knows how sums are made."""
    digest = hashlib.sha256(json.dumps(plain, sort_keys=True).encode()).hexdigest()
    path.write_text(json.dumps({**plain, "sha256": digest}, indent=1, sort_keys=True))


def test_a_manifest_is_read_as_it_was_written(tmp_path: Path) -> None:
    path = tmp_path / "manifest.json"
    path.write_bytes(manifest_of(ABOUT, FILES))
    assert read_manifest(path) == (ABOUT, FILES)
    write(path, {**ABOUT, "files": FILES})
    assert path.read_bytes() == manifest_of(ABOUT, FILES)


def test_a_flipped_bit_anywhere_in_a_manifest_is_found(tmp_path: Path) -> None:
    path, good = tmp_path / "manifest.json", manifest_of(ABOUT, FILES)
    for place in range(len(good)):
        bad = bytearray(good)
        bad[place] ^= 1 << place % 8
        path.write_bytes(bad)
        with pytest.raises(DamagedError, match=r"manifest\.json is damaged or of another format"):
            read_manifest(path)


@pytest.mark.parametrize("name", ["../a.bin", "/etc/passwd", "..", ".", "", "a\0b", "\ud800", "manifest.json"])
def test_a_manifest_names_only_files_beside_it(tmp_path: Path, name: str) -> None:
    path = tmp_path / "manifest.json"
    write(path, {**ABOUT, "files": {name: sum_of(b"")}})
    with pytest.raises(DamagedError):
        read_manifest(path)


@pytest.mark.parametrize("text", ["", "null", "[]", "{}", '{"files": {}}', "[" * 100_000, "1" * 5000, "\0"])
def test_what_is_no_manifest_is_damaged(tmp_path: Path, text: str) -> None:
    path = tmp_path / "manifest.json"
    path.write_text(text)
    with pytest.raises(DamagedError):
        read_manifest(path)
    for files in ([], ["a.bin"], None, 1, {"a.bin": 1}, {"a.bin": {"size": "1", "sha256": ""}}, {"a.bin": {"size": 1}}):
        write(path, {**ABOUT, "files": files})
        with pytest.raises(DamagedError):
            read_manifest(path)


@pytest.mark.parametrize("content", [b"", b"x", bytes(range(256)) * 5000])
def test_a_file_has_the_sum_of_its_content(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "file").write_bytes(content)
    assert sum_of_file(tmp_path / "file") == sum_of(content)


def test_a_name_that_is_given_twice_is_damage(tmp_path: Path) -> None:
    path = tmp_path / "manifest.json"
    path.write_bytes(manifest_of(ABOUT, FILES).replace(b'"number": 0.1', b'"number": 0.1,\n "number": 0.1'))
    with pytest.raises(
        DamagedError, match=r"manifest\.json is damaged or of another format: .*'number' is given twice"
    ):
        read_manifest(path)


def test_each_file_that_is_wrong_is_named(tmp_path: Path) -> None:
    files = {"a.bin": sum_of(b"aa"), "b.bin": sum_of(b"bb")}
    path = tmp_path / "manifest.json"
    with pytest.raises(DamagedError, match=r"^manifest\.json is missing$"):
        read_manifest(path)
    path.mkdir()
    with pytest.raises(DamagedError, match=r"^manifest\.json cannot be read: Is a directory$"):
        read_manifest(path)
    path.rmdir()
    path.write_bytes(manifest_of(ABOUT, files))
    (tmp_path / "a.bin").write_bytes(b"aa")
    with pytest.raises(DamagedError, match=r"^b\.bin is missing$"):
        check_files(tmp_path, files)
    (tmp_path / "b.bin").mkdir()
    with pytest.raises(DamagedError, match=r"^b\.bin cannot be read: Is a directory$"):
        check_files(tmp_path, files)
    (tmp_path / "b.bin").rmdir()
    (tmp_path / "b.bin").write_bytes(b"")
    with pytest.raises(DamagedError, match=r"^b\.bin is not what was written: 0 bytes instead of 2$"):
        check_files(tmp_path, files)
    (tmp_path / "b.bin").write_bytes(b"bc")
    with pytest.raises(DamagedError, match=r"^b\.bin is not what was written: its checksum does not match$"):
        check_files(tmp_path, files)
    (tmp_path / "b.bin").write_bytes(b"bb")
    check_files(tmp_path, files)
    (tmp_path / ".hidden").write_text("")
    assert read_manifest(path) == (ABOUT, files)
    (tmp_path / "c.bin").write_text("")
    with pytest.raises(DamagedError, match=r"^c\.bin is a stray file, which manifest\.json does not name"):
        read_manifest(path)


def test_files_and_folder_are_on_the_disk_before_the_rename_and_the_parent_after(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A power cut leaves the old or the new; seen by the calls of fsync, each on the file that is really open."""
    new, place, aside = tmp_path / "new", tmp_path / "place", tmp_path / "aside"
    for folder in (new, place):
        folder.mkdir()
        for name in ("a.bin", "b.bin"):
            (folder / name).write_text(folder.name)
    events: list[str] = []
    fsync, rename = os.fsync, Path.rename

    def recorded_fsync(handle: int) -> None:
        events.append(f"sync {os.path.relpath(os.readlink(f'/proc/self/fd/{handle}'), tmp_path)}")
        fsync(handle)

    def recorded_rename(self: Path, target: Path) -> Path:
        events.append(f"rename {self.name} {target.name}")
        return rename(self, target)

    monkeypatch.setattr(os, "fsync", recorded_fsync)
    monkeypatch.setattr(Path, "rename", recorded_rename)
    put_in_place(new, place, aside)
    assert sorted(events[:2]) == ["sync new/a.bin", "sync new/b.bin"]
    assert events[2:] == ["sync new", "rename place aside", "rename new place", "sync ."]
    assert (place / "a.bin").read_text() == "new" and (aside / "a.bin").read_text() == "place"


def test_what_is_there_is_not_overwritten(tmp_path: Path) -> None:
    for name in ("old", "new"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "file").write_text(name)
    with pytest.raises(OSError, match="not empty"):
        put_in_place(tmp_path / "new", tmp_path / "old")
    assert (tmp_path / "old" / "file").read_text() == "old"
