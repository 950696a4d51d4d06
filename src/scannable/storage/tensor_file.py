"""Tensors in the safetensors format, written and read one after the other, with the SHA-256 of every byte that passes.

safetensors' own functions want all tensors of a file in memory at once, twice or three times over, and what they read
is not what was hashed before. Here a file is read once, straight into the memory of its tensors.

A sealed file carries its SHA-256 in its own header, computed with zeros in that place.
"""

import hashlib
import json
import math
import os
import struct
from collections.abc import Callable, Mapping, Sequence
from io import BufferedReader
from pathlib import Path
from typing import Any, BinaryIO

import torch
from torch import Tensor

from scannable.storage.checked_folder import Sum
from scannable.storage.files import whole_file
from scannable.storage.strict_json import parse

DTYPES = {
    "F64": torch.float64,
    "F32": torch.float32,
    "F16": torch.float16,
    "BF16": torch.bfloat16,
    "F8_E4M3": torch.float8_e4m3fn,
    "F8_E5M2": torch.float8_e5m2,
    "C64": torch.complex64,
    "I64": torch.int64,
    "I32": torch.int32,
    "I16": torch.int16,
    "I8": torch.int8,
    "U64": torch.uint64,
    "U32": torch.uint32,
    "U16": torch.uint16,
    "U8": torch.uint8,
    "BOOL": torch.bool,
}
NAMES = {dtype: name for name, dtype in DTYPES.items()}
METADATA = "__metadata__"
UNSEALED = "0" * 64
SEAL_PLACE = 8 + len('{"__metadata__":{"sha256":"')
"""Where the digits of a seal begin: behind the header's length."""


class TensorFileError(ValueError):
    """A file that is no safetensors file, or not the one that was written."""


def size_of(tensors: Mapping[str, Tensor]) -> int:
    """The size of the file that `write` makes of these tensors."""
    return len(_header(tensors, {})) + sum(tensor.nbytes for tensor in tensors.values())


def write(file: BinaryIO, tensors: Mapping[str, Tensor], metadata: Mapping[str, str] | None = None) -> Sum:
    """Write a safetensors file; of tensors elsewhere or out of order, one at a time is copied."""
    header = _header(tensors, metadata or {})
    digest, size = hashlib.sha256(header), len(header)
    file.write(header)
    content: memoryview | None = None
    for name in _ordered(_kinds(tensors)):
        content = None  # the copy of one tensor goes before that of the next is made
        content = bytes_of(tensors[name])
        file.write(content)
        digest.update(content)
        size += len(content)
    return {"size": size, "sha256": digest.hexdigest()}


def read(
    file: BufferedReader, *, sealed: bool = False, keep: Callable[[str, Tensor], Tensor] = lambda name, tensor: tensor
) -> tuple[dict[str, str], dict[str, Tensor], Sum]:
    """The metadata and tensors of an open safetensors file, and the sum of what was read.

    Of each tensor what `keep(name, tensor)` returns is kept, before the next is read.
    """
    size = os.fstat(file.fileno()).st_size
    start = file.read(8)
    length = struct.unpack("<Q", start)[0] if len(start) == 8 else size
    if length > size - 8:
        raise TensorFileError(f"{size} bytes are too few for a safetensors file")
    header = bytearray(start + file.read(length))
    metadata, places = _places(header[8:], size - 8 - length)
    if sealed:
        header[SEAL_PLACE : SEAL_PLACE + len(UNSEALED)] = UNSEALED.encode()
    digest = hashlib.sha256(header)
    tensors: dict[str, Tensor] = {}
    for name, dtype, shape in places:
        # Torch's own aligned memory: kernels round differently on other addresses.
        try:
            tensor = torch.empty(shape, dtype=dtype, device="cpu")
        except RuntimeError as error:
            raise TensorFileError(f"{name!r:.60} of the shape {shape!r:.60} cannot be held: {error!s:.80}") from error
        content = bytes_of(tensor)
        if file.readinto(content) != len(content):
            raise TensorFileError(f"it ends within {name}")
        digest.update(content)
        tensors[name] = keep(name, tensor)
    return metadata, tensors, {"size": size, "sha256": digest.hexdigest()}


def write_sealed(path: Path, tensors: Mapping[str, Tensor], metadata: Mapping[str, str]) -> str:
    """Put a safetensors file at `path`, whole or not at all, and return its seal."""
    with whole_file(path) as file:
        seal = write(file, tensors, {"sha256": UNSEALED, **metadata})["sha256"]
        file.seek(SEAL_PLACE)
        file.write(seal.encode())
    return seal


