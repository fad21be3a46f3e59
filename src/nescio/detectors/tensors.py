"""Operations that NumPy and torch name differently, for scores that can be exported."""

from __future__ import annotations

import sys
from typing import Any

import numpy as np

from nescio._validation import is_torch


def exp(x: Any) -> Any:
    """Return e to the power of each value."""
    return x.exp() if is_torch(x) else np.exp(x)


def where(condition: Any, x: Any, y: Any) -> Any:
    """Return x where the condition holds, else y."""
    return (sys.modules["torch"] if is_torch(condition) else np).where(condition, x, y)


def like(array: Any, x: Any) -> Any:
    """Return an array in the precision of x: torch multiplies no matrices of two precisions."""
    return array.to(x.dtype) if is_torch(x) else array.astype(x.dtype, copy=False)


def largest(x: Any, k: int) -> Any:
    """Return the k largest values of each row (all if there are fewer), the smallest one first.

    The others are in no particular order.

    Examples
    --------
    >>> largest(np.array([[3.0, 1.0, 2.0]]), 2)
    array([[2., 3.]])
    """
    k = min(k, x.shape[1])
    if is_torch(x):
        return x.topk(k, dim=1).values.flip(1)
    first = x.shape[1] - k
    return np.partition(x, first, axis=1)[:, first:]
