"""Distance to the k-th nearest training sample, on features of length 1."""

from __future__ import annotations

import numpy as np

from nescio._validation import Array, FloatArray
from nescio.detectors import neighbours
from nescio.detectors.arrays import Arrays
from nescio.detectors.bank import BankDetector
from nescio.detectors.features import unit_rows

# The distance to a sample at a right angle, for rows that have no direction.
_AT_RIGHT_ANGLES = np.sqrt(2.0)


class NearestNeighbours(BankDetector):
    """Minus the distance to the k-th nearest training sample, on features of length 1.

    Features are divided by their Euclidean length. A row of zeros has no direction: it counts as
    orthogonal to every training sample, at the distance sqrt(2), and is not learned from.

    The search is exact and its memory bounded: products with every sample that is kept, in the
    precision of the training features, choose candidates, and distances in float64 decide.

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
    learned = ("bank_", "rows_")

    @property
    def learns_from(self) -> tuple[str, ...]:
        """The features of the layer."""
        return (self.layer,)

    scores_from = learns_from

    def _learn(self, arrays: Arrays) -> None:
        features: FloatArray = arrays[self.layer]
        directed = np.flatnonzero(features.any(1))
        neighbours.check_enough(self.k, len(directed), self.name)
        self.rows_ = directed[neighbours.drawn(len(directed), self.bank)]
        self.bank_ = unit_rows(features[self.rows_])

    def _score(self, arrays: Arrays) -> Array:
        neighbours.check_enough(self.k, len(self.bank_), self.name)
        inputs: FloatArray = arrays[self.layer]
        scores = np.full(len(inputs), -_AT_RIGHT_ANGLES)
        for rows, found in self._searched(inputs, np.flatnonzero(inputs.any(1)), self.k):
            scores[rows] = -found.distances[:, -1]
        return scores

    def _check_learned(self) -> None:
        fits = (
            neighbours.fits(self.bank_, self.k, self.n_features_in_)
            and self.rows_.shape == self.bank_.shape[:1]
            and self.rows_.dtype.kind == "i"
        )
        if not fits:
            raise ValueError("its training samples are not consistent")
