"""The evidence over time, reduced to a bounded number of points."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]

MAX_POINTS = 2_048


class Trace:
    """The evidence after every k-th sample; k doubles whenever there are too many points."""

    def __init__(self, step: int = 1, values: Floats | None = None) -> None:
        self.step = step
        self.values: Floats = np.empty(0) if values is None else values

    def add(self, n_before: int, evidence: Floats) -> None:
        """Add the evidence after each of the samples that follow the first `n_before`."""
        first = -n_before % self.step  # keep samples 0, step, 2 * step, ...
        self.values = np.concatenate([self.values, evidence[first :: self.step]])
        while len(self.values) > MAX_POINTS:
            self.values = self.values[::2]
            self.step *= 2

    def points(self) -> tuple[tuple[int, float], ...]:
        """Return pairs of a number of samples and the evidence after them."""
        at = np.arange(len(self.values)) * self.step + 1
        return tuple(zip(at.tolist(), self.values.tolist(), strict=True))
