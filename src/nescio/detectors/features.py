"""Detectors of features: base class, row-wise arithmetic, linear probe, out of range, ViM."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from nescio import scores
from nescio._validation import Array, FloatArray, checked_flag, checked_whole, is_torch
from nescio.calibration import TIE_TOLERANCE
from nescio.detectors.base import Decided, Detector
from nescio.detectors.inputs import Arrays
from nescio.errors import (
    BlindSpotWarning,
    InputError,
    MissingInputError,
    ParameterError,
    ShapeError,
    warn,
)
from nescio.explain import RangesExplanation
from nescio.scores import exp, like, log, where

Matrix = NDArray[np.float64]

_LARGEST_BLOCK = 2**23  # elements of 8 bytes: 64 MB
_MOST_ROWS = 1024
# Kernels of BLAS take 2 to 24 rows at a time. With this number no rows remain, which they would
# add in another order. More rows would slow down a single row, and fewer a large batch.
_PRODUCT_ROWS = 24
# Relative to the largest variance, for each feature: rounding to float32 leaves a variance of up to
# 2 ** -48 in directions that have none. Whether the values were stored as float32 or as float64
# must not decide which directions count.
SMALLEST_VARIANCE = 2.0**-46
_SMALLEST_LENGTH = 1e-6  # in ranges; the logarithm of a row that equals the mean is finite
_TAIL, _FEWEST_IN_TAIL = 0.01, 20  # the share of known values, or their number, if that is more
_SHORTEST_TAIL = 0.03  # of the range without the tails: many values are at this end
_USUAL_TAIL = 0.1  # of the range, if a column is constant
_WILD, _LENGTHENED = 3, 10  # tails; how many times as far as wild values
_USUAL_OUTLIERS = 0.002  # of ordinary samples
_ENOUGH_TO_CUT = 100  # rows: one of them may be wild, at each end
_COLUMNS = 64  # whose quantiles are computed at once
_PENALTIES = 2.0 ** np.arange(-8, 7)  # in units of the mean eigenvalue
_ROWS = 4_096  # a mean error over this number of samples tells penalties apart


class FeatureDetector(Detector):
    """Base class of detectors that read the features of one layer, `layer`."""

    layer: str

    learns_with: ClassVar[tuple[str, ...]] = ()
    """The arrays that `_learn` gets beside the features of the layer."""

    scores_with: ClassVar[tuple[str, ...]] = ()
    """The arrays that `_score` gets beside the features of the layer."""

    no_layers: ClassVar[tuple[str, ...]] = ("logits", "labels", "head")
    """The arrays that `layer` must not name."""

    @property
    def learns_from(self) -> tuple[str, ...]:
        """The features of the layer, and `learns_with`."""
        return (self.layer, *self.learns_with)

    @property
    def scores_from(self) -> tuple[str, ...]:
        """The features of the layer, and `scores_with`."""
        return (self.layer, *self.scores_with)

    def _check_params(self) -> None:
        super()._check_params()
        if not isinstance(self.layer, str) or not self.layer or self.layer in self.no_layers:
            raise ParameterError(
                "layer must be 'features' or the name of another array of features in "
                f"Outputs.arrays, got {self.layer!r}."
            )


# The functions below also take tensors, for detectors that can be exported: of these, all rows are
# computed at once.


def row_blocks(n_rows: int, width: int) -> Iterator[slice]:
    """Give blocks of rows: a temporary array of this width and 8 bytes takes at most 64 MB."""
    step = min(_MOST_ROWS, max(1, _LARGEST_BLOCK // width))
    for start in range(0, n_rows, step):
        yield slice(start, start + step)


def by_blocks(score: Callable[[Any], Any], rows: Any, width: int) -> Any:
    """Return one score per row, computed in blocks of rows: see `row_blocks`."""
    if is_torch(rows):
        return score(rows)
    result = np.empty(len(rows))
    for block in row_blocks(len(rows), width):
        result[block] = score(rows[block])
    return result


def row_squares(rows: Any) -> Any:
    """Return the sum of the squares of each row."""
    return (rows * rows).sum(1) if is_torch(rows) else np.einsum("ij,ij->i", rows, rows)


def unit_rows(rows: Any, chosen: NDArray[np.int64] | None = None) -> Any:
    """Return the rows scaled to length 1, in their own precision; a row of zeros stays as it is.

    With `chosen`, only these rows, without a copy of them in between.
    """
    if is_torch(rows):
        wide = rows.double()
        largest = wide.abs().amax(1, keepdim=True)
        wide = wide / where(largest > 0, largest, 1.0)
        lengths = row_squares(wide).sqrt()
        return (wide / lengths.clip(min=1.0)[:, None]).to(rows.dtype)
    n_rows = len(rows) if chosen is None else len(chosen)
    result = np.empty((n_rows, rows.shape[1]), rows.dtype)
    for block in row_blocks(*result.shape):
        wide = rows[block if chosen is None else chosen[block]].astype(np.float64)
        largest = np.abs(wide).max(1, keepdims=True)  # no square overflows after the division
        wide /= np.where(largest > 0, largest, 1.0)
        lengths = np.sqrt(row_squares(wide))
        wide /= np.maximum(lengths, 1.0)[:, None]  # below 1 only for a row of zeros
        result[block] = wide
    return result


def centred(rows: Any, center: Any) -> Any:
    """Return rows minus a centre, in the precision of the rows.

    The centre is split in two, so that features far from zero lose no precision in float32.
    """
    coarse = like(center, rows)
    moved = rows - coarse
    moved -= like(center - coarse, rows)
    return moved


def product(rows: Any, matrix: Any) -> Any:
    """Return the product; a row of it is the same alone and in any batch.

    BLAS adds in an order that depends on the number of rows, so it always gets the same number of
    them. What remains is that some processors round by the position in the block, in float32 or
    with several threads.
    """
    if is_torch(rows):
        return rows @ matrix
    result = np.empty((len(rows), matrix.shape[1]), rows.dtype)
    padded = np.zeros((_PRODUCT_ROWS, rows.shape[1]), rows.dtype)
    for start in range(0, len(rows), _PRODUCT_ROWS):
        block = rows[start : start + _PRODUCT_ROWS]
        padded[: len(block)] = block
        result[start : start + len(block)] = (padded @ matrix)[: len(block)]
    return result


def memberships(labels: Array | None, n_samples: int) -> Matrix:
    """Return multi-hot labels as floats; one class per sample is one-hot, no labels one class."""
    if labels is None:
        return np.ones((n_samples, 1))
    if labels.ndim == 1:
        labels = labels[:, None] == np.unique(labels)
    if len(labels) != n_samples:
        raise ShapeError(f"labels must have {n_samples} rows, one per sample, got {len(labels)}.")
    if not labels.any():
        raise InputError("labels are all 0: no sample has a label to learn from.")
    return labels.astype(np.float64)


@dataclass(eq=False, repr=False)
class LinearProbe(FeatureDetector):
    """Sum of the squares of the positive outputs of a ridge regression of the labels.

    The regression predicts the labels (0 or 1) from features of length 1. It is a second opinion:
    a head that was fitted in closed form, with another error than the model's own. Its penalty is
    the one with the smallest leave-one-out error on the training data, so there is nothing to set.
    The square makes sure that many weak labels do not count as much as one clear label. If no
    output is positive, the score is the largest one.

    It does not ask whether the training data has anything like an input: one that is far from
    everything can score high. Combine it with a distance, as `combined` does.

    Parameters
    ----------
    layer : str
        The array to read: "features", or a name in `Outputs.arrays`.

    Attributes
    ----------
    center_ : array of shape (n_features,)
        The mean of the training features, at length 1.
    weights_ : array of shape (n_features, n_labels)
        The coefficients.
    shares_ : array of shape (n_labels,)
        The share of training samples that carry each label: the output at the centre.
    penalty_ : array of shape ()
        The penalty that was chosen, relative to the mean eigenvalue of the features' scatter.

    Examples
    --------
    >>> from nescio import Outputs
    >>> rng = np.random.default_rng(0)
    >>> labels = np.eye(3, dtype=int)[rng.integers(0, 3, 300)]
    >>> features = 4 * labels @ np.eye(3, 6) + rng.normal(size=(300, 6))
    >>> data = Outputs(np.where(labels, 4.0, -4.0), features=features, labels=labels)
    >>> detector = LinearProbe().fit(data[:200]).calibrate(data[200:])
    >>> detector.predict(Outputs(np.zeros((2, 3)), features=[[4.0] + [0] * 5, [0] * 5 + [4.0]]))
    array([ 1, -1])
    """

    name = "linear_probe"
    paper = "nescio; ridge regression, Hoerl & Kennard, Technometrics 1970"
    learns_with = ("labels",)
    learned = {
        "center_": "float features",
        "weights_": "float features labels",
        "shares_": "float labels",
        "penalty_": "float",
    }
    traceable = True

    layer: str = "features"

    def _learn(self, arrays: Arrays) -> None:
        moved: FloatArray = unit_rows(arrays[self.layer].astype(np.float64))
        if arrays.labels is None:
            raise MissingInputError(
                f"{self.name} learns the labels of the training samples: pass them as y, or pass "
                "Outputs that have labels."
            )
        targets = memberships(arrays.labels, len(moved))
        self.center_, self.shares_ = moved.mean(0), targets.mean(0)
        moved -= self.center_
        targets -= self.shares_
        spread = float((moved**2).sum())
        if spread <= len(moved) * moved.shape[1] * np.finfo(np.float64).eps:
            raise InputError(
                f"{self.name} found no difference between the features of the {len(moved):,} "
                "training samples, at length 1. Check the features."
            )
        eigenvalues, directions = _spectrum(moved)
        shared = directions.T @ (moved.T @ targets)  # (n_directions, n_labels)
        # One column per penalty, which is in units of the mean eigenvalue of all directions.
        scales = eigenvalues[:, None] + _PENALTIES * (spread / moved.shape[1])
        rows = np.random.default_rng(0).permutation(len(moved))[:_ROWS]
        errors = _left_out_errors(
            moved[rows] @ directions, targets[rows], shared, scales, len(moved)
        )
        best = int(np.argmin(errors))
        self.penalty_ = np.array(_PENALTIES[best])
        self.weights_ = directions @ (shared / scales[:, best, None])

    def _score(self, arrays: Arrays) -> Array:
        inputs = arrays[self.layer]
        weights = like(self.weights_, inputs)

        def score(rows: Any) -> Any:
            moved = centred(unit_rows(rows), self.center_)
            outputs = product(moved, weights) + self.shares_  # (n_rows, n_labels), float64
            return row_squares(outputs.clip(min=0.0)) + scores.max_logit(outputs).clip(max=0.0)

        return by_blocks(score, inputs, max(weights.shape))  # type: ignore[no-any-return]


def _spectrum(moved: FloatArray) -> tuple[Matrix, Matrix]:
    """Return the eigenvalues and the directions of the scatter, without those that are empty."""
    if moved.shape[1] <= len(moved):
        eigenvalues, directions = np.linalg.eigh(moved.T @ moved)
        return np.maximum(eigenvalues, 0.0), directions
    eigenvalues, samples = np.linalg.eigh(moved @ moved.T)
    kept = eigenvalues > moved.shape[1] * np.finfo(np.float64).eps * eigenvalues[-1]
    eigenvalues, samples = eigenvalues[kept], samples[:, kept]
    return eigenvalues, moved.T @ (samples / np.sqrt(eigenvalues))


def _left_out_errors(
    rotated: Matrix, targets: Matrix, shared: Matrix, scales: Matrix, n_samples: int
) -> list[float]:
    """Return the mean squared error, for each penalty, on samples that the fit has not seen.

    The residual without a sample is its residual divided by 1 - leverage, for ridge regression
    too; so no fit is repeated.
    """
    squares = rotated**2
    errors = []
    for scale in scales.T:
        leverage = squares @ (1 / scale) + 1 / n_samples
        residuals = targets - rotated @ (shared / scale[:, None])
        unseen = residuals / np.maximum(1 - leverage, 1e-6)[:, None]
        errors.append(float(np.mean(unseen**2)))
    return errors


@dataclass(eq=False, repr=False)
class OutOfRange(FeatureDetector):
    """How far the values lie outside of their usual ranges, and how unusual their length is.

    For each column it is the distance to the range of the known values, in per cent of the column's
    tail: how far the most extreme 1 % of the known values reach at this end. The score is minus the
    root mean square over the columns. To them comes, with the weight of all together, the logarithm
    of the row's length: of its distance to the mean, in ranges. So inputs on another scale are
    found, and rows that are too close to the mean. Masked logits (-inf) count as usual.

    Almost all in-distribution samples score near 0: it is a guard, with a small weight in
    `combined`, and not a detector to use alone.

    Parameters
    ----------
    layer : str
        The array to read: "features", "logits", or a name in `Outputs.arrays`.
    held_out : bool
        Learn the ranges from half of the held-out data, in `calibrate`, instead of from training
        data. Logits of training data are often larger than those of new data.

    Attributes
    ----------
    low_, high_ : array of shape (n_columns,)
        The smallest and the largest known value of each column, without wild values: see
        `without_wild`.
    mean_ : array of shape (n_columns,)
        Their mean.
    scale_ : array of shape (n_columns,)
        The range, high - low; for a column that is constant, the median range of the others.
    tails_ : array of shape (2, n_columns + 1)
        The lower and the upper tail of each column, in units of its range, and of the length.
    units_ : array of shape (2, n_columns + 1)
        What distances are divided by: the tails. As a part of `combined`, at least the distance of
        the farthest held-out value, and ten times that beyond three tails.
    lengths_ : array of shape (2,)
        The smallest and the largest logarithm of a known row's length.
    outliers_ : array of shape ()
        As a part of `combined`: the share of held-out samples, the oddest, that are not compared
        with: 0.2 %, and those with a wild value, beyond three tails, if there are few.

    Examples
    --------
    >>> held_out = np.random.default_rng(0).normal(5, 1, (400, 8))
    >>> guard = OutOfRange(held_out=True).calibrate(held_out, tpr=0.99)
    >>> guard.predict([[5.0, 4, 6, 5, 4, 6, 5, 7], [50.0, 40, 60, 50, 40, 60, 50, 70], [5.0] * 8])
    array([ 1, -1, -1])
    """

    name = "out_of_range"
    paper = "nescio"
    learned = {
        "low_": "float features",
        "high_": "float features",
        "mean_": "float features",
        "scale_": "float features",
        "tails_": "float ends distances",
        "units_": "float ends distances",
        "lengths_": "float ends",
        "outliers_": "float",
    }
    traceable = True

    no_layers = ("labels", "head")

    layer: str = "features"
    held_out: bool = False

    @property
    def learns_from(self) -> tuple[str, ...]:
        """The layer, unless it is that of held-out data."""
        return () if self.held_out else self.scores_from

    @property
    def learns_from_held_out(self) -> tuple[str, ...]:
        """The layer, if it is that of held-out data."""
        return self.scores_from if self.held_out else ()

    def _check_params(self) -> None:
        super()._check_params()
        checked_flag("held_out", self.held_out)

    def _learn_held_out(self, arrays: Arrays) -> None:
        self._learn(arrays)

    def _learn(self, arrays: Arrays) -> None:
        rows = arrays[self.layer].astype(np.float64)
        masked = np.isneginf(rows)
        never_seen = masked.all(0)
        rows[masked] = 0.0
        self.mean_ = rows.sum(0) / np.maximum((~masked).sum(0), 1)
        rows = np.where(masked, self.mean_, rows)
        tame = without_wild(rows)
        self.mean_ += (tame - rows).mean(0)
        rows = tame
        low, high = rows.min(0), rows.max(0)
        ranges = high - low
        typical = np.median(ranges[ranges > 0]) if (ranges > 0).any() else 1.0
        self.scale_ = np.where(ranges > 0, ranges, typical)
        self.scale_[never_seen] = np.finfo(np.float64).max  # whatever the logit is, it is usual
        tails = _tails(rows, low, high) / self.scale_
        tails[:, ranges == 0] = _USUAL_TAIL
        self.low_, self.high_ = _widened(low, high)
        lengths = _log_lengths(self._moved(rows))[:, None]
        low, high = lengths.min(0), lengths.max(0)
        self.lengths_ = np.ravel(_widened(low, high))
        of_lengths = np.where(low == high, 1.0, _tails(lengths, low, high))
        self.units_ = self.tails_ = np.hstack([tails, of_lengths])
        self.outliers_ = np.array(0.0 if self.held_out else _USUAL_OUTLIERS)

    def adapt(self, arrays: Arrays, most_outliers: float) -> None:
        """See the held-out rows that new ones will be compared with, as a part of `combined`.

        Rows with wild values are left out if they are few, at most the share `most_outliers`.
        """
        if not self.held_out:
            moved = self._moved(arrays[self.layer].astype(np.float64))
            values = np.column_stack([moved, _log_lengths(moved)])
            ends = zip((self.low_, self.high_), self.lengths_, strict=True)
            low, high = (np.append(self._moved(end), length) for end, length in ends)
            far = np.abs(_beyond(values, low, high, self.tails_)) > _WILD
            is_wild = far.any(1)
            if is_few := is_wild.mean() <= most_outliers:
                values = values[~is_wild]
            else:
                most = far[:, :-1].sum(0).argmax()
                warn(
                    f"{100 * is_wild.mean():.2g} % of the held-out samples have values far out of "
                    f"the ranges of the training data, most often column {most} of {self.layer}. "
                    "Such values count as usual now, and hide other wrong ones: if they are wrong, "
                    "remove them and calibrate again.",
                    BlindSpotWarning,
                )
            self.outliers_ = np.array(_USUAL_OUTLIERS + is_wild.mean() * is_few)
            self.units_ = _at_least(self.tails_, values, low, high)

    def _score(self, arrays: Arrays) -> Array:
        def score(rows: Any) -> Any:
            _, excess, _, beyond = self._compared(rows)
            return 0.0 - 100 * (row_squares(excess) / excess.shape[1] + beyond**2) ** 0.5

        with np.errstate(over="ignore"):  # values that are far too large score -inf
            scored: Array = by_blocks(score, arrays[self.layer], len(self.scale_))
        return scored

    def _compared(self, rows: Any) -> tuple[Any, Any, Any, Any]:
        """Return distances to the mean, in ranges, and to the range, in tails; then of rows."""
        moved = self._moved(rows)
        excess = self._excess(moved, self.units_[:, :-1])
        lengths, (low, high) = _log_lengths(moved), self.lengths_
        return moved, excess, exp(lengths), _beyond(lengths, low, high, self.units_[:, -1])

    def _excess(self, moved: Any, units: Matrix) -> Any:
        return _beyond(moved, self._moved(self.low_), self._moved(self.high_), units)

    def _explain(self, decided: Decided) -> RangesExplanation:
        data, of_labels = decided.data, self.layer == "logits"
        return RangesExplanation(
            layer=self.layer,
            features=data.arrays[self.layer],
            compare=self._compared,
            whole_range=np.exp(self.lengths_),
            low=self.low_,
            high=self.high_,
            names=(self.label_names_ or data.label_names) if of_labels else data.columns,
            **self._explained(decided),
        )

    def _moved(self, rows: Any) -> Any:
        """Return the distance of each value to the mean, in ranges; 0 for masked logits."""
        return where(rows == -np.inf, 0.0, (rows - self.mean_) / self.scale_)

    def _check_learned(self) -> None:
        low, high = self.lengths_
        positive = (self.scale_, self.tails_, self.units_, high - low)
        if not all((sizes > 0).all() for sizes in positive) or not 0 <= self.outliers_ < 1:
            raise ValueError("its ranges are not positive, or nothing is usual")


def without_wild(values: Matrix) -> Matrix:
    """Return columns without values that are far from all others: three tails and half their range.

    They are cut to the farthest of the others: at each end at most 1 % of a column, in columns that
    vary within their middle 80 %. A few ages of 999 would otherwise make all other ages usual.
    """
    if len(values) < _ENOUGH_TO_CUT:
        return values
    return np.hstack([_cut_high(-_cut_high(-block)) for block in _blocks(values)])


def _cut_high(values: Matrix) -> Matrix:
    n = len(values) // _ENOUGH_TO_CUT
    share = _tail_share(len(values))
    first, low, high, last = np.quantile(values, (share, 0.1, 0.9, 1 - share), axis=0)
    extreme = np.sort(np.partition(values, -n - 1, axis=0)[-n - 1 :], axis=0)
    tails = np.maximum(extreme[:-1] - last, _SHORTEST_TAIL * (last - first))
    others = extreme[:-1] - values.min(0)
    is_wild = np.diff(extreme, axis=0) > np.maximum(_WILD * tails, others / 2)
    kept = np.where((low < high) & is_wild.any(0), is_wild.argmax(0), n)
    return np.minimum(values, np.take_along_axis(extreme, kept[None], axis=0))


def _tail_share(n_rows: int) -> float:
    return min(max(_TAIL, _FEWEST_IN_TAIL / n_rows), 0.25)


def _blocks(values: Matrix) -> list[Matrix]:
    return np.array_split(values, max(1, values.shape[1] // _COLUMNS), axis=1)


def _widened(low: Any, high: Any) -> tuple[Any, Any]:
    """Return a range with room for rounding: a value at its end must not fall out of it."""
    room = TIE_TOLERANCE * np.maximum(np.maximum(np.abs(low), np.abs(high)), high - low)
    return low - room, high + room


def _tails(values: Matrix, low: Any, high: Any) -> Matrix:
    """Return how far the most extreme values reach at each end, of shape (2, n_columns)."""
    share = _tail_share(len(values))
    inner = np.hstack([np.quantile(block, (share, 1 - share), axis=0) for block in _blocks(values)])
    width = inner[1] - inner[0]
    shortest = _SHORTEST_TAIL * np.where(width > 0, width, high - low)
    tails: Matrix = np.maximum([inner[0] - low, high - inner[1]], shortest)
    return tails


def _at_least(tails: Matrix, values: Matrix, low: Any, high: Any) -> Matrix:
    """Return how far values lie outside of a range, and at least its tails.

    Beyond three tails it is ten times as far: a row with a wild value would hide other faults.
    """
    far = np.array([low - values.min(0), values.max(0) - high])
    longest: Matrix = np.where(far > _WILD * tails, _LENGTHENED * far, np.maximum(tails, far))
    return longest


def _beyond(values: Any, low: Any, high: Any, units: Any) -> Any:
    """Return how far values are above (or, negative, below) a range, in units of each end."""
    return (values - high).clip(min=0) / units[1] - (low - values).clip(min=0) / units[0]


def _log_lengths(moved: Any) -> Any:
    return log((row_squares(moved) / moved.shape[1]) ** 0.5 + _SMALLEST_LENGTH)


@dataclass(eq=False, repr=False)
class ViM(FeatureDetector):
    """Joint energy minus the scaled length of the features outside their principal subspace.

    The principal components of the training features span the subspace. What remains of a sample
    outside of it is its residual. The length of the residual is scaled so that it has the same
    mean as the joint energy on the training data.

    Two things differ from the paper, which has one label per sample. Joint energy takes the place
    of log-sum-exp, and of the largest logit in the scale: it is never negative. Features are
    centred by their mean instead of by the bias of the last layer, so that any layer can be read
    and the head is not needed.

    Parameters
    ----------
    n_components : int
        The dimension of the principal subspace; 0 for half of the dimensions in which the
        training features vary.
    layer : str
        The array to read: "features", or a name in `Outputs.arrays`.

    Attributes
    ----------
    center_ : array of shape (n_features,)
        The mean of the training features.
    outside_ : array of shape (n_features, n_features - n_components)
        An orthonormal basis of what is outside of the principal subspace.
    scale_ : array of shape ()
        The factor of the residual, alpha in the paper.
    """

    name = "vim"
    paper = "Wang et al., CVPR 2022; with joint energy"
    learns_with = scores_with = ("logits",)
    learned = {"center_": "float features", "outside_": "float features outside", "scale_": "float"}
    traceable = True

    n_components: int = 0
    layer: str = "features"

    def _check_params(self) -> None:
        super()._check_params()
        checked_whole("n_components", self.n_components, minimum=0)

    def _learn(self, arrays: Arrays) -> None:
        features = arrays[self.layer].astype(np.float64)
        self.center_ = features.mean(0)
        constant = np.ptp(features, axis=0) == 0
        features -= self.center_
        features[:, constant] = 0.0  # the mean is rounded
        variances, directions = np.linalg.eigh(features.T @ features)  # ascending
        rank = np.count_nonzero(variances > len(variances) * SMALLEST_VARIANCE * variances[-1])
        if rank <= self.n_components:
            raise InputError(
                f"the training features vary in {rank} directions, and vim with n_components = "
                f"{self.n_components} needs one more. Learn from more samples, or choose a smaller."
            )
        n_outside = len(variances) - (self.n_components or rank // 2)
        self.outside_ = np.ascontiguousarray(directions[:, :n_outside])
        energies = np.asarray(scores.joint_energy(arrays.logits), np.float64)
        residuals = self._residuals(arrays[self.layer])
        self.scale_ = np.array(energies.mean() / residuals.mean())

    def _score(self, arrays: Arrays) -> Array:
        energies = like(scores.joint_energy(arrays.logits), self.center_)  # in float64
        scored: Array = energies - float(self.scale_) * self._residuals(arrays[self.layer])
        return scored

    def _residuals(self, features: Any) -> Any:
        """Return the length of each row outside of the principal subspace."""
        outside = like(self.outside_, features)

        def length(rows: Any) -> Any:
            left = product(centred(rows, self.center_), outside)
            return row_squares(like(left, self.center_)) ** 0.5

        return by_blocks(length, features, features.shape[1])
