"""Ways to damage a checkpoint. Each takes its folder, what chance decides, and the folder of another checkpoint."""

import json
import random
import shutil
from collections.abc import Callable
from pathlib import Path

from scannable.training.checkpoint import MANIFEST


def flip(path: Path, chance: random.Random, _: Path) -> None:
    victim = _any_file(path, chance)
    content = bytearray(victim.read_bytes())
    for _bit in range(chance.choice((1, 1, 1, 2, 16))):
        content[chance.randrange(len(content))] ^= 1 << chance.randrange(8)
    victim.write_bytes(content)


def flip_manifest(path: Path, chance: random.Random, _: Path) -> None:
    content = bytearray((path / MANIFEST).read_bytes())
    content[chance.randrange(len(content))] ^= 1 << chance.randrange(8)
    (path / MANIFEST).write_bytes(content)


def rewrite_manifest(path: Path, chance: random.Random, _: Path) -> None:
    """Well-formed, and not what was written."""
    plain = json.loads((path / MANIFEST).read_bytes())
    files = plain["files"]
    names = list(files)
    odd = chance.choice(([], {}, None, 0, "", names, [names], {"..": 1}, {"": 1}, {"a\0b": 1}, {"/etc/passwd": 1}))
    match chance.randrange(6):
        case 0:
            plain[chance.choice(list(plain))] = odd
        case 1:
            files[chance.choice(names)] = odd
        case 2:
            del files[chance.choice(names)]
        case 3:
            files[chance.choice((MANIFEST, ".", "..", "../state.json", "\ud800", "x" * 300))] = odd
        case 4:
            del plain[chance.choice(list(plain))]
        case _:
            (path / MANIFEST).write_text(chance.choice((json.dumps(odd), "[" * 100_000, "1" * 5000)))
            return
    (path / MANIFEST).write_text(json.dumps(plain, indent=1, sort_keys=True))


def truncate(path: Path, chance: random.Random, _: Path) -> None:
    victim = _any_file(path, chance)
    victim.write_bytes(victim.read_bytes()[: chance.randrange(victim.stat().st_size)])


def lengthen(path: Path, chance: random.Random, _: Path) -> None:
    victim = _any_file(path, chance)
    victim.write_bytes(victim.read_bytes() + chance.choice((b"\0", b"\n", b" " * 100)))


def remove(path: Path, chance: random.Random, _: Path) -> None:
    _any_file(path, chance).unlink()


def empty(path: Path, chance: random.Random, _: Path) -> None:
    _any_file(path, chance).write_bytes(b"")


def folder_for_file(path: Path, chance: random.Random, _: Path) -> None:
    victim = _any_file(path, chance)
    victim.unlink()
    victim.mkdir()


def from_another_step(path: Path, chance: random.Random, other: Path) -> None:
    name = _any_file(path, chance).name
    shutil.copy(other / name, path / name)


def swap_within(path: Path, chance: random.Random, _: Path) -> None:
    one, two = chance.sample(sorted(path.iterdir()), 2)
    first, second = one.read_bytes(), two.read_bytes()
    one.write_bytes(second)
    two.write_bytes(first)


def another_number(path: Path, chance: random.Random, other: Path) -> None:
    """All of another step's files, under this step's name."""
    shutil.rmtree(path)
    shutil.copytree(other, path)


def zero_block(path: Path, chance: random.Random, _: Path) -> None:
    victim = _any_file(path, chance)
    content = bytearray(victim.read_bytes())
    start, size = chance.randrange(len(content)), chance.choice((1, 16, 512, 4096))
    content[start : start + size] = bytes(len(content[start : start + size]))
    victim.write_bytes(content)


def _any_file(path: Path, chance: random.Random) -> Path:
    return chance.choice(sorted(path.iterdir()))


WRONG_NAME = "another step under this name"
DAMAGE: dict[str, Callable[[Path, random.Random, Path], None]] = {
    "bits flipped in any file": flip,
    "a bit flipped in MANIFEST.json": flip_manifest,
    "MANIFEST.json rewritten": rewrite_manifest,
    "a file truncated": truncate,
    "a file lengthened": lengthen,
    "a file missing": remove,
    "a file empty": empty,
    "a folder in place of a file": folder_for_file,
    "a file of another step": from_another_step,
    "two files swapped": swap_within,
    WRONG_NAME: another_number,
    "a block of zeros": zero_block,
}
