"""What a network is trained on: images, or the features that a frozen backbone gives for them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from nescio.runners.images import Indices, Reader
from nescio.training.distributed import World

_OUTLIERS = 1  # makes the seed of the outliers another one than that of the other examples


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


class WithOutliers:
    """Examples to train on, and as many outliers in each batch, drawn at random."""

    def __init__(
        self,
        examples: ImageExamples | FeatureExamples,
        outliers: ImageExamples | FeatureExamples,
        world: World,
    ) -> None:
        self.examples = examples
        self.outliers = outliers
        self.world = world

    def __len__(self) -> int:
        return len(self.examples)

    def batches(
        self, batches: Sequence[Indices], seed: tuple[int, ...] = ()
    ) -> Iterator[tuple[Tensor, Tensor]]:
        """Yield inputs, the outliers last, and the labels of the inputs that are no outliers."""
        drawn = self._drawn([len(batch) for batch in batches], seed)
        for (inputs, labels), (outliers, _) in zip(
            self.examples.batches(batches, seed),
            self.outliers.batches(drawn, (*seed, _OUTLIERS)),
            strict=True,
        ):
            yield torch.cat([inputs, outliers]), labels

    def _drawn(self, sizes: Sequence[int], seed: tuple[int, ...]) -> list[NDArray[np.int64]]:
        """Return this process's share of random outliers; each is used once before any is again."""
        rng = np.random.default_rng((*seed, _OUTLIERS))
        rank, n_processes = self.world.rank, self.world.size
        ends = np.cumsum(sizes) * n_processes
        n_rounds = -(-int(ends[-1]) // len(self.outliers))
        order = np.concatenate([rng.permutation(len(self.outliers)) for _ in range(n_rounds)])
        return [batch[rank::n_processes] for batch in np.split(order[: ends[-1]], ends[:-1])]


Examples = ImageExamples | FeatureExamples | WithOutliers
