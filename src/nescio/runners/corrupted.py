"""The images of a split after a corruption, as pixels from 0 to 1."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from nescio.data.corrupt import corrupt
from nescio.runners.images import ImageBatch, Indices, Reader


@dataclass(frozen=True)
class CorruptedReader:
    """Reads the images of a split and corrupts each one, in the same way in any batch."""

    reader: Reader
    name: str  # one of CORRUPTIONS
    seed: tuple[int, ...] = (0,)  # the first number decides the partners of the images

    def batches(self, batches: Iterable[Indices]) -> Iterator[ImageBatch]:
        """Give the corrupted images of each batch of indices, in order."""
        own, others = itertools.tee(batches)
        partner_of = self._partners()
        images = self.reader.batches(own)
        partners = self.reader.batches(partner_of[np.asarray(batch)] for batch in others)
        for batch, other in zip(images, partners, strict=True):
            rows = zip(batch.indices, _scaled(batch), _scaled(other), strict=True)
            made = [self._corrupted(int(index), *pair) for index, *pair in rows]
            yield ImageBatch(batch.indices, np.concatenate(made))

    def _partners(self) -> NDArray[np.intp]:
        """Return the partner of each image: the next one in a random circle, never itself."""
        n_images = len(self.reader.split)
        circle = np.random.default_rng(self.seed[0]).permutation(n_images)
        partner_of = np.empty(n_images, np.intp)
        partner_of[circle] = np.roll(circle, -1)
        return partner_of

    def _corrupted(
        self, index: int, image: NDArray[np.float32], partner: NDArray[np.float32]
    ) -> NDArray[np.float32]:
        colours = {"mean": self.reader.preprocessing.mean, "std": self.reader.preprocessing.std}
        rng = np.random.default_rng((*self.seed, index))
        made = corrupt(self.name, image[None], partner[None], rng, **colours)
        return made.astype(np.float32, copy=False)


def _scaled(batch: ImageBatch) -> NDArray[np.float32]:
    return batch.pixels.astype(np.float32) / np.float32(255)
