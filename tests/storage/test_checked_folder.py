"""What a manifest says is what was written, to the last bit."""

import hashlib
import json
from pathlib import Path
from typing import Any

import pytest

from scannable.storage.checked_folder import DamagedError, manifest_of, put_in_place, read_manifest, sum_of, sum_of_file

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
    for files in ([], ["a.bin"], None, 1):
        write(path, {**ABOUT, "files": files})
        with pytest.raises(DamagedError):
            read_manifest(path)


@pytest.mark.parametrize("content", [b"", b"x", bytes(range(256)) * 5000])
def test_a_file_has_the_sum_of_its_content(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "file").write_bytes(content)
    assert sum_of_file(tmp_path / "file") == sum_of(content)


def test_what_is_there_is_not_overwritten(tmp_path: Path) -> None:
    for name in ("old", "new"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "file").write_text(name)
    with pytest.raises(OSError, match="not empty"):
        put_in_place(tmp_path / "new", tmp_path / "old")
    assert (tmp_path / "old" / "file").read_text() == "old"
