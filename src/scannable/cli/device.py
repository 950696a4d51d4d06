"""The device that a command works on."""

from typing import TYPE_CHECKING, Any

from scannable.storage.configuration import ConfigurationError

if TYPE_CHECKING:
    import torch


def usable_device(name: str) -> "torch.device":
    """The device of that name, if this machine has it."""
    import torch

    device = torch.device(name)
    # Asked without opening the device: under torchrun each process opens its own.
    backend: Any = torch.backends.mps if device.type == "mps" else getattr(torch, device.type, None)
    count = getattr(backend, "device_count", lambda: 1)
    there = getattr(backend, "is_available", lambda: True)
    if not there() or (device.index or 0) >= count():
        raise ConfigurationError(
            f"device={name!r} is not there, or torch {torch.__version__} cannot use it; cpu always is"
        )
    return device
