"""Corrupted images: floats within [0, 1] of shape (n, 3, h, w).

`SYNTHETIC_SETS` are the paper's five synthetic validation sets, made from noise and from
in-distribution images. Two more corruptions are what the authors' published code has in place of
two of these.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Any

import numpy as np
from numpy.typing import NDArray

from nescio.errors import ShapeError
from nescio.lab.data.split import Indices, Reader
from nescio.models.images import Preprocessing

Images = NDArray[np.floating[Any]]


def gaussian_noise(images: Images, _partners: Images, rng: np.random.Generator) -> Images:
    """Return independent standard normal values, as normalised inputs."""
    return rng.standard_normal(images.shape, dtype=np.float32)


def clipped_gaussian_noise(images: Images, _partners: Images, rng: np.random.Generator) -> Images:
    """Return normal values of standard deviation 0.5, clipped to [-1, 1], as normalised inputs."""
    return (0.5 * rng.standard_normal(images.shape, dtype=np.float32)).clip(-1, 1)


def uniform_noise(images: Images, _partners: Images, rng: np.random.Generator) -> Images:
    """Return independent uniform values on [-1, 1), as normalised inputs."""
    return 2 * rng.random(images.shape, dtype=np.float32) - 1


def arithmetic_mean(images: Images, partners: Images, _rng: np.random.Generator) -> Images:
    """Return the mean of two images, pixel by pixel."""
    return (images + partners) / 2


def geometric_mean(images: Images, partners: Images, _rng: np.random.Generator) -> Images:
    """Return the square root of the product of two images, pixel by pixel."""
    mean: Images = np.sqrt(images * partners)
    return mean


def jigsaw(images: Images, _partners: Images, rng: np.random.Generator) -> Images:
    """Permute 4 by 4 equal patches of each image; pixels left over at an edge stay there."""
    side = 4  # in patches
    height, width = (length // side for length in images.shape[2:])
    if not (height and width):
        raise ShapeError(
            f"images must have at least {side} by {side} pixels for a jigsaw, got {images.shape}."
        )
    corners = [(row * height, column * width) for row in range(side) for column in range(side)]
    shuffled = images.copy()
    for image, target in zip(images, shuffled, strict=True):
        order = np.arange(len(corners))
        while (order == np.arange(len(corners))).all():  # never the identity
            order = rng.permutation(len(corners))
        for (to_y, to_x), source in zip(corners, order, strict=True):
            y, x = corners[source]
            patch = image[:, y : y + height, x : x + width]
            target[:, to_y : to_y + height, to_x : to_x + width] = patch
    return shuffled


def unnormalised(images: Images, _partners: Images, _rng: np.random.Generator) -> Images:
    """Return the images as they are, as inputs that nobody has normalised.

    The authors' code has these images where the paper has the jigsaw: it assigns the permutation
    and the normalisation to an attribute that nothing reads.
    """
    return images


CORRUPTIONS: dict[str, Callable[[Images, Images, np.random.Generator], Images]] = {
    function.__name__: function
    for function in (
        gaussian_noise,
        uniform_noise,
        arithmetic_mean,
        geometric_mean,
        jigsaw,
        clipped_gaussian_noise,
        unnormalised,
    )
}
"""Each corruption as a function of (images, partners, rng); noise uses only the images' shape."""

SYNTHETIC_SETS = tuple(CORRUPTIONS)[:5]
"""The names of the paper's five sets."""

# They return the network's input; the others return pixels in [0, 1].
_INPUTS = ("gaussian_noise", "clipped_gaussian_noise", "uniform_noise", "unnormalised")


def corrupt(
    name: str, images: Images, partners: Images, rng: np.random.Generator, scale: Preprocessing
) -> Images:
    """Return images and their partners, of shape (n, 3, h, w), corrupted; as pixels.

    The paper draws its noise in the input space of the classifier. So the noise is normal or
    uniform after the normalisation of `scale`, and its pixels may be outside [0, 1].
    """
    made = CORRUPTIONS[name](images, partners, rng)
    if name in _INPUTS:
        std, mean = np.array([scale.std, scale.mean], np.float32)[:, :, None, None]
        made = made * std + mean
    return made.astype(images.dtype, copy=False)


def corrupted_batches(
    reader: Reader, name: str, batches: Iterable[Indices], seed: tuple[int, ...] = (0,)
) -> Iterator[NDArray[np.float32]]:
    """Give the images of each batch of indices as pixels from 0 to 1, corrupted as in any batch."""
    batches = [np.asarray(batch) for batch in batches]
    # The partner of an image is the next one in a random circle, never itself.
    circle = np.random.default_rng(seed[0]).permutation(len(reader.split))
    partner_of = np.roll(circle, -1)[np.argsort(circle)]
    images = reader.batches(batches)
    partners = reader.batches(partner_of[batch] for batch in batches)
    for indices, *pair in zip(batches, images, partners, strict=True):
        corrupted = []
        for index, *pixels in zip(indices, *pair, strict=True):
            image, partner = (p[None].astype(np.float32) / np.float32(255) for p in pixels)
            rng = np.random.default_rng((*seed, int(index)))
            corrupted.append(corrupt(name, image, partner, rng, reader.preprocessing))
        yield np.concatenate(corrupted)
