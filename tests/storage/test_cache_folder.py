"""A folder in the cache is whole, or not there."""

import errno
import os
import random
import shutil
import tempfile
import threading
import time
import warnings
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from scannable.storage import cache_folder, checked_folder
from scannable.storage.cache_folder import CacheError, check_space, default_cache, open_cached


def build(folder: Path) -> dict[str, Any]:
    (folder / "one.bin").write_bytes(bytes(range(100)))
    (folder / "two.bin").write_bytes(b"two")
    return {"count": 103}


def refuse(_: Path) -> dict[str, Any]:
    raise AssertionError("built though it was there")


def test_a_folder_is_built_once(tmp_path: Path) -> None:
    folder = tmp_path / "deep" / "cache" / "x"
    assert open_cached(folder, build) == {"count": 103}
    assert open_cached(folder, refuse) == {"count": 103}
    assert sorted(path.name for path in folder.iterdir()) == ["meta.json", "one.bin", "two.bin"]
    assert list(folder.parent.iterdir()) == [folder]


@pytest.mark.parametrize("error", [RuntimeError, KeyboardInterrupt])
def test_an_interrupted_build_leaves_nothing(tmp_path: Path, error: type[BaseException]) -> None:
    def interrupted(folder: Path) -> dict[str, Any]:
        build(folder)
        raise error

    with pytest.raises(error):
        open_cached(tmp_path / "x", interrupted)
    assert not list(tmp_path.iterdir())
    assert open_cached(tmp_path / "x", build) == {"count": 103}


def test_every_flipped_bit_is_found_and_mended(tmp_path: Path) -> None:
    folder = tmp_path / "x"
    open_cached(folder, build)
    good = {path.name: path.read_bytes() for path in folder.iterdir()}
    rng = random.Random(0)
    for name in sorted(good) * 10:
        bad = bytearray(good[name])
        bad[rng.randrange(len(bad))] ^= 1 << rng.randrange(8)
        (folder / name).write_bytes(bad)
        with pytest.warns(UserWarning, match="it is built again"):
            assert open_cached(folder, build) == {"count": 103}
        assert {path.name: path.read_bytes() for path in folder.iterdir()} == good
        assert list(tmp_path.iterdir()) == [folder]


@pytest.mark.parametrize("content", [{"format": "other", "about": {"count": 1}}, {"format": cache_folder.FORMAT}])
def test_a_whole_folder_of_another_format_is_built_again(tmp_path: Path, content: dict[str, Any]) -> None:
    (tmp_path / "x").mkdir()
    (tmp_path / "x" / cache_folder.SEAL).write_bytes(checked_folder.manifest_of(content, {}))
    with pytest.warns(UserWarning, match="is of another format; it is built again"):
        assert open_cached(tmp_path / "x", build) == {"count": 103}


