"""Several processes that train as one, started by torchrun.

The same global batch gives the same loss curve for any number of processes: each takes its share
of every batch, and batch norm sees the whole of it.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, TypeVar

import torch
from torch import Tensor, distributed, nn
from torch.nn import functional

from nescio.errors import NescioError, ParameterError

# One process may compute the features of a whole data set while the others wait.
_PATIENCE = timedelta(hours=12)

Result = TypeVar("Result")


@dataclass(frozen=True)
class World:
    """One process among those that train together; alone, unless torchrun has started it."""

    rank: int = 0
    size: int = 1
    local_rank: int = 0

    @classmethod
    def from_environment(cls) -> World:
        """What torchrun says."""
        names = ("RANK", "WORLD_SIZE", "LOCAL_RANK")
        return cls(
            *(
                int(os.environ.get(name, default))
                for name, default in zip(names, (0, 1, 0), strict=True)
            )
        )

    @property
    def leads(self) -> bool:
        """Whether this process writes the files and speaks."""
        return self.rank == 0

    @contextmanager
    def joined(self, device: torch.device) -> Iterator[None]:
        """Meet the other processes for as long as the block lasts."""
        if self.size == 1:
            yield
            return
        backend = "gloo"
        if device.type == "cuda":
            torch.cuda.set_device(device)  # collectives run on the current one
            backend = "nccl"
        distributed.init_process_group(backend, timeout=_PATIENCE)
        try:
            yield
        finally:
            distributed.destroy_process_group()

    def device(self, device: torch.device) -> torch.device:
        """The process's own GPU, where there are several."""
        if device.type != "cuda" or self.size == 1:
            return device
        if str(device) != "cuda":
            raise ParameterError(
                f"several processes each take a GPU of their own: pass --device cuda, not {device}."
            )
        if self.local_rank >= torch.cuda.device_count():
            raise ParameterError(
                f"process {self.local_rank} has no GPU: this machine has "
                f"{torch.cuda.device_count()}. Start fewer (--nproc-per-node)."
            )
        return torch.device("cuda", self.local_rank)

    def first_in_line(self, work: Callable[[], Result]) -> Result | None:
        """Let the first process do what only one may, and raise its error in all of them.

        Gives the result there, and None to the others.
        """
        result: Result | None = None
        failure: NescioError | None = None
        if self.leads:
            try:
                result = work()
            except NescioError as error:
                failure = error
        failure = self.gather(failure)[0]
        if failure is not None:
            raise failure
        return result

    def wait(self) -> None:
        """Wait for the others."""
        if self.size > 1:
            distributed.barrier()

    def gather(self, value: Any) -> list[Any]:
        """Everyone's value, in the order of ranks."""
        if self.size == 1:
            return [value]
        values = [None] * self.size
        distributed.all_gather_object(values, value)
        return values

    def check_batch_size(self, batch_size: int) -> None:
        """Raise unless every process gets the same share of a batch."""
        if batch_size % self.size:
            raise ParameterError(
                f"a batch of {batch_size} cannot be split evenly over {self.size} processes."
            )

    def parallel(self, module: nn.Module, device: torch.device) -> nn.Module:
        """The module with gradients and batch statistics taken over all processes."""
        if self.size == 1:
            return module
        if device.type == "cuda":
            module = nn.SyncBatchNorm.convert_sync_batchnorm(module)  # type: ignore[no-untyped-call]
        else:
            share_batch_norm(module)
        devices = [device.index] if device.type == "cuda" else None
        return nn.parallel.DistributedDataParallel(module, device_ids=devices)


def share_batch_norm(module: nn.Module) -> None:
    """Let every batch norm see the batches of all processes: torch's own does so on CUDA only."""
    for child in module.modules():
        if isinstance(child, nn.modules.batchnorm._BatchNorm):
            child.forward = _SharedStatistics(child)  # type: ignore[method-assign, assignment]


class _Sum(torch.autograd.Function):
    """The sum over processes. Each process's loss depends on it, so gradients are summed too."""

    @staticmethod
    def forward(_: Any, tensor: Tensor) -> Tensor:
        total = tensor.clone()
        distributed.all_reduce(total)
        return total

    @staticmethod
    def backward(_: Any, gradient: Tensor) -> Tensor:
        return _Sum.forward(None, gradient.contiguous())


def _sum_over_processes(tensor: Tensor) -> Tensor:
    total: Tensor = _Sum.apply(tensor)
    return total


class _SharedStatistics:
    """The forward pass of a batch norm over the equal shares of all processes."""

    def __init__(self, norm: nn.modules.batchnorm._BatchNorm) -> None:
        self.norm = norm

    def __call__(self, inputs: Tensor) -> Tensor:
        norm = self.norm
        if not norm.training:
            return functional.batch_norm(
                inputs, norm.running_mean, norm.running_var, norm.weight, norm.bias, eps=norm.eps
            )
        over = [dim for dim in range(inputs.dim()) if dim != 1]
        world_size = distributed.get_world_size()
        mean = _sum_over_processes(inputs.mean(over)) / world_size
        shape = [1, -1] + [1] * (inputs.dim() - 2)
        centred = inputs - mean.view(shape)
        variance = _sum_over_processes(centred.square().mean(over)) / world_size
        self._remember(mean, variance, inputs.numel() // inputs.shape[1] * world_size)
        normalised = centred * torch.rsqrt(variance + norm.eps).view(shape)
        if not norm.affine:
            return normalised
        return normalised * norm.weight.view(shape) + norm.bias.view(shape)

    @torch.no_grad()
    def _remember(self, mean: Tensor, variance: Tensor, count: int) -> None:
        norm = self.norm
        if norm.running_mean is None or norm.running_var is None:
            return
        assert norm.num_batches_tracked is not None
        norm.num_batches_tracked += 1
        momentum = norm.momentum
        if momentum is None:
            momentum = 1.0 / float(norm.num_batches_tracked)
        norm.running_mean.lerp_(mean, momentum)
        norm.running_var.lerp_(variance * (count / max(count - 1, 1)), momentum)
