"""Where a network runs."""

from __future__ import annotations

from typing import TYPE_CHECKING

from nescio.errors import ParameterError

if TYPE_CHECKING:
    import torch

DEVICES = ("auto", "cpu", "cuda", "mps")


def choose_device(name: str = "auto") -> torch.device:
    """Return a device by name, such as "cuda:1"; "auto" takes CUDA, then MPS, then the CPU.

    Examples
    --------
    >>> choose_device("cpu")
    device(type='cpu')
    """
    import torch

    available = {
        "cuda": torch.cuda.is_available(),
        "mps": torch.backends.mps.is_available(),
        "cpu": True,
    }
    if name == "auto":
        return torch.device(next(kind for kind, there in available.items() if there))
    try:
        device = torch.device(name)
    except RuntimeError as error:
        raise ParameterError(
            f"device must be one of {', '.join(DEVICES)}, or for example cuda:1; got {name!r}."
        ) from error
    missing_gpu = device.type == "cuda" and (device.index or 0) >= torch.cuda.device_count()
    if missing_gpu or not available.get(device.type, False):
        raise ParameterError(f"the device {name!r} is not available here; try --device auto.")
    return device