def test_what_is_damaged_goes_where_it_is_swept_if_the_process_is_killed_then(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "x"
    open_cached(folder, build)
    (folder / "two.bin").write_bytes(b"six")
    rename, targets = Path.rename, list[Path]()

    def noting(path: Path, target: Path) -> Path:
        targets.append(target)
        return rename(path, target)

    monkeypatch.setattr(Path, "rename", noting)
    with pytest.warns(UserWarning, match="it is built again"):
        open_cached(folder, build)
    (aside,) = {target.parent for target in targets} - {tmp_path}
    assert aside.parent == tmp_path and aside.name.startswith(cache_folder.BUILDING)


def test_truncated_and_missing_files_are_found_and_mended(tmp_path: Path) -> None:
    folder = tmp_path / "x"
    open_cached(folder, build)
    (folder / "one.bin").write_bytes(bytes(range(99)))
    with pytest.warns(
        UserWarning, match=r"x: one\.bin is not what was written: 99 bytes instead of 100; it is built again"
    ):
        open_cached(folder, build)
    (folder / "two.bin").write_bytes(b"owt")
    with pytest.warns(
        UserWarning, match=r"x: two\.bin is not what was written: its checksum does not match; it is built again"
    ):
        open_cached(folder, build)
    for name in ("two.bin", "meta.json"):
        (folder / name).unlink()
        with pytest.warns(UserWarning, match=rf"x: {name} is missing; it is built again"):
            open_cached(folder, build)
    (folder / "notes.txt").write_text("by somebody else")
    with pytest.warns(
        UserWarning, match=r"x: notes\.txt is a stray file, which meta\.json does not name.*; it is built"
    ):
        open_cached(folder, build)
    (folder / ".DS_Store").write_text("by the operating system")
    assert open_cached(folder, refuse) == {"count": 103}
    shutil.rmtree(folder)
    folder.write_text("a file")
    with pytest.warns(UserWarning, match=r"x: meta\.json cannot be read: Not a directory"):
        assert open_cached(folder, build) == {"count": 103}


def test_a_disk_that_does_not_keep_what_was_written_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    count = iter(range(1000))
    monkeypatch.setattr(checked_folder, "sum_of_file", lambda _: {"size": 1, "sha256": str(next(count))})
    monkeypatch.setattr(cache_folder, "sum_of_file", lambda _: {"size": 1, "sha256": "as written"})
    with (
        pytest.warns(UserWarning, match="it is built again"),
        pytest.raises(CacheError, match="checksum does not match, though it was just built; pass a folder on another"),
    ):
        open_cached(tmp_path / "x", build)


def test_of_two_builds_at_once_the_first_stays(tmp_path: Path) -> None:
    folder, inodes = tmp_path / "x", []

    def overtaken(temporary: Path) -> dict[str, Any]:
        open_cached(folder, build)
        inodes.append(folder.stat().st_ino)
        return build(temporary)

    assert open_cached(folder, overtaken) == {"count": 103}
    assert folder.stat().st_ino == inodes[0]
    assert list(tmp_path.iterdir()) == [folder]


def test_many_that_build_and_mend_at_once_all_succeed(tmp_path: Path) -> None:
    start = threading.Barrier(4)

    def slow(folder: Path) -> dict[str, Any]:
        time.sleep(0.01)
        return build(folder)

    def work(_: int) -> list[dict[str, Any]]:
        start.wait()
        return [open_cached(tmp_path / str(i % 5), slow) for i in range(10)]

    with ThreadPoolExecutor(4) as workers:
        assert list(workers.map(work, range(4))) == [[{"count": 103}] * 10] * 4
        assert sorted(path.name for path in tmp_path.iterdir()) == ["0", "1", "2", "3", "4"]
        for i in range(5):
            (tmp_path / str(i) / "two.bin").write_bytes(b"")
        with pytest.warns(UserWarning, match="it is built again"):
            assert list(workers.map(work, range(4))) == [[{"count": 103}] * 10] * 4
    assert sorted(path.name for path in tmp_path.iterdir()) == ["0", "1", "2", "3", "4"]


def test_what_killed_processes_left_is_removed_after_a_day(tmp_path: Path) -> None:
    old, new = tmp_path / ".building-old", tmp_path / ".building-new"
    for path in (old, new):
        path.mkdir()
        (path / "part.bin").write_bytes(b"x")
    os.utime(old, (0, 0))
    open_cached(tmp_path / "x", build)
    assert not old.exists() and new.exists()


def test_a_cache_that_cannot_be_written_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(
        CacheError, match=r"the cache .*file/cache cannot be written: .*; pass another folder as cache="
    ):
        open_cached(tmp_path / "file" / "cache" / "x", build)
    open_cached(tmp_path / "known", build)

    # Permissions do not stop root, which tests may run as.
    def denied(**_: object) -> str:
        raise PermissionError(errno.EACCES, "Permission denied")

    monkeypatch.setattr(tempfile, "mkdtemp", denied)
    with pytest.raises(
        CacheError, match=r"cannot be written: .*Permission denied; pass another folder as cache=, or set XDG"
    ):
        open_cached(tmp_path / "x", build)
    assert open_cached(tmp_path / "known", refuse) == {"count": 103}, "what is there can be read"


class Usage(NamedTuple):
    free: int


def test_a_full_disk_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(_: Path) -> dict[str, Any]:
        raise OSError(errno.ENOSPC, "No space left on device")

    with pytest.raises(
        CacheError, match=r"the disk of the cache .* is full; make room, or pass a folder on another one"
    ):
        open_cached(tmp_path / "x", full)
    assert not list(tmp_path.iterdir())
    monkeypatch.setattr(shutil, "disk_usage", lambda _: Usage(2**20))
    check_space(tmp_path, 2**20)
    with pytest.raises(CacheError, match=r"may take 3\.0 MiB, but .* has 1\.0 MiB left; make room, or pass a folder"):
        check_space(tmp_path, 3 * 2**20)


def test_errors_of_the_builder_pass_through(tmp_path: Path) -> None:
    def missing(_: Path) -> dict[str, Any]:
        raise FileNotFoundError(errno.ENOENT, "gone", "document.txt")

    with pytest.raises(FileNotFoundError, match=r"document\.txt"):
        open_cached(tmp_path / "x", missing)


def test_the_cache_is_where_the_user_keeps_caches(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert default_cache() == tmp_path / "scannable"
    for unset in ("", "relative"):
        monkeypatch.setenv("XDG_CACHE_HOME", unset)
        assert default_cache() == tmp_path / "home" / ".cache" / "scannable"


def test_a_good_folder_is_opened_without_a_word(tmp_path: Path) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        open_cached(tmp_path / "x", build)
        open_cached(tmp_path / "x", build)