def read_sealed(path: Path, kind: str) -> tuple[dict[str, str], dict[str, Tensor]]:
    """What `write_sealed` wrote with the metadata `format=kind`, its seal included; else a `TensorFileError`."""
    with path.open("rb") as file:
        metadata, tensors, found = read(file, sealed=True)
    if metadata.get("format") != kind:
        raise TensorFileError(
            f"it is a safetensors file of the format {metadata.get('format')!r:.60}, expected {kind!r}"
        )
    if next(iter(metadata)) != "sha256" or metadata["sha256"] != found["sha256"]:
        raise TensorFileError("it is damaged: its checksum does not match; use another copy")
    return metadata, tensors


def header_of(
    kinds: Mapping[str, tuple[torch.dtype, Sequence[int]]], metadata: Mapping[str, str] | None = None
) -> tuple[bytes, dict[str, int]]:
    """How a file of tensors of these types and shapes begins, and where in it each of them does."""
    header: dict[str, Any] = {METADATA: dict(metadata)} if metadata else {}
    end, begins = 0, dict[str, int]()
    for name in _ordered(kinds):
        dtype, shape = kinds[name]
        begins[name], end = end, end + math.prod(shape) * dtype.itemsize
        header[name] = {"dtype": NAMES[dtype], "shape": list(shape), "data_offsets": [begins[name], end]}
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    return struct.pack("<Q", len(text)) + text, {name: 8 + len(text) + begin for name, begin in begins.items()}


def _ordered(kinds: Mapping[str, tuple[torch.dtype, Sequence[int]]]) -> list[str]:
    """The widest numbers first: then each tensor begins at a multiple of its own."""
    return sorted(kinds, key=lambda name: (-kinds[name][0].itemsize, name))


def _header(tensors: Mapping[str, Tensor], metadata: Mapping[str, str]) -> bytes:
    for name, tensor in tensors.items():
        if tensor.dtype not in NAMES or tensor.layout is not torch.strided or tensor.is_meta or name == METADATA:
            raise TypeError(
                f"{name!r} cannot be saved: a tensor of {tensor.dtype} and layout {tensor.layout} on {tensor.device} "
                f"has no place in a safetensors file; it holds dense tensors of {', '.join(NAMES.values())}"
            )
    return header_of(_kinds(tensors), metadata)[0]


def _kinds(tensors: Mapping[str, Tensor]) -> dict[str, tuple[torch.dtype, Sequence[int]]]:
    return {name: (tensor.dtype, tensor.shape) for name, tensor in tensors.items()}


def _places(text: bytes | bytearray, room: int) -> tuple[dict[str, str], list[tuple[str, torch.dtype, list[int]]]]:
    """The metadata, and the name, dtype and shape of each tensor in the order of the file, which they fill exactly."""
    header = parse(bytes(text), TensorFileError)
    if not isinstance(header, dict):
        raise TensorFileError("its header is no JSON object")
    metadata = header.pop(METADATA, {})
    places: list[tuple[int, int, str, torch.dtype, list[int]]] = []
    if not isinstance(metadata, dict) or not all(isinstance(value, str) for value in metadata.values()):
        raise TensorFileError("its metadata is no JSON object of strings")
    for name, about in header.items():
        match about:
            case {"dtype": str(kind), "shape": list(shape), "data_offsets": [int(begin), int(end)]} if (
                kind in DTYPES
                and all(type(size) is int and 0 <= size < 2**62 for size in shape)
                and end - begin == math.prod(shape) * DTYPES[kind].itemsize
            ):
                places.append((begin, end, name, DTYPES[kind], shape))
            case _:
                raise TensorFileError(f"its header describes {name!r:.60} as {about!r:.100}")
    reached = 0
    for begin, end, name, *_ in sorted(places, key=lambda place: place[:2]):
        if begin != reached:
            raise TensorFileError(f"{name!r:.60} begins at {begin} instead of {reached}")
        reached = end
    if reached != room:
        raise TensorFileError(f"its tensors take {reached} bytes, but {room} are there")
    return metadata, [(name, dtype, shape) for _, _, name, dtype, shape in sorted(places, key=lambda place: place[:2])]


def bytes_of(tensor: Tensor) -> memoryview:
    """The memory of a tensor, if it is in order and on the CPU, or of a copy that is."""
    # A conjugate or negative view is a flag on the memory of another tensor.
    plain = tensor.detach().cpu().resolve_conj().resolve_neg().contiguous()
    content: Any = plain.reshape(-1).view(torch.uint8).numpy()
    return memoryview(content)
