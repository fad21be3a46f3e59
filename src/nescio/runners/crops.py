"""Crops of a model's input: cut out, enlarged to the size of the image, and run in batches.

They are cut from the input of the model, after any transform, so that every runner of images can
give them. An image file with more pixels than the model takes has no more detail in its crops.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from itertools import product
from math import ceil
from typing import Any

import numpy as np

from nescio._validation import Array, to_numpy
from nescio.errors import InputError
from nescio.outputs.crops import CROP_STARTS, CROPS, N_CROPS, join_crops

_SMALLEST = 8  # pixels; fewer are channels, if these come last


def run_crops(
    run: Callable[[Any], dict[str, Array]], inputs: Any, *, fixed_batch: bool
) -> dict[str, Array]:
    """Run the crops of a batch of images, and return their arrays.

    The nine crops of one image are one batch. Of several images, about as many crops run together
    as there are images, or just as many if the model takes a single batch size only.
    """
    key, images = _images_of(inputs)
    together = 1 if fixed_batch else ceil(N_CROPS / len(images))
    corners = list(product(CROP_STARTS, CROP_STARTS))
    parts: dict[str, list[Array]] = {}
    for start in range(0, N_CROPS, together):
        places = corners[start : start + together]
        crops = np.concatenate([cut(images, top, left) for top, left in places])
        for name, array in run(_like(inputs, key, crops)).items():
            rows = array.reshape(len(places), len(images), -1)
            parts.setdefault(CROPS + name, []).append(rows)
    return {name: join_crops(np.concatenate(rows)) for name, rows in parts.items()}


def cut(images: Array, top: float, left: float) -> Array:
    """Return the crops at one place, enlarged to the size of the images by linear interpolation.

    Parameters
    ----------
    images : array of shape (n_images, channels, height, width)
    top, left : float
        Where the crop starts, as shares of height and width; it ends half of them further.
    """
    found = images
    for axis, start in ((2, top), (3, left)):
        size = images.shape[axis]
        first, last = round(start * size), round((start + 0.5) * size) - 1
        # Where the middle of each new pixel lies among the middles of the old ones.
        at = first - 0.5 + (np.arange(size) + 0.5) * (last + 1 - first) / size
        lower = np.clip(np.floor(at).astype(np.int64), first, last)
        upper = np.minimum(lower + 1, last)
        shape = (-1, 1) if axis == 2 else (-1,)
        share = np.clip(at - lower, 0, 1).astype(np.float32).reshape(shape)
        found = found.take(lower, axis) * (1 - share) + found.take(upper, axis) * share
    if images.dtype.kind != "f":
        found = np.rint(found)
    return np.asarray(found.astype(images.dtype, copy=False))


def _images_of(inputs: Any) -> tuple[Any, Array]:
    """Return the images among the inputs, and their name or position; None if they are all."""
    parts: dict[Any, Any] = {None: inputs}
    if isinstance(inputs, Mapping | tuple):
        parts = dict(inputs) if isinstance(inputs, Mapping) else dict(enumerate(inputs))
    (key, part), *others = parts.items()
    shape = tuple(getattr(part, "shape", ()))
    fits = len(shape) == 4 and shape[0] and min(shape[2:]) >= _SMALLEST
    if others or not fits:
        given = f"{len(parts)} inputs" if others else f"shape {shape}"
        raise InputError(
            "crops need a single input of images, of shape (n_images, channels, height, width) "
            f"with at least {_SMALLEST} x {_SMALLEST} pixels, got {given}. For other inputs, "
            "choose a detector that reads no crops."
        )
    return key, to_numpy(part)


def _like(inputs: Any, key: Any, crops: Array) -> Any:
    """Return crops in the form that the images had."""
    if isinstance(inputs, Mapping):
        return {key: crops}
    return (crops,) if isinstance(inputs, tuple) else crops
