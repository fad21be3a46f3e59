"""Distance to the k-th nearest training sample, on features of length 1."""

from __future__ import annotations

import numpy as np

from nescio._validation import Array, FloatArray, checked_choice, checked_whole
from nescio.detectors import neighbours
from nescio.detectors.arrays import Arrays
from nescio.detectors.bank import BankDetector
from nescio.detectors.cells import cells_of, find_centers, nearest_rows, probed, starts_of
from nescio.detectors.features import unit_rows
from nescio.detectors.nearest import Cells
from nescio.errors import ParameterError

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
    reduce : {"random", "centers"}
        How a larger number of samples is reduced to `bank`: drawn at random with a fixed seed, or
        to the centres of as many cells, which stand for all samples. Take centres with k = 1: they
        lose much less (docs/how-to/choose-a-detector.md). The time to learn them grows with the
        square of `bank`, so they are for some thousands.
    cells : int
        For a large bank, an index: the samples are divided into this many cells around centres,
        and only some cells are searched. 0 for none. About the square root of the number of samples
        is a good start.
    probes : int
        How many cells are searched, those with the nearest centres. With all of them, the search is
        exact; with fewer, distances can be too large, never too small.

    Attributes
    ----------
    bank_ : array of shape (n_kept, n_features)
        The training samples that are searched, of length 1.
    rows_ : array of shape (n_kept,)
        Their positions in the training data; of centres, that of the sample nearest to each.
    centers_ : array of shape (n_cells, n_features)
        With `cells`: the centres of the cells, of length 1.
    starts_ : array of shape (n_cells + 1,)
        With `cells`: where each cell starts in `bank_`.

    Examples
    --------
    >>> rng = np.random.default_rng(0)
    >>> detector = NearestNeighbours().fit(rng.normal(3, 1, (300, 6)))
    >>> detector.predict([[3.0] * 6, [-3.0] * 6])
    array([ 1, -1])
    """

    name = "knn"
    paper = "Sun et al., ICML 2022"

    centers_: Array
    starts_: neighbours.Indices

    def __init__(
        self,
        k: int = 5,
        layer: str = "features",
        bank: int = 20_000,
        reduce: str = "random",
        cells: int = 0,
        probes: int = 16,
        *,
        tpr: float = 0.95,
        nonfinite: str = "raise",
    ) -> None:
        super().__init__(k, layer, bank, tpr=tpr, nonfinite=nonfinite)
        self.reduce = reduce
        self.cells = cells
        self.probes = probes

    def _check_params(self) -> None:
        super()._check_params()
        checked_choice("reduce", self.reduce, ("random", "centers"))
        checked_whole("probes", self.probes, minimum=1)
        if 0 < checked_whole("cells", self.cells, minimum=0) < self.probes:
            raise ParameterError(
                f"probes must be at most the number of cells, {self.cells}, got {self.probes}."
            )
        if self.cells and self.reduce == "centers":
            raise ParameterError(
                'cells are for many samples, and reduce="centers" keeps few. Choose one of them.'
            )

    @property
    def learned(self) -> tuple[str, ...]:  # type: ignore[override]
        """The training samples and, with cells, the index."""
        return ("bank_", "rows_", "centers_", "starts_") if self.cells else ("bank_", "rows_")

    @property
    def learns_from(self) -> tuple[str, ...]:
        """The features of the layer."""
        return (self.layer,)

    scores_from = learns_from

    def _learn(self, arrays: Arrays) -> None:
        features: FloatArray = arrays[self.layer]
        directed = np.flatnonzero(features.any(1))
        neighbours.check_enough(self.k, len(directed), self.name)
        if self.reduce == "centers" and 0 < self.bank < len(directed):
            self.bank_ = find_centers(features, directed, self.bank)
            self.rows_ = directed[nearest_rows(features, directed, self.bank_)]
            return
        self.rows_ = directed[neighbours.drawn(len(directed), self.bank)]
        if self.cells:
            neighbours.check_enough(self.cells, len(self.rows_), f"{self.name}, cells")
            self.centers_ = find_centers(features, self.rows_, self.cells)
            cell = cells_of(features, self.rows_, self.centers_)
            self.rows_ = self.rows_[np.argsort(cell, kind="stable")]
            self.starts_ = starts_of(cell, self.cells)
        self.bank_ = unit_rows(features, self.rows_)

    def _cells(self, unit: FloatArray) -> Cells | None:
        if not self.cells:
            return None
        return probed(unit, self.centers_, self.starts_, min(self.probes, self.cells))

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
            and (not self.cells or self._index_fits())
        )
        if not fits:
            raise ValueError("its training samples are not consistent")

    def _index_fits(self) -> bool:
        starts = self.starts_
        return (
            neighbours.fits(self.centers_, self.cells, self.n_features_in_)
            and starts.shape == (len(self.centers_) + 1,)
            and starts.dtype.kind == "i"
            and len(self.centers_) == self.cells
            and starts[0] == 0
            and starts[-1] == len(self.bank_)
            and bool((np.diff(starts) >= 0).all())
        )
