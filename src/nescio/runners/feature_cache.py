"""Features that a backbone gives for the images of a split, computed once and kept in a folder."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn

from nescio._io.kinds import FileKind
from nescio._io.locks import locked
from nescio._io.tensors import Stacked, read_tensors
from nescio.data.split import Split, check_content
from nescio.networks.checkpoint import Checkpoint
from nescio.runners.base import Runner
from nescio.runners.images import Reader
from nescio.runners.parts import PartialWork
from nescio.runners.runtimes import AUTO, CHANNELS_LAST, Runtimes
from nescio.runners.torch_models import TorchRunner
from nescio.runners.work import Compute, Task, run_task

FEATURES_VERSION = 1
"""Raise it if the same network and images give other features than before."""

_BATCH = 16
_POOLED = "pooled"
_KIND = FileKind("nescio.features", "file of cached features")


def read_features(checkpoint: Checkpoint, split: Split, folder: Path) -> NDArray[np.float32] | None:
    """Return the pooled features of a split from the cache; None if it does not have them."""
    path, _ = _entry(checkpoint, split, folder)
    return _read(path, split) if path.exists() else None


def cached_features(
    backbone: nn.Module,
    checkpoint: Checkpoint,
    split: Split,
    cache: Path,
    device: torch.device,
    on_images: Callable[[int], object] = lambda count: None,
    *,
    runtime: str | Runtimes = AUTO,
) -> NDArray[np.float32]:
    """Return a backbone's pooled features of whole images, from the cache or computed into it.

    `backbone` is that of the checkpoint's network, in eval mode and on the device. `runtime` is as
    for `extract`.
    """
    path, key = _entry(checkpoint, split, cache)
    runtimes = Runtimes.of(runtime)
    if not path.exists():
        with locked(path):
            if not path.exists():
                key |= split.content
                task = _task(backbone, checkpoint, split)
                work = PartialWork(path, key, len(split), _BATCH, runtime=runtimes.name)
                work.remove_others()  # a cache is for use again, not to be kept
                made = run_task(work, task, runtimes, on_images)
                parts, _ = work.read()
                pooled = Stacked([part[_POOLED] for part in parts])
                _KIND.write(path, {_POOLED: pooled}, {"key": key, **made.facts()})
                work.remove()
    return _read(path, split)


class _BackboneRunner(TorchRunner):
    """Runs a backbone, whose outputs are the features."""

    runtime = CHANNELS_LAST


def _task(backbone: nn.Module, checkpoint: Checkpoint, split: Split) -> Task:
    preprocessing = checkpoint.preprocessing
    runner = _BackboneRunner(backbone, preprocessing=preprocessing)
    plain = Task.plain(runner, Reader(split, preprocessing).batches)

    def computed(fast: Runner) -> Compute:
        run = plain.computed(fast)
        return lambda pixels: {_POOLED: run(pixels)["logits"].astype(np.float32, copy=False)}

    return replace(plain, computed=computed)


def _read(path: Path, split: Split) -> NDArray[np.float32]:
    tensors, metadata = read_tensors(path)
    if set(metadata) != {"key"}:  # older files have neither kind nor checksum
        _KIND.check(metadata, path)
        _KIND.verify(tensors, metadata, path)
    check_content(metadata["key"], split, path)
    return tensors[_POOLED]


def _entry(checkpoint: Checkpoint, split: Split, folder: Path) -> tuple[Path, dict[str, Any]]:
    """Return the file of the features, and the key of what they are made from."""
    key = {
        **split.identity(),
        "version": FEATURES_VERSION,
        "model": checkpoint.architecture.name,
        "backbone_hash": checkpoint.backbone_hash,
        "preprocessing": json.loads(json.dumps(checkpoint.preprocessing.as_dict())),
    }
    short = hashlib.sha256(json.dumps(key, sort_keys=True).encode()).hexdigest()[:12]
    return folder / f"features-{split.title}-{short}.safetensors", key
