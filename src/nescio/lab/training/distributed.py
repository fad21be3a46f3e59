"""Train one network with several processes, which torchrun starts.

Each process computes its share of every batch, and gradients are averaged over all processes. On
GPUs, batch norm uses the statistics of the whole batch, so the loss curve is the same for any
number of processes. torch has no such batch norm for CPUs: there, each process uses the statistics
of its share.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

import torch
from torch import distributed, nn

from nescio.errors import ParameterError

# One process may compute the features of a whole data set while the others wait.
_TIMEOUT = timedelta(hours=12)


@dataclass(frozen=True)
class World:
    """One process and the number of processes that train together; one, without torchrun."""

    rank: int = 0
    size: int = 1
    local_rank: int = 0

    @classmethod
    def from_environment(cls) -> World:
        """Return what torchrun has set in the environment."""
        defaults = {"RANK": 0, "WORLD_SIZE": 1, "LOCAL_RANK": 0}
        return cls(*(int(os.environ.get(name, value)) for name, value in defaults.items()))

    @property
    def leads(self) -> bool:
        """Whether this is the process that writes files and prints."""
        return self.rank == 0

    @contextmanager
    def joined(self, device: torch.device) -> Iterator[None]:
        """Connect to the other processes for the duration of the block."""
        if self.size == 1:
            yield
            return
        backend = "gloo"
        if device.type == "cuda":
            torch.cuda.set_device(device)  # collectives run on the current device
            backend = "nccl"
        distributed.init_process_group(backend, timeout=_TIMEOUT)
        try:
            yield
        finally:
            distributed.destroy_process_group()

    def device(self, device: torch.device) -> torch.device:
        """Return this process's own GPU if there are several processes, else the device itself."""
        if device.type != "cuda" or self.size == 1:
            return device
        return torch.device("cuda", self.local_rank)

    def wait(self) -> None:
        """Wait until all processes have arrived here."""
        if self.size > 1:
            distributed.barrier()

    def gather(self, value: Any) -> list[Any]:
        """Return the values of all processes, in the order of their ranks."""
        if self.size == 1:
            return [value]
        values = [None] * self.size
        distributed.all_gather_object(values, value)
        return values

    def check_batch_size(self, batch_size: int) -> None:
        """Raise unless every process gets the same share of a batch."""
        if batch_size % self.size:
            raise ParameterError(
                f"the batch size must be divisible by the number of processes, {self.size}, got "
                f"{batch_size}."
            )

    def parallel(self, module: nn.Module, device: torch.device) -> nn.Module:
        """Return the module with gradients averaged over all processes."""
        if self.size == 1:
            return module
        if device.type != "cuda":
            return nn.parallel.DistributedDataParallel(module)
        module = nn.SyncBatchNorm.convert_sync_batchnorm(module)  # type: ignore[no-untyped-call]
        return nn.parallel.DistributedDataParallel(module, device_ids=[device.index])

    def share_buffers(self, module: nn.Module) -> None:
        """Copy the buffers of the first process, such as batch statistics, to all processes."""
        for buffer in module.buffers() if self.size > 1 else ():
            distributed.broadcast(buffer, src=0)
