"""Where a network runs."""

from __future__ import annotations

import ctypes
import sys

import torch

from nescio.errors import ParameterError

DEVICES = ("auto", "cpu", "cuda", "mps")

# Parameters of glibc's mallopt.
_M_TRIM_THRESHOLD, _M_MMAP_THRESHOLD = -1, -3


def choose_device(name: str = "auto") -> torch.device:
    """A device by name, such as "cuda:1"; "auto" takes CUDA, then MPS, then the CPU."""
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
            f"device must be one of {', '.join(DEVICES)}, or cuda:1 and so on; got {name!r}."
        ) from error
    if not available.get(device.type, False):
        raise ParameterError(f"the device {name!r} is not available here; try --device auto.")
    if device.index is not None and device.type == "cuda":
        count = torch.cuda.device_count()
        if device.index >= count:
            raise ParameterError(f"there is no {name}: this machine has {count} CUDA devices.")
    return device


def keep_freed_memory() -> None:
    """Let the C library keep memory that was freed, for the next batch, where it is glibc.

    It would otherwise give the activations of every layer back to the system and have them
    zeroed page by page for the next one, which takes a good part of the time on a CPU. For a
    process of our own, such as the command line.
    """
    if sys.platform != "linux":
        return
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is not None:
        mallopt(_M_MMAP_THRESHOLD, 32 << 20)  # the most that it takes
        mallopt(_M_TRIM_THRESHOLD, (1 << 31) - 1)
