"""What a network is trained on: images, or the features that a frozen backbone gives for them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from nescio.runners.images import Indices, Reader


class ImageExamples:
    """Images, cropped at random if the reader does that."""

    def __init__(self, reader: Reader, labels: NDArray[np.uint8], device: torch.device) -> None:
        self.reader = reader
        self.labels = torch.from_numpy(labels.astype(np.float32))
        self.device = device

    def __len__(self) -> int:
        return len(self.labels)

    def batches(
        self, batches: Sequence[Indices], seed: tuple[int, ...] = ()
    ) -> Iterator[tuple[Tensor, Tensor]]:
        """Give normalised images and their labels; `seed` decides the random crops."""
        for batch in self.reader.reseeded(*seed).batches(batches):
            inputs = self.reader.preprocessing.inputs(batch.pixels, self.device)
            yield inputs, self.labels[torch.from_numpy(batch.indices)].to(self.device)


class FeatureExamples:
    """Features that were computed once."""

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
        """Yield features and their labels; nothing is random here."""
        for indices in batches:
            chosen = torch.as_tensor(np.asarray(indices), device=self.features.device)
            yield self.features[chosen], self.labels[chosen]


Examples = ImageExamples | FeatureExamples
