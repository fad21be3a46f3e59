"""The last layer of a classifier."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from nescio._validation import FloatArray, to_float, to_numpy
from nescio.errors import ShapeError
from nescio.outputs.checked import as_matrix

PENULTIMATE = "penultimate"
"""The name of the array that is the input of the head."""


@dataclass(frozen=True, eq=False, repr=False, init=False)
class Head:
    """The last layer of a classifier: logits = penultimate @ weight.T + bias.

    Parameters
    ----------
    weight : array of shape (n_labels, n_units)
    bias : array of shape (n_labels,)

    Examples
    --------
    >>> head = Head(weight=np.eye(2), bias=np.zeros(2))
    >>> head.weight.shape
    (2, 2)
    """

    weight: FloatArray
    bias: FloatArray

    def __init__(self, weight: Any, bias: Any) -> None:
        shape = np.shape(to_numpy(weight))
        if len(shape) != 2:
            raise ShapeError(
                f"the weight of the head must have shape (n_labels, n_units), got {shape}."
            )
        object.__setattr__(self, "weight", as_matrix(weight, "the weight of the head"))
        object.__setattr__(self, "bias", to_float(to_numpy(bias)))
        if self.bias.shape != self.weight.shape[:1]:
            turned = " Pass weight.T?" if self.bias.shape == self.weight.shape[1:] else ""
            raise ShapeError(
                "the head must have one bias per label: its weight has shape (n_labels, n_units) = "
                f"{self.weight.shape}, its bias {self.bias.shape}.{turned}"
            )

    def __repr__(self) -> str:
        return f"Head({self.weight.shape[1]:,} units to {self.weight.shape[0]:,} labels)"

    def same_as(self, other: Head | None) -> bool:
        """Return whether two heads have equal weights."""
        return self is other or (
            other is not None
            and np.array_equal(self.weight, other.weight)
            and np.array_equal(self.bias, other.bias)
        )
