"""From image files to batches of pixels, which threads read ahead of the model.

Threads and not processes: Pillow decodes and resizes without the interpreter's lock, and nothing is
copied between processes. An image's random crop depends on its index alone, so the result is the
same for any number of threads.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from nescio._threads import available_cpus
from nescio.errors import DatasetError, ParameterError
from nescio.lab.data.corrupt import corrupt
from nescio.lab.data.split import Split
from nescio.models.images import Preprocessing, read_image

_BATCHES_AHEAD = 2
_CROP_ATTEMPTS = 10
_CROP_RATIO = (3 / 4, 4 / 3)

Box = tuple[float, float, float, float]
Indices = Sequence[int] | NDArray[Any]
Pixels = NDArray[np.uint8]


@dataclass(frozen=True)
class Augmentation:
    """Random crops, stretched to the square, and mirror images half of the time.

    Parameters
    ----------
    crop_scale : tuple of two floats
        The smallest and largest share of the image's area to keep. A crop cannot be larger than the
        image: with a largest share above 1, sizes are drawn again until a crop fits, at most 10
        times, and then the whole image is taken (or its middle, if it is long and narrow).
    flip : bool
    """

    crop_scale: tuple[float, float] = (0.5, 1.0)
    flip: bool = True

    def __post_init__(self) -> None:
        scale = tuple(float(value) for value in self.crop_scale)
        if len(scale) != 2 or not 0 < scale[0] <= min(1, scale[1]) or not math.isfinite(scale[1]):
            raise ParameterError(f"crop_scale must be two shares, such as [0.5, 1.0], got {scale}.")
        object.__setattr__(self, "crop_scale", scale)

    def box(self, width: int, height: int, rng: np.random.Generator) -> Box:
        """Return left, top, right and bottom of a random crop."""
        for _ in range(_CROP_ATTEMPTS):
            area = width * height * rng.uniform(*self.crop_scale)
            ratio = math.exp(rng.uniform(math.log(_CROP_RATIO[0]), math.log(_CROP_RATIO[1])))
            w, h = round(math.sqrt(area * ratio)), round(math.sqrt(area / ratio))
            if 0 < w <= width and 0 < h <= height:
                left = int(rng.integers(width - w + 1))
                top = int(rng.integers(height - h + 1))
                return left, top, left + w, top + h
        # No crop fits. Take the whole image, or the middle of a long and narrow one.
        w = min(width, round(height * _CROP_RATIO[1]))
        h = min(height, round(width / _CROP_RATIO[0]))
        left, top = (width - w) // 2, (height - h) // 2
        return left, top, left + w, top + h


@dataclass(frozen=True)
class Reader:
    """Reads the images of a split."""

    split: Split
    preprocessing: Preprocessing
    augmentation: Augmentation | None = None  # its crops are drawn from seed and index
    seed: tuple[int, ...] = ()

    def pixels(self, index: int) -> Pixels:
        """Read one image, of shape (3, size, size)."""
        try:
            image = read_image(self.split.path(index))
        except DatasetError as error:
            raise DatasetError(
                f"{error} Fix the file, or leave it out: --skip-bad, or "
                "nescio.lab.data.without_damaged(split)."
            ) from error
        if self.augmentation is None:
            return self.preprocessing.pixels(image)
        rng = np.random.default_rng((*self.seed, index))
        pixels = self.preprocessing.pixels(image, self.augmentation.box(*image.size, rng))
        flipped = self.augmentation.flip and rng.random() < 0.5
        return pixels[:, :, ::-1] if flipped else pixels

    def batches(self, batches: Iterable[Indices]) -> Iterator[Pixels]:
        """Give the images of each batch of indices, in order; reading runs ahead of the caller.

        A batch has the shape (n_images, 3, size, size).
        """
        pending: deque[list[Future[Pixels]]] = deque()
        with ThreadPoolExecutor(available_cpus()) as pool:
            try:
                for indices in batches:
                    pending.append([pool.submit(self.pixels, int(index)) for index in indices])
                    if len(pending) > _BATCHES_AHEAD:
                        yield np.stack([image.result() for image in pending.popleft()])
                while pending:
                    yield np.stack([image.result() for image in pending.popleft()])
            finally:
                pool.shutdown(wait=False, cancel_futures=True)


@dataclass(frozen=True)
class CorruptedReader:
    """Reads images as pixels from 0 to 1, and corrupts each one the same way in any batch."""

    reader: Reader
    name: str  # one of CORRUPTIONS
    seed: tuple[int, ...] = (0,)  # the first number decides the partners of the images

    def batches(self, batches: Iterable[Indices]) -> Iterator[NDArray[np.float32]]:
        """Give the corrupted images of each batch of indices, in order."""
        batches = [np.asarray(batch) for batch in batches]
        # The partner of an image is the next one in a random circle, never itself.
        circle = np.random.default_rng(self.seed[0]).permutation(len(self.reader.split))
        partner_of = np.empty(len(circle), np.intp)
        partner_of[circle] = np.roll(circle, -1)
        images = self.reader.batches(batches)
        partners = self.reader.batches(partner_of[batch] for batch in batches)
        colours = {"mean": self.reader.preprocessing.mean, "std": self.reader.preprocessing.std}
        for indices, *pair in zip(batches, images, partners, strict=True):
            pixels, partner = (part.astype(np.float32) / np.float32(255) for part in pair)
            rows = [slice(row, row + 1) for row in range(len(indices))]
            rngs = [np.random.default_rng((*self.seed, int(index))) for index in indices]
            yield np.concatenate(
                [
                    corrupt(self.name, pixels[row], partner[row], rng, **colours)
                    for row, rng in zip(rows, rngs, strict=True)
                ]
            )


def in_batches(n_items: int, batch_size: int) -> list[range]:
    """Return consecutive indices in batches of `batch_size`."""
    return [
        range(start, min(start + batch_size, n_items)) for start in range(0, n_items, batch_size)
    ]
