"""What a network is trained on: images, or the features that a frozen backbone gives for them."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from nescio._io.tensors import Stacked, read_tensors, write_tensors
from nescio.data.split import Split
from nescio.networks.checkpoint import Checkpoint, weights_hash
from nescio.runners.extract import PartialWork
from nescio.runners.images import Reader

_BATCH = 16

Indices = Sequence[int] | NDArray[Any]


class Examples(Protocol):
    """Inputs and labels by index."""

    def __len__(self) -> int: ...

    def batches(
        self, batches: Sequence[Indices], seed: tuple[int, ...] = ()
    ) -> Iterator[tuple[Tensor, Tensor]]:
        """Inputs and labels of each batch, on the device; `seed` decides the random crops."""
        ...


class ImageExamples:
    """Images, cropped at random if the reader does so."""

    def __init__(self, reader: Reader, labels: NDArray[np.uint8], device: torch.device) -> None:
        self.reader = reader
        self.labels = torch.from_numpy(labels.astype(np.float32))
        self.device = device

    def __len__(self) -> int:
        return len(self.labels)

    def batches(
        self, batches: Sequence[Indices], seed: tuple[int, ...] = ()
    ) -> Iterator[tuple[Tensor, Tensor]]:
        """Normalised images and their labels."""
        for batch in self.reader.reseeded(*seed).batches(batches):
            inputs = self.reader.preprocessing.inputs(batch.pixels, self.device)
            yield inputs, self.labels[torch.from_numpy(batch.indices)].to(self.device)


class FeatureExamples:
    """Features, computed once."""

    def __init__(
        self, features: NDArray[np.float32], labels: NDArray[np.uint8], device: torch.device
    ) -> None:
        self.features = torch.from_numpy(np.array(features)).to(device)
        self.labels = torch.from_numpy(labels.astype(np.float32)).to(device)

    def __len__(self) -> int:
        return len(self.labels)

    def batches(
        self, batches: Sequence[Indices], seed: tuple[int, ...] = ()
    ) -> Iterator[tuple[Tensor, Tensor]]:
        """Features and their labels; nothing is random here."""
        for indices in batches:
            chosen = torch.as_tensor(np.asarray(indices), device=self.features.device)
            yield self.features[chosen], self.labels[chosen]


def cached_features(
    backbone: nn.Module,
    checkpoint: Checkpoint,
    split: Split,
    cache: Path,
    device: torch.device,
    on_images: Callable[[int], object] = lambda count: None,
) -> NDArray[np.float32]:
    """A frozen backbone's pooled features of whole images, from the cache or computed into it."""
    key = {
        **split.manifest(),
        "model": checkpoint.architecture.name,
        "backbone_hash": weights_hash(backbone),
        "preprocessing": json.loads(json.dumps(asdict(checkpoint.preprocessing))),
    }
    short = hashlib.sha256(json.dumps(key, sort_keys=True).encode()).hexdigest()[:12]
    path = cache / f"features-{split.title}-{short}.safetensors"
    if not path.exists():
        cache.mkdir(parents=True, exist_ok=True)
        work = PartialWork(path, key, len(split), _BATCH)

        def compute(inputs: Tensor) -> dict[str, Tensor]:
            with torch.inference_mode():
                return {"pooled": backbone(inputs)}

        work.run(Reader(split, checkpoint.preprocessing), compute, device, on_images)
        parts, _ = work.read()
        pooled = Stacked([part["pooled"] for part in parts])
        write_tensors(path, {"pooled": pooled}, {"key": key})
        work.remove()
    return read_tensors(path)[0]["pooled"]
