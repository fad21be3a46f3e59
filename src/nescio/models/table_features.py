"""The columns of a table as features for detectors, and how these are shown to a reader."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray
from scipy import sparse
from sklearn.base import BaseEstimator, TransformerMixin
from sklearn.compose import ColumnTransformer
from sklearn.pipeline import Pipeline, make_pipeline
from sklearn.utils.validation import _check_feature_names_in, check_is_fitted, validate_data

from nescio._io.files import as_text
from nescio._validation import is_frame
from nescio.detectors.combined import MOST_FEATURES
from nescio.detectors.features import without_wild
from nescio.errors import IgnoredColumnsWarning, InputError, listed, warn
from nescio.explain import RangesExplanation
from nescio.self_check import WORDS

# A column that is nearly constant, such as a pixel at the edge, would otherwise outweigh all others
# in the few rows where it is not.
_MOST_DEVIATIONS = 8
_SKEWED = 0.25  # of its range: a column with a lower mean counts by its logarithm
_LARGEST_RATIO = 1_000  # of the median to where the logarithm begins
_RARE = 0.01  # words of fewer rows count as one, so that ids and free text add nothing
_MOST_COUNTED = 50  # with more rows, whole numbers that are all different are taken for ids
_as_texts = np.frompyfunc(as_text, 1, 1)

Floats = NDArray[np.float64]


def table_features(train: Any, steps: Sequence[Any]) -> TableFeatures | Pipeline | None:
    """Return fitted features of the columns that a model reads; None if it reads no table.

    They are the columns of its input, in which new words and missing values show; or, if that is no
    table, has free text or too many columns, what `steps`, those before the classifier, make of it.
    """
    features, table = None, _as_pandas(train)
    if not sparse.issparse(table) and _is_table(table) and np.shape(table)[1] <= MOST_FEATURES:
        features = TableFeatures(read_columns(steps, getattr(table, "columns", ()))).fit(table)
        if not steps or all(features.usual_words_):  # words that are all rare are texts
            return features
    reached = after(steps, train)
    if sparse.issparse(reached) or not _is_table(reached):
        return features
    return make_pipeline(*steps, TableFeatures().fit(reached))


def _as_pandas(data: Any) -> Any:
    """Return a data frame of polars or pyarrow as one of pandas; anything else as it is."""
    return data.to_pandas() if is_frame(data) and hasattr(data, "to_pandas") else data


def _is_table(data: Any) -> bool:
    array = data if hasattr(data, "select_dtypes") else np.asarray(data)
    return array.ndim == 2 and (array is data or array.dtype.kind in "fiub")


def read_columns(steps: Sequence[Any], names: Sequence[Any]) -> list[Any] | None:
    """Return those columns of a data frame that the steps read, if they choose them by name."""
    first: Any = steps[0] if steps else None
    while hasattr(first, "steps"):
        first = first.steps[0][1]
    if isinstance(first, TableFeatures):
        return None if first.columns is None else list(first.columns)
    if not isinstance(first, ColumnTransformer) or not len(names):
        return None
    places = first._transformer_to_input_indices
    read = {p for name, part, _ in first.transformers_ if part != "drop" for p in places[name]}
    return [names[place] for place in sorted(read)]


def after(steps: Sequence[Any], inputs: Any) -> Any:
    """Return what the steps of a pipeline make of its inputs."""
    for step in steps:
        inputs = step.transform(inputs)
    return inputs


class TableFeatures(TransformerMixin, BaseEstimator):  # type: ignore[misc]
    """The columns of a table as features for detectors: standardised, and with a constant column.

    - Numbers have mean 0 and standard deviation 1, or less if a value is more than 8 standard
      deviations from the mean. A column of 0 and 1 stays as it is. A column that is never negative
      and mostly small, such as incomes or counts, counts by its logarithm; below its smallest
      positive value on a line, on which zeros and negative numbers are too.
    - Words become one column each. All words of fewer than 1 % of the rows have one column
      together: ids and free text add nothing.
    - Whole numbers (of an integer type) that are all different in more than 50 rows are taken for
      ids and left out, with a warning. As floats they are kept. Ids that are floats, or that a
      pipeline has scaled, are not noticed: drop them yourself.
    - A missing number counts as the mean, and a further column says that it is missing.
    - A new word, and what is missing in a column where this never happened in `fit`, counts as 8
      standard deviations. In a column of texts or ids, where many words are there only once, a new
      word counts as a rare one.
    - Times are left out: each new row is later than all training rows.
    - The constant column has the length of a typical row. Detectors that divide features by their
      length, such as `knn`, would not notice without it how far from the mean a row is.

    Parameters
    ----------
    columns : list, optional
        The names of the columns of a data frame to use. By default, all of them.

    Examples
    --------
    >>> features = TableFeatures().fit([[1.0, 200.0], [3.0, 400.0]])
    >>> features.transform([[2.0, 500.0]]).round(2)
    array([[0.  , 2.  , 0.  , 0.  , 1.41]])
    """

    def __init__(self, columns: Sequence[Any] | None = None) -> None:
        self.columns = columns

    def fit(self, X: Any, y: Any = None) -> Self:
        """Learn means, standard deviations and words from a data frame or an array."""
        numbers, words = self._columns(X, reset=True)
        if np.isinf(numbers).any():
            raise InputError(
                f"Input X contains infinity in {np.isinf(numbers).any(1).sum():,} rows. Remove "
                "these rows, or mark the values as missing (NaN)."
            )
        plain = ((numbers == 0) | (numbers == 1) | np.isnan(numbers)).all(0)
        filled = np.where(np.isnan(numbers).all(0), 0.0, numbers)  # a column without any number
        known = ~np.isnan(filled)
        tame = without_wild(np.where(known, filled, np.nanmedian(filled, axis=0)))
        self.bends_ = np.where(plain, 0.0, _bends(np.where(known, tame, np.nan)))
        filled = _bent(filled, self.bends_)
        self.mean_ = np.where(plain, 0.0, np.nanmean(filled, axis=0))
        largest = np.nanmax(np.abs(filled - self.mean_), axis=0)
        spread = np.maximum(np.nanstd(filled, axis=0), largest / _MOST_DEVIATIONS)
        spread = np.where(plain, 1.0, spread)
        self.scale_ = np.where(spread > 0, spread, 1.0)
        fewest = _RARE * len(words)
        counts = [Counter(column) for column in words.T]
        self.usual_words_ = [sorted(w for w, n in rows.items() if n >= fewest) for rows in counts]
        # If many rows have a word of their own, as ids and texts do, so will new rows.
        single = [list(rows.values()).count(1) >= fewest for rows in counts]
        self.known_words_ = [
            None if many else sorted(rows) for rows, many in zip(counts, single, strict=True)
        ]
        self.word_sizes_ = [len(usual) + 1 for usual in self.usual_words_]
        self.names_ = list(_check_feature_names_in(self)[self.kept_])
        self.weights_ = np.ones(1)  # of what is missing or a word
        flags = self.transform(X)[:, len(self.names_) : -1]
        self.weights_ = np.where(flags.any(0), 1.0, _MOST_DEVIATIONS)
        return self

    def transform(self, X: Any) -> Floats:
        """Return the features: one row per sample."""
        check_is_fitted(self)
        numbers, words = self._columns(X, reset=False)
        missing = np.isnan(numbers)
        flags = [missing]
        for column, usual, known in zip(words.T, self.usual_words_, self.known_words_, strict=True):
            is_usual = column[:, None] == np.array(usual, dtype=object)  # (n_samples, n_words)
            is_new = np.zeros(len(column)) if known is None else ~np.isin(column, known)
            other = np.where(is_new, _MOST_DEVIATIONS, ~is_usual.any(1))
            flags += [is_usual, other[:, None]]
        return np.hstack(
            [
                np.where(missing, 0.0, (_bent(numbers, self.bends_) - self.mean_) / self.scale_),
                np.minimum(np.hstack(flags) * self.weights_, _MOST_DEVIATIONS),
                np.full((len(numbers), 1), np.sqrt(numbers.shape[1] + words.shape[1])),
            ]
        )

    def _columns(self, X: Any, reset: bool) -> tuple[Floats, NDArray[np.object_]]:
        """Return the numbers, and the words as text."""
        X = _as_pandas(X)
        of_pandas = hasattr(X, "select_dtypes")
        if of_pandas and self.columns is not None:
            X = X[list(self.columns)]
        if reset:
            self.numbers_: list[Any] | None = None
            self.words_: list[Any] = []
        if not of_pandas or (not reset and self.numbers_ is None):
            # Infinity is an error in `fit`; later, the detector's `nonfinite` decides.
            numbers = validate_data(self, X, reset=reset, dtype=np.float64, ensure_all_finite=False)
            if reset:
                self.kept_ = _without_ids(dict(enumerate(np.asarray(X).T)))
            return numbers[:, self.kept_], np.empty((len(numbers), 0), dtype=object)
        validate_data(self, X, reset=reset, skip_check_array=True)
        if reset:
            numbers = X.select_dtypes(["number", "bool"], exclude="timedelta")
            self.numbers_ = _without_ids({name: numbers[name] for name in numbers})
            self.kept_ = [list(X.columns).index(name) for name in self.numbers_]
            self.words_ = list(X.select_dtypes(WORDS).columns)
        values = X[self.numbers_].to_numpy(dtype=np.float64, na_value=np.nan)
        words = X[self.words_].astype(object)
        return values, _as_texts(words.to_numpy(dtype=object))

    def shown(self, X: Any, ranges: RangesExplanation) -> dict[str, Any]:
        """Return the features of X and the ends of their usual ranges as a reader knows them.

        Numbers are in the unit of the table. Words, 0 and 1, and numbers that are missing are shown
        only if they are outside of the range; words have no ends.
        """
        numbers, words = self._columns(X, reset=False)
        texts = np.repeat(np.where(words == "", "missing", words), self.word_sizes_, axis=1)
        return shown_numbers(self.units(), ranges, numbers, texts)

    def units(self) -> dict[str, Any]:
        """Return what turns features into the numbers of the table: all that explains a graph."""
        return {
            "names": list(map(str, self.names_)),
            "words": [str(name) for name in np.repeat(self.words_, self.word_sizes_)],
            "bends": self.bends_.tolist(),
            "mean": self.mean_.tolist(),
            "scale": self.scale_.tolist(),
        }

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.input_tags.allow_nan = True
        return tags


def shown_numbers(
    units: dict[str, Any],
    ranges: RangesExplanation,
    numbers: Any = None,
    words: Any = "an unusual word",
) -> dict[str, Any]:
    """Return what `TableFeatures.shown` does, if of the rows only their features are known."""
    names, n, features = units["names"], len(units["names"]), ranges.features
    numbers = in_units(units, features) if numbers is None else numbers
    values: Any = np.full(features.shape, "missing", dtype=object)
    values[:, 2 * n : -1] = words
    values[features <= np.maximum(ranges.high, 0)] = None
    values[:, -1] = None  # the constant
    is_flag = (np.abs(ranges.low) < 0.01) & (np.abs(ranges.high - 1) < 0.01)
    hidden = (is_flag & np.isin(features, (0, 1)))[:, :n] | (features[:, n : 2 * n] > 0)
    values[:, :n] = np.where(hidden, None, numbers)
    ends = np.full((2, features.shape[1]), np.nan)
    ends[:, :n] = in_units(units, np.stack([ranges.low, ranges.high]))
    names = [*names, *names, *units["words"], "constant"]
    return {"names": names, "values": values, "low": ends[0], "high": ends[1]}


def in_units(units: dict[str, Any], features: NDArray[np.floating[Any]]) -> Floats:
    """Return the numbers of a table from their features, in the units of the table."""
    mean, scale, bends = (np.array(units[name]) for name in ("mean", "scale", "bends"))
    bent: Floats = mean + scale * features[:, : len(mean)]
    with np.errstate(all="ignore"):  # of columns that have no bend
        numbers = bends * (np.exp(np.maximum(bent, 0)) + np.minimum(bent, 0))
    digits = min(12, np.finfo(features.dtype).precision)
    rounded = np.vectorize(lambda value: float(f"{value:.{digits}g}"), otypes=[float])
    shown: Floats = rounded(np.where(bends > 0, numbers, bent))  # 3, not 3.0000000000000004
    return shown


def _bends(numbers: Floats) -> Floats:
    """Return from where on each column counts by its logarithm; 0 if it does not.

    It does if it is never negative and mostly small, such as incomes or counts. Its few large
    values would otherwise make the usual range so wide that 0, or a thousandth, is close to it.
    If there are zeros, these are close to the smallest positive value. Otherwise, or if at most 1 %
    of the values are not positive, 0 is far from it.
    """
    few = (numbers <= 0).mean(0) <= _RARE
    numbers = np.where(few & (numbers <= 0), np.nan, numbers)
    low, high = np.nanmin(numbers, axis=0), np.nanmax(numbers, axis=0)
    skewed = (low >= 0) & (np.nanmean(numbers, axis=0) < low + _SKEWED * (high - low))
    positive = np.where(numbers[:, skewed] > 0, numbers[:, skewed], np.nan)
    bends = np.zeros(numbers.shape[1])
    smallest = np.nanmedian(positive, axis=0) / _LARGEST_RATIO
    ends = np.maximum(np.nanmin(positive, axis=0), smallest)
    bends[skewed] = np.where(low[skewed] > 0, smallest, ends)
    return bends


def _bent(numbers: Floats, bends: Floats) -> Floats:
    """Return the logarithm of numbers above the bend of their column, and a line below it."""
    at = np.where(bends > 0, bends, 1.0)
    by_logarithm = np.log(np.maximum(numbers, at) / at) + np.minimum(numbers, at) / at - 1
    return np.where(bends > 0, by_logarithm, numbers)


def _without_ids(columns: dict[Any, Any]) -> list[Any]:
    """Return the names of the columns that are no ids; warn about those that are."""
    ids = [name for name, column in columns.items() if _is_id(column)]
    if ids:
        warn(
            f"the columns {listed(ids)} hold whole numbers, all "
            "different. They are taken for ids and left out of the features of the detector. Drop "
            "them. If they are quantities, keep them by converting them to float.",
            IgnoredColumnsWarning,
        )
    return [name for name in columns if name not in ids]


def _is_id(column: Any) -> bool:
    if column.dtype.kind not in "iu":
        return False
    values = column.dropna().to_numpy() if hasattr(column, "dropna") else column
    return _MOST_COUNTED < len(values) == len(np.unique(values))
