"""A stream on disk: one sealed safetensors file (`tensor_file.py`), whose metadata has the structure of the state."""

import json
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from scannable.storage.configuration import ConfigurationError, from_plain, to_plain
from scannable.storage.registry import why_unknown
from scannable.storage.strict_json import parse
from scannable.storage.tensor_file import TensorFileError, read_sealed, write_sealed

FORMAT = "scannable-state-2"
PAIRS = ".pairs"
"""How the name of a complex128 tensor ends: safetensors has none, so its parts are on a last axis."""


class StateFileError(ValueError):
    """A file that is no saved state, or no longer the one that was saved.

    >>> _ = (folder / "damaged").write_bytes(b"something else")
    >>> try:
    ...     sc.load_state(folder / "damaged")
    ... except sc.StateFileError:
    ...     print("not a saved state")
    not a saved state
    """


def save_state(state: Any, path: str | Path) -> None:
    """Write a state as one file, whole or not at all. Tensors that the state shares are stored once.

    What a step would refuse is refused here: a state whose buffers have gone on, or were left half written.

    >>> layer = sc.zoo.GLA(width=16, heads=2)
    >>> _, state = layer.extend(torch.randn(1, 7, 16), layer.initial_state(1))
    >>> sc.save_state(state, folder / "one.safetensors")
    """
    problem = _why_no_state(state)
    if problem:
        raise TypeError(f"a {type(state).__name__} cannot be saved as a state: {problem}")
    if hasattr(state, "fork"):
        # A fork is refused where a step would be, and nobody else writes into its buffers.
        state = state.fork()
    tensors: dict[str, Tensor] = {}
    names: dict[tuple[Any, ...], str] = {}

    def store(tensor: Tensor) -> str:
        view = (tensor.storage_offset(), tensor.shape, tensor.stride(), tensor.is_conj(), tensor.is_neg())
        memory = (tensor.device, tensor.untyped_storage().data_ptr(), tensor.dtype, *view)
        name = names.setdefault(memory, f"t{len(names)}{PAIRS if tensor.dtype == torch.complex128 else ''}")
        tensors[name] = tensor
        return name

    try:
        structure = to_plain(state, "the state", store=store)
        # What could not be read back is not written.
        from_plain(structure, Any, "the state", tensors=tensors)
    except ConfigurationError as error:
        raise TypeError(f"a {type(state).__name__} cannot be saved: {error}") from error
    written = {name: _as_pairs(tensor) if name.endswith(PAIRS) else tensor for name, tensor in tensors.items()}
    write_sealed(Path(path), written, {"format": FORMAT, "structure": json.dumps(structure, allow_nan=False)})


def load_state(path: str | Path, device: str | torch.device = "cpu") -> Any:
    """Read a state that `save_state` wrote, and check it; any damage raises `StateFileError`.

    >>> layer = sc.zoo.GLA(width=16, heads=2)
    >>> _, state = layer.extend(torch.randn(1, 7, 16), layer.initial_state(1))
    >>> sc.save_state(state, folder / "two.safetensors")
    >>> sc.load_state(folder / "two.safetensors").position
    7
    """
    path = Path(path)
    try:
        metadata, tensors = read_sealed(path, FORMAT)
        placed = {
            name: (torch.view_as_complex(tensor) if name.endswith(PAIRS) else tensor).to(device)
            for name, tensor in tensors.items()
        }
        structure = parse(metadata.get("structure", ""))
        state = from_plain(structure, Any, "the state", tensors=placed)
    except (TensorFileError, ValueError, RuntimeError) as error:
        raise StateFileError(
            f"{path} cannot be read as a saved state: {error}; it is truncated, damaged or something else"
        ) from error
    problem = _why_no_state(state)
    if problem:
        raise StateFileError(f"{path} holds no state but a {type(state).__name__}: {problem}")
    return state


def _as_pairs(tensor: Tensor) -> Tensor:
    return torch.view_as_real(tensor.detach().resolve_conj().resolve_neg())


def _why_no_state(value: Any) -> str | None:
    if not hasattr(value, "position") or not hasattr(value, "nbytes"):
        return "it has no position and nbytes; a state is what empty, extend, initial_state, prefill or step returned"
    return why_unknown(type(value))
