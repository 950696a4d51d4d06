"""A file is there whole or not at all."""

import os
import resource
import signal
from pathlib import Path

import pytest

from scannable.storage.files import whole_file, write_whole


def test_content_and_folders_appear(tmp_path: Path) -> None:
    path = tmp_path / "new" / "inside" / "file.bin"
    write_whole(path, b"first")
    write_whole(path, b"second")
    assert path.read_bytes() == b"second" and [p.name for p in path.parent.iterdir()] == ["file.bin"]


def test_a_failure_keeps_the_old_file_and_leaves_no_litter(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "file.bin"
    write_whole(path, b"good")

    def disk_full(descriptor: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("os.fsync", disk_full)
    with pytest.raises(OSError, match=r"No space left on device: '.*file\.bin'"):
        write_whole(path, b"half")
    assert path.read_bytes() == b"good" and [p.name for p in tmp_path.iterdir()] == ["file.bin"]


def test_a_file_that_may_not_grow_is_named(tmp_path: Path) -> None:
    """The limit of a process on the size of files stands for a full disk."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    handler = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    try:
        resource.setrlimit(resource.RLIMIT_FSIZE, (1000, before[1]))
        with pytest.raises(OSError, match=r"large: '.*file\.bin'"):
            write_whole(tmp_path / "file.bin", bytes(100_000))
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
        signal.signal(signal.SIGXFSZ, handler)
    assert not list(tmp_path.iterdir())


def test_what_stops_the_writer_leaves_nothing(tmp_path: Path) -> None:
    def stopped() -> None:
        with whole_file(tmp_path / "file.bin") as file:
            file.write(b"half")
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        stopped()
    assert not list(tmp_path.iterdir())


def test_the_file_is_on_the_disk_before_its_name_and_the_name_before_the_return(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    events: list[tuple[str, str]] = []
    fsync, replace = os.fsync, Path.replace

    def recorded_fsync(handle: int) -> None:
        place = Path(os.readlink(f"/proc/self/fd/{handle}"))
        size = place.stat().st_size if place.is_file() else "folder"
        events.append(("sync", f"{size}"))
        assert place.parent == tmp_path or place == tmp_path
        fsync(handle)

    def recorded_replace(self: Path, target: Path) -> Path:
        events.append(("replace", target.name))
        return replace(self, target)

    monkeypatch.setattr(os, "fsync", recorded_fsync)
    monkeypatch.setattr(Path, "replace", recorded_replace)
    write_whole(tmp_path / "file.bin", b"12345")
    assert events == [("sync", "5"), ("replace", "file.bin"), ("sync", "folder")]
