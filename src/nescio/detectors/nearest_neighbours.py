"""Distance to the k-th nearest training sample, on features of length 1."""

from __future__ import annotations

from typing import Any, ClassVar

import numpy as np

from nescio._validation import Array, FloatArray, checked_whole
from nescio.detectors import arrays as reading, neighbours, steps
from nescio.detectors.arrays import Arrays
from nescio.detectors.base import Detector
from nescio.detectors.features import checked_layer, row_blocks, unit_rows
from nescio.errors import ParameterError

# The distance to a sample at a right angle, for rows that have no direction.
_AT_RIGHT_ANGLES = np.sqrt(2.0)


class NearestNeighbours(Detector):
    """Minus the distance to the k-th nearest training sample, on features of length 1.

    Features are divided by their Euclidean length. A row of zeros has no direction: it counts as
    orthogonal to every training sample, at the distance sqrt(2), and is not learned from.

    The search is exact: products with every sample that is kept, in the precision of the training
    features. The distance to the sample that was found is computed in float64. So float32 rounds
    the order of neighbours, not their distance, and matters only if several of them lie within
    about 0.0005 of the sample.

    Parameters
    ----------
    k : int
        Which neighbour.
    layer : str
        The array to read: "features", or a name in `Outputs.arrays`.
    bank : int
        How many training samples to keep at most, drawn at random with a fixed seed; 0 for all.
        Memory, the size of the file and the time to score grow with it. With 20,000 samples of
        1,024 features, these are 82 MB, and below 10 % of the time of DenseNet-121, even for one
        image at a time (benchmarks/neighbours.py).

    Attributes
    ----------
    bank_ : array of shape (n_kept, n_features)
        The training samples that are searched, of length 1.
    rows_ : array of shape (n_kept,)
        Their positions in the training data.

    Examples
    --------
    >>> rng = np.random.default_rng(0)
    >>> detector = NearestNeighbours().fit(rng.normal(3, 1, (300, 6)))
    >>> detector.predict([[3.0] * 6, [-3.0] * 6])
    array([ 1, -1])
    """

    name = "knn"
    paper = "Sun et al., ICML 2022"
    learned: ClassVar[tuple[str, ...]] = ("bank_", "rows_")

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

    @property
    def learns_from(self) -> tuple[str, ...]:
        """The features of the layer."""
        return (self.layer,)

    scores_from = learns_from

    def _check_params(self) -> None:
        super()._check_params()
        checked_layer(self.layer)
        neighbours.check_sizes(self.k, self.bank)

    def _learn(self, arrays: Arrays) -> None:
        features: FloatArray = arrays[self.layer]
        directed = np.flatnonzero(features.any(1))
        neighbours.check_enough(self.k, len(directed), self.name)
        self.rows_ = directed[neighbours.drawn(len(directed), self.bank)]
        self.bank_ = unit_rows(features[self.rows_])

    def _score(self, arrays: Arrays) -> Array:
        neighbours.check_enough(self.k, len(self.bank_), self.name)
        inputs: FloatArray = arrays[self.layer]
        scores = np.empty(len(inputs))
        for block in row_blocks(len(inputs), max(self.bank_.shape)):
            unit = unit_rows(inputs[block])
            kth = neighbours.largest(neighbours.products(unit, self.bank_), self.k)[:, 0]
            distances = neighbours.distances(unit, self.bank_[kth])
            scores[block] = -np.where(unit.any(1), distances, _AT_RIGHT_ANGLES)
        return scores

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
            raise steps.NotCalibratedError("knn learns from data: call fit(training_data) first.")
        if checked_whole("n", n, minimum=1) > len(self.bank_):
            raise ParameterError(
                f"n must be at most {len(self.bank_):,}, the number of training samples that knn "
                f"keeps, got {n}."
            )
        given = steps.read(self, X, self.scores_from).arrays
        inputs: FloatArray = given[self.layer]
        found = np.full((len(inputs), n), -1)
        places = np.flatnonzero(reading.usable_rows(given, self) & inputs.any(1))
        for block in row_blocks(len(places), max(len(self.bank_), n * inputs.shape[1])):
            unit = unit_rows(inputs[places[block]])
            near = np.sort(neighbours.largest(neighbours.products(unit, self.bank_), n), axis=1)
            distances = neighbours.distances(unit[:, None], self.bank_[near])  # (n_rows, n)
            order = np.argsort(distances, axis=1, kind="stable")
            found[places[block]] = self.rows_[np.take_along_axis(near, order, axis=1)]
        return found

    def _check_learned(self) -> None:
        fits = (
            neighbours.fits(self.bank_, self.k, self.n_features_in_)
            and self.rows_.shape == self.bank_.shape[:1]
            and self.rows_.dtype.kind == "i"
        )
        if not fits:
            raise ValueError("its training samples are not consistent")
