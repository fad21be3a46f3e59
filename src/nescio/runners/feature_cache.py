"""Features that a backbone gives for the images of a split, computed once and kept in a folder."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn

from nescio._io.kinds import FileKind
from nescio._io.locks import locked
from nescio._io.tensors import Stacked, read_tensors
from nescio._validation import Array
from nescio.data.split import Split, check_content
from nescio.networks.checkpoint import Checkpoint
from nescio.runners.images import Reader
from nescio.runners.parts import PartialWork, compute_parts

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
) -> NDArray[np.float32]:
    """Return a backbone's pooled features of whole images, from the cache or computed into it.

    `backbone` is that of the checkpoint's network, in eval mode and on the device.
    """
    path, key = _entry(checkpoint, split, cache)

    def compute(pixels: Array) -> dict[str, Array]:
        inputs = checkpoint.preprocessing.inputs(pixels, device)
        with torch.inference_mode():
            return {_POOLED: backbone(inputs).float().cpu().numpy()}

    if not path.exists():
        with locked(path):
            if not path.exists():
                key |= split.content
                work = PartialWork(path, key, len(split), _BATCH)
                read = Reader(split, checkpoint.preprocessing).batches
                work.run(partial(compute_parts, read, compute), on_images)
                parts, _ = work.read()
                pooled = Stacked([part[_POOLED] for part in parts])
                _KIND.write(path, {_POOLED: pooled}, {"key": key})
                work.remove()
    return _read(path, split)


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
