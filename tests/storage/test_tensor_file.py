"""Tensors on disk are what safetensors writes and reads, and are never held twice."""

import hashlib
import json
import struct
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from scannable.storage import tensor_file
from scannable.storage.tensor_file import TensorFileError, _ordered


def written(path: Path, tensors: dict[str, Tensor], metadata: dict[str, str] | None = None) -> None:
    with path.open("wb") as file:
        found = tensor_file.write(file, tensors, metadata)
    content = path.read_bytes()
    assert found == {"size": len(content), "sha256": hashlib.sha256(content).hexdigest()}


def some() -> dict[str, Tensor]:
    """Of every dtype and of odd shapes, so that narrow ones would push wide ones off their places."""
    generator = torch.Generator().manual_seed(0)
    shapes = [(), (3,), (0, 4), (2, 3), (1, 1, 5)]
    return {
        f"{name}.{i}": torch.randint(0, 2, shapes[i % 5], generator=generator).to(dtype)
        for i, (name, dtype) in enumerate(tensor_file.DTYPES.items())
    }


def assert_equal(found: dict[str, Tensor], expected: dict[str, Tensor]) -> None:
    assert found.keys() == expected.keys()
    for name, tensor in expected.items():
        assert found[name].dtype == tensor.dtype and found[name].shape == tensor.shape
        assert torch.equal(found[name].to(torch.complex128), tensor.to(torch.complex128))


def test_safetensors_reads_what_was_written(tmp_path: Path) -> None:
    written(tmp_path / "ours", some(), {"format": "pt"})
    assert_equal(load_file(tmp_path / "ours"), some())
    assert tensor_file.size_of(some()) <= (tmp_path / "ours").stat().st_size


def test_what_safetensors_writes_is_read(tmp_path: Path) -> None:
    save_file(some(), tmp_path / "theirs", {"what": "ä"})
    with (tmp_path / "theirs").open("rb") as file:
        metadata, tensors, found = tensor_file.read(file)
    assert metadata == {"what": "ä"} and found["size"] == (tmp_path / "theirs").stat().st_size
    assert found["sha256"] == hashlib.sha256((tmp_path / "theirs").read_bytes()).hexdigest()
    assert_equal(tensors, some())


def test_views_are_written_as_what_they_show(tmp_path: Path) -> None:
    x = torch.randn(4, 6)
    z = torch.complex(x, -x)
    views = {
        "t": x.T,
        "step": x[::2, 1::3],
        "row": x[1],
        "wide": x[:1].expand(5, 6),
        "conj": z.conj(),
        "neg": z.conj().imag,
    }
    written(tmp_path / "views", views)
    assert_equal(
        load_file(tmp_path / "views"), {name: view.clone().resolve_conj().resolve_neg() for name, view in views.items()}
    )


def test_the_size_is_known_before_anything_is_written(tmp_path: Path) -> None:
    for tensors in (some(), {}, {"a": torch.zeros(3, 5).T}):
        written(tmp_path / "file", tensors)
        assert (tmp_path / "file").stat().st_size == tensor_file.size_of(tensors)


@pytest.mark.parametrize(
    ("tensor", "reason"),
    [
        (torch.zeros(2, dtype=torch.complex128), "complex128"),
        (torch.zeros(2, 2).to_sparse(), "sparse"),
        (torch.zeros(2, device="meta"), "meta"),
    ],
)
def test_what_the_format_cannot_hold_is_named(tmp_path: Path, tensor: Tensor, reason: str) -> None:
    with pytest.raises(TypeError, match=f"'strange' cannot be saved: .*{reason}"):
        tensor_file.write_sealed(tmp_path / "file", {"strange": tensor}, {})
    assert not list(tmp_path.iterdir())


def raw(header: object, data: bytes = b"", length: int | None = None) -> bytes:
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    return struct.pack("<Q", len(text) if length is None else length) + text + data


