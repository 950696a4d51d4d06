"""A file is there whole or not at all."""

from pathlib import Path

import pytest

from scannable.storage.files import write_whole


def test_content_and_folder_appear(tmp_path: Path) -> None:
    path = tmp_path / "new" / "file.bin"
    write_whole(path, b"first")
    write_whole(path, b"second")
    assert path.read_bytes() == b"second" and [p.name for p in path.parent.iterdir()] == ["file.bin"]


def test_a_failure_keeps_the_old_file_and_leaves_no_litter(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "file.bin"
    write_whole(path, b"good")

    def disk_full(descriptor: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("os.fsync", disk_full)
    with pytest.raises(OSError, match="No space left"):
        write_whole(path, b"half")
    assert path.read_bytes() == b"good" and [p.name for p in tmp_path.iterdir()] == ["file.bin"]
