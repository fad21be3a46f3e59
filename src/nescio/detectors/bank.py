"""What methods share that keep training samples of length 1 and search them for neighbours."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np

from nescio._validation import Array, FloatArray, checked_whole
from nescio.detectors import arrays as reading, neighbours, steps
from nescio.detectors.base import Detector
from nescio.detectors.features import checked_layer, row_blocks, unit_rows
from nescio.detectors.nearest import Cells, Found, nearest
from nescio.detectors.spaces import UnitSpace
from nescio.errors import ParameterError


class BankDetector(Detector):
    """A detector that has `bank_`, training samples of length 1, and `rows_`, their positions."""

    bank_: Array
    rows_: neighbours.Indices

    def __init__(
        self,
        k: int = 5,
        layer: str = "features",
        bank: int = 20_000,
        *,
        tpr: float = 0.95,
        nonfinite: str = "raise",
    ) -> None:
        super().__init__(tpr=tpr, nonfinite=nonfinite)
        self.k = k
        self.layer = layer
        self.bank = bank

    def _check_params(self) -> None:
        super()._check_params()
        checked_layer(self.layer)
        neighbours.check_sizes(self.k, self.bank)

    def nearest(self, X: Any, n: int = 5) -> neighbours.Indices:
        """Return the positions of the nearest training samples, nearest first.

        They count the rows that were learned from: with nonfinite="out", those without NaN or
        infinity. With a smaller `bank`, only the samples that were kept can be found.

        Parameters
        ----------
        X : array, tensor, data frame or Outputs
            What the detector reads.
        n : int
            How many samples.

        Returns
        -------
        array of shape (n_samples, n)
            -1 for samples that have no neighbours: rows of zeros and, with nonfinite="out", rows
            with NaN or infinity.
        """
        if not hasattr(self, "bank_"):
            raise steps.NotCalibratedError(
                f"{self.name} learns from data: call fit(training_data) first."
            )
        if checked_whole("n", n, minimum=1) > len(self.bank_):
            raise ParameterError(
                f"n must be at most {len(self.bank_):,}, the number of training samples that "
                f"{self.name} keeps, got {n}."
            )
        given = steps.read(self, X, self.scores_from).arrays
        inputs: FloatArray = given[self.layer]
        found = np.full((len(inputs), n), -1)
        places = np.flatnonzero(reading.usable_rows(given, self) & inputs.any(1))
        for rows, near in self._searched(inputs, places, n):
            found[rows] = self.rows_[near.positions]
        return found

    def _searched(
        self, inputs: FloatArray, rows: neighbours.Indices, k: int
    ) -> Iterator[tuple[neighbours.Indices, Found]]:
        """Give blocks of these rows, which are not of zeros, and the k samples nearest to them."""
        space = UnitSpace(self.bank_)
        for block in row_blocks(len(rows), inputs.shape[1]):
            unit = unit_rows(inputs[rows[block]])
            cells = self._cells(unit)
            if cells is None:
                yield rows[block], nearest(space, unit, k)
                continue
            # With too few samples in its cells, a row is compared with all.
            enough = np.diff(cells.starts)[cells.probed].sum(1) >= k
            part = Cells(cells.starts, cells.probed[enough])
            yield rows[block][enough], nearest(space, unit[enough], k, cells=part)
            yield rows[block][~enough], nearest(space, unit[~enough], k)

    def _cells(self, unit: FloatArray) -> Cells | None:
        """Return the cells to search for each row; None to search all samples."""
        return None