def entry(shape: list[object], begin: int, end: int, dtype: str = "F32") -> dict[str, object]:
    return {"dtype": dtype, "shape": shape, "data_offsets": [begin, end]}


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"1234567",
        raw({}, length=2**63),
        raw({}, b"more"),
        raw([]),
        raw(b"{" * 100_000),
        raw(b'{"a":{"dtype":"F32","shape":[],"data_offsets":[0,4]},"a":{"dtype":"I32","shape":[],"data_offsets":[0,4]}}', b"1234"),
        raw({"__metadata__": {"a": 1}}),
        raw({"a": entry([1], 0, 4)}, b"123"),
        raw({"a": entry([1], 0, 4)}, b"12345678"),
        raw({"a": entry([2], 0, 4)}, b"1234"),
        raw({"a": entry([-1], 0, -4)}),
        raw({"a": entry([1.0], 0, 4)}, b"1234"),
        raw({"a": entry([1], 0, 4, "F33")}, b"1234"),
        raw({"a": entry([1], 0, 4), "b": entry([1], 0, 4)}, b"1234"),
        raw({"a": entry([1], 4, 8)}, b"12345678"),
        raw({"a": entry([0, 2**62], 0, 0)}),
        raw({"a": entry([2**40, 2**40], 0, 2**82)}),
        raw({"a": entry([2**36], 0, 2**38)}),
        raw({"a": entry([0, 2**61, 2**61], 0, 0)}),
    ],
)  # fmt: skip
def test_a_header_that_does_not_describe_its_file_is_refused(tmp_path: Path, content: bytes) -> None:
    """Before memory is taken for what it claims."""
    (tmp_path / "file").write_bytes(content)
    with (tmp_path / "file").open("rb") as file, pytest.raises(TensorFileError):
        tensor_file.read(file)


def test_a_seal_is_over_every_byte(tmp_path: Path) -> None:
    path = tmp_path / "sealed"
    seal = tensor_file.write_sealed(path, {"a": torch.arange(5), "b": torch.ones(3)}, {"format": "f", "text": "sha256"})
    good = path.read_bytes()
    assert hashlib.sha256(good.replace(seal.encode(), b"0" * 64)).hexdigest() == seal
    assert_equal(load_file(path), {"a": torch.arange(5), "b": torch.ones(3)})
    metadata, tensors = tensor_file.read_sealed(path, "f")
    assert metadata["text"] == "sha256" and torch.equal(tensors["a"], torch.arange(5))
    for place in range(len(good)):
        bad = bytearray(good)
        bad[place] ^= 1 << place % 8
        path.write_bytes(bad)
        with pytest.raises(TensorFileError):
            tensor_file.read_sealed(path, "f")


def test_a_file_that_is_replaced_while_it_is_read_is_read_as_it_was(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "sealed"
    tensor_file.write_sealed(path, {"a": torch.zeros(3)}, {"format": "f"})
    places = tensor_file._places

    def replacing(text: bytes, room: int) -> object:
        tensor_file.write_sealed(path, {"a": torch.ones(3)}, {"format": "f"})
        return places(text, room)

    monkeypatch.setattr(tensor_file, "_places", replacing)
    assert torch.equal(tensor_file.read_sealed(path, "f")[1]["a"], torch.zeros(3))


MEASURE = """
import sys, torch
from pathlib import Path
from scannable.storage import tensor_file

def peak():
    # Of this program alone; what getrusage says begins with the process that started it.
    (line,) = [line for line in Path("/proc/self/status").read_text().splitlines() if line.startswith("VmHWM")]
    return int(line.split()[1]) / 1024

path, count = Path(sys.argv[1]), 40
small = path.with_name("small")
tensor_file.write_sealed(small, {"t": torch.ones(9, 9).T}, {"format": "f"})  # what the libraries take at first
tensor_file.read_sealed(small, "f")
if sys.argv[2] == "write":
    # Out of order, so that each has to be copied to be written, as one on another device has.
    tensors = {f"t{i}": torch.full((1250, 1000), float(i)).T for i in range(count)}
    before = peak()
    tensor_file.write_sealed(path, tensors, {"format": "f"})
else:
    before = peak()
    _, tensors = tensor_file.read_sealed(path, "f")
    assert all(bool((tensors[f"t{i}"] == i).all()) for i in range(count))
print(peak() - before)
"""


@pytest.mark.slow
def test_writing_takes_the_memory_of_one_tensor_and_reading_that_of_all_once(tmp_path: Path) -> None:
    """200 MB in 40 tensors of 5 MB."""
    extra = {}
    for way in ("write", "read"):
        command = [sys.executable, "-c", MEASURE, str(tmp_path / "file"), way]
        extra[way] = float(subprocess.run(command, capture_output=True, text=True, check=True).stdout)
    assert extra["write"] < 60 and 150 < extra["read"] < 230, extra


def test_the_widest_numbers_come_first() -> None:
    kinds = {"a": (torch.uint8, [3]), "b": (torch.float64, [2]), "c": (torch.float16, [1]), "d": (torch.float64, [1])}
    assert _ordered(kinds) == ["b", "d", "c", "a"]
