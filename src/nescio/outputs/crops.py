"""Crops of images: where they lie, how their arrays are named, and the heat map that they make.

An image has nine crops, in three rows and three columns. Each one has half the height and half the
width of the image, so that neighbours overlap by half.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from nescio._validation import Array
from nescio.errors import ShapeError

CROPS = "crops_"
"""How the arrays of crops are named: crops_logits has the logits of the nine crops side by side."""

CROP_STARTS = (0.0, 0.25, 0.5)
"""Where crops start, as shares of the height or the width; they are half as high and wide."""

N_CROPS = len(CROP_STARTS) ** 2

_HOTTEST = 0.01  # a p-value as low as this, or lower, has the full heat


def is_crops(name: str) -> bool:
    """Return whether this is the name of an array of crops."""
    return name.startswith(CROPS)


def join_crops(by_crop: Array) -> Array:
    """Return rows of shape (n_crops, n_samples, n_columns) as (n_samples, n_crops * n_columns)."""
    return np.ascontiguousarray(by_crop.swapaxes(0, 1)).reshape(by_crop.shape[1], -1)


def views(whole: Array, crops: Array, name: str) -> Array:
    """Return the rows of each image followed by those of its crops: (n_samples * 10, n_columns)."""
    n_samples, n_columns = whole.shape
    if crops.shape != (n_samples, N_CROPS * n_columns):
        raise ShapeError(
            f"{CROPS}{name} must have the {n_columns} columns of {name} for each of the {N_CROPS} "
            f"crops, {N_CROPS * n_columns} in all, got shape {crops.shape}."
        )
    return np.concatenate([whole, crops], axis=1).reshape(-1, n_columns)


def heat_map(p_values: Any) -> NDArray[np.float64]:
    """Return how suspicious each place of an image is, from 0 to 1, in 4 rows and 4 columns.

    The heat of a crop is -log10(p) / 2, at most 1: 0.5 for a p-value of 0.1, and 1 for one of 0.01
    or lower. The heat of a place is the mean over the crops that cover it.

    Parameters
    ----------
    p_values : array of shape (..., 9)
        The p-values of the crops, row by row.

    Returns
    -------
    array of shape (..., 4, 4)

    Examples
    --------
    >>> heat_map([0.1, 1, 1] * 3)
    array([[0.5 , 0.25, 0.  , 0.  ],
           [0.5 , 0.25, 0.  , 0.  ],
           [0.5 , 0.25, 0.  , 0.  ],
           [0.5 , 0.25, 0.  , 0.  ]])
    """
    clipped = np.clip(np.asarray(p_values, np.float64), _HOTTEST, 1)
    heat = (np.log10(clipped) / np.log10(_HOTTEST)).reshape(*clipped.shape[:-1], 3, 3)
    # Crop i covers the quarters i and i + 1: (quarters, crops)
    covers = np.array([[1, 0, 0], [1, 1, 0], [0, 1, 1], [0, 0, 1]], np.float64)
    covers /= covers.sum(1, keepdims=True)
    return np.asarray(covers @ heat @ covers.T)
