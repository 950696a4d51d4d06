"""A stream on disk: one safetensors file that carries its structure, and is checked before it is believed.

Nothing is unpickled. The file's metadata holds the structure of the state as JSON, and a SHA-256 over that, over the
description of the tensors and over their bytes.
"""

import dataclasses
import hashlib
import json
import struct
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save
from torch import Tensor

from scannable.storage.files import write_whole
from scannable.storage.registry import find, name_of

FORMAT = "scannable-state-1"


class StateFileError(ValueError):
    """A file that is no saved state, or no longer the one that was saved."""


def save_state(state: object, path: str | Path) -> None:
    """Write a state as one file, whole or not at all. Tensors that the state shares are stored once."""
    tensors: dict[str, Tensor] = {}
    names: dict[tuple[Any, ...], str] = {}

    def store(tensor: Tensor) -> str:
        memory = (
            tensor.untyped_storage().data_ptr(),
            tensor.storage_offset(),
            tensor.shape,
            tensor.stride(),
            tensor.dtype,
        )
        if memory not in names:
            names[memory] = f"t{len(names)}"
            tensors[names[memory]] = tensor.detach().cpu().clone(memory_format=torch.contiguous_format)
        return names[memory]

    structure = json.dumps(_encode(state, store), separators=(",", ":"))
    plain = save(tensors)
    metadata = {"format": FORMAT, "structure": structure, "sha256": _digest(plain, structure)}
    write_whole(Path(path), save(tensors, metadata))


def load_state(path: str | Path, device: str | torch.device = "cpu") -> Any:
    """Read a state that `save_state` wrote, and check it; any damage raises `StateFileError`."""
    path = Path(path)
    content = path.read_bytes()
    try:
        with safe_open(path, framework="pt", device=str(device)) as file:
            metadata = file.metadata() or {}
            if metadata.get("format") != FORMAT:
                raise StateFileError(
                    f"{path} is a safetensors file but not a saved state (format {metadata.get('format')!r}, "
                    f"expected {FORMAT!r})"
                )
            structure = metadata.get("structure", "")
            if metadata.get("sha256") != _digest(content, structure):
                raise StateFileError(f"{path} is damaged: its checksum does not match; use another copy")
            # Copied into torch's own aligned memory: kernels round differently on other addresses.
            tensors = {name: file.get_tensor(name).clone() for name in file.keys()}  # noqa: SIM118
        state = _decode(json.loads(structure), tensors)
        if find(name_of(type(state))) is not type(state):
            raise StateFileError(f"{path} holds a {type(state).__name__}, which is no state")
        return state
    except StateFileError:
        raise
    except (SafetensorError, ValueError, KeyError, TypeError, RecursionError, struct.error) as error:
        raise StateFileError(
            f"{path} ({len(content)} bytes) cannot be read as a saved state: {error}; it is truncated, damaged or "
            "something else"
        ) from error


def _digest(content: bytes, structure: str) -> str:
    """Over everything but the metadata itself: what tensors there are, their bytes, and the structure."""
    (length,) = struct.unpack_from("<Q", content)
    header = json.loads(content[8 : 8 + length])
    header.pop("__metadata__", None)
    digest = hashlib.sha256(json.dumps(header, sort_keys=True).encode())
    digest.update(structure.encode())
    digest.update(memoryview(content)[8 + length :])
    return digest.hexdigest()


def _encode(value: Any, store: Any) -> Any:
    if isinstance(value, Tensor):
        return {"tensor": store(value)}
    if value is None or isinstance(value, bool | int | float | str):
        return value
    if isinstance(value, list | tuple) and type(value) in (list, tuple):
        return {type(value).__name__: [_encode(item, store) for item in value]}
    if isinstance(value, dict):
        return {"dict": [[_encode(key, store), _encode(item, store)] for key, item in value.items()]}
    kind = name_of(type(value))
    known: Any = find(kind)
    if known is not type(value):
        raise TypeError(
            f"a state that holds a {type(value).__name__} cannot be saved; mark its dataclass with @storable"
        )
    names = [field.name for field in dataclasses.fields(known)]
    fields = {name: _encode(getattr(value, name), store) for name in names}
    return {"class": kind, "fields": fields}


def _decode(value: Any, tensors: dict[str, Tensor]) -> Any:
    match value:
        case {"tensor": str(name)}:
            return tensors[name]
        case {"list": list(items)}:
            return [_decode(item, tensors) for item in items]
        case {"tuple": list(items)}:
            return tuple(_decode(item, tensors) for item in items)
        case {"dict": list(items)}:
            return {_decode(key, tensors): _decode(item, tensors) for key, item in items}
        case {"class": str(kind), "fields": dict(fields)}:
            known = find(kind)
            if known is None:
                raise StateFileError(f"the file holds a {kind}, which this version of scannable does not know")
            return known(**{name: _decode(item, tensors) for name, item in fields.items()})
        case dict() | list():
            raise KeyError(f"unknown structure {str(value)[:80]}")
        case _:
            return value
