"""The columns of a table as features for detectors, and how these are shown to a reader."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from contextlib import suppress
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray
from scipy import sparse
from sklearn.base import BaseEstimator, TransformerMixin
from sklearn.pipeline import make_pipeline
from sklearn.utils.validation import _check_feature_names_in, check_is_fitted, validate_data

from nescio.errors import IgnoredColumnsWarning, InputError, listed, warn

# A column that is nearly constant, such as a pixel at the edge, would otherwise outweigh all others
# in the few rows where it is not.
_MOST_DEVIATIONS = 8
_RARE = 0.01  # words of fewer rows count as one, so that ids and free text add nothing
_MOST_COUNTED = 50  # with more rows, whole numbers that are all different are taken for ids
_UNIT_TOLERANCE = 1e-6  # of the largest value; scalers may compute in float32

Floats = NDArray[np.float64]


def table_features(train: Any, steps: Sequence[Any]) -> Any:
    """Return fitted features of what a classifier reads of the training inputs.

    That is what `steps`, the other steps of its pipeline, make of them. None if it is no table.
    """
    reached = after(steps, train)
    if sparse.issparse(reached):
        return None  # such as the words of a vocabulary
    if not hasattr(reached, "select_dtypes"):  # no data frame
        array = np.asarray(reached)
        if array.ndim != 2 or array.dtype.kind not in "fiub":
            return None  # such as texts
    features = TableFeatures().fit(reached)
    if not steps:
        return features
    whole = make_pipeline(*steps, features)
    with suppress(AttributeError, ValueError):  # not every step names its columns
        columns = [c for _, c in train.items()] if hasattr(train, "items") else np.asarray(train).T
        sources = dict(zip(_check_feature_names_in(whole), columns, strict=True))
        features.take_units(sources, reached, whole[:-1].get_feature_names_out())
    return whole


def after(steps: Sequence[Any], inputs: Any) -> Any:
    """Return what the steps of a pipeline make of its inputs."""
    for step in steps:
        inputs = step.transform(inputs)
    return inputs


class TableFeatures(TransformerMixin, BaseEstimator):  # type: ignore[misc]
    """The columns of a table as features for detectors: standardised, and with a constant column.

    - Numbers have mean 0 and standard deviation 1, or less if a value is more than 8 standard
      deviations from the mean. A column of 0 and 1 stays as it is.
    - Words become one column each. All words of fewer than 1 % of the rows, and those that are new,
      have one column together: ids and free text add nothing.
    - Whole numbers (of an integer type) that are all different in more than 50 rows are taken for
      ids and left out, with a warning. As floats they are kept. Ids that are floats, or that a
      pipeline has scaled, are not noticed: drop them yourself.
    - A missing number counts as the mean, and a further column says that it is missing.
    - Times are left out: each new row is later than all training rows.
    - The constant column has the length of a typical row. Detectors that divide features by their
      length, such as `knn`, would not notice without it how far from the mean a row is.

    Examples
    --------
    >>> features = TableFeatures().fit([[1.0, 200.0], [3.0, 400.0]])
    >>> features.transform([[2.0, 500.0]]).round(2)
    array([[0.  , 2.  , 0.  , 0.  , 1.41]])
    """

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
        self.mean_ = np.where(plain, 0.0, np.nanmean(filled, axis=0))
        largest = np.nanmax(np.abs(filled - self.mean_), axis=0)
        spread = np.maximum(np.nanstd(filled, axis=0), largest / _MOST_DEVIATIONS)
        spread = np.where(plain, 1.0, spread)
        self.scale_ = np.where(spread > 0, spread, 1.0)
        self.usual_words_ = [_usual_words(column) for column in words.T]
        self.names_ = list(_check_feature_names_in(self)[self.kept_])
        self.units_ = np.repeat([[0.0], [1.0]], len(self.names_), axis=1)  # offsets and factors
        return self

    def transform(self, X: Any) -> Floats:
        """Return the features: one row per sample."""
        check_is_fitted(self)
        numbers, words = self._columns(X, reset=False)
        missing = np.isnan(numbers)
        parts = [np.where(missing, 0.0, (numbers - self.mean_) / self.scale_), missing]
        for column, usual in zip(words.T, self.usual_words_, strict=True):
            known = column[:, None] == np.array(usual, dtype=object)  # (n_samples, n_words)
            parts += [known, ~known.any(1, keepdims=True)]
        n_columns = numbers.shape[1] + words.shape[1]
        return np.hstack([*parts, np.full((len(numbers), 1), np.sqrt(n_columns))], dtype=np.float64)

    def _columns(self, X: Any, reset: bool) -> tuple[Floats, NDArray[np.object_]]:
        """Return the numbers, and the words as text."""
        is_frame = hasattr(X, "select_dtypes")
        if reset:
            self.numbers_: list[Any] | None = None
            self.words_: list[Any] = []
        if not is_frame or (not reset and self.numbers_ is None):
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
            self.words_ = list(X.select_dtypes(["object", "string", "category"]).columns)
        values = X[self.numbers_].to_numpy(dtype=np.float64, na_value=np.nan)
        words = X[self.words_].astype(object)
        return values, np.where(words.isna(), "", _as_texts(words.to_numpy(dtype=object)))

    def shown(self, X: Any, low: Floats, high: Floats) -> dict[str, Any]:
        """Return the features of X and the ends of their usual ranges as a reader knows them.

        Numbers are in the unit of the table. Words, 0 and 1, and numbers that are missing are shown
        only if they are outside of the range; words have no ends.
        """
        numbers, words = self._columns(X, reset=False)
        features, n_numbers = np.asarray(self.transform(X)), numbers.shape[1]
        sizes = [len(usual) + 1 for usual in self.usual_words_]
        texts = np.repeat(np.where(words == "", "missing", words), sizes, axis=1)
        (offset, factor), missing = self.units_, np.full(numbers.shape, "missing")
        constant = np.full((len(numbers), 1), None)
        values = np.hstack([offset + factor * numbers, missing, texts, constant], dtype=object)
        hidden = (features != 1) | (high > 0.5)  # a word is unusual if its column is usually 0
        is_flag = np.isin(features, (0, 1)) & (np.abs(low) < 0.01) & (np.abs(high - 1) < 0.01)
        hidden[:, :n_numbers] = np.isnan(numbers) | is_flag[:, :n_numbers]
        values[hidden] = None
        ends = np.full((2, features.shape[1]), np.nan)
        usual_numbers = self.mean_ + self.scale_ * np.stack([low, high])[:, :n_numbers]
        ends[:, :n_numbers] = np.sort(offset + factor * usual_numbers, axis=0)
        names = [*self.names_, *self.names_, *np.repeat(self.words_, sizes), "constant"]
        return {"names": list(map(str, names)), "values": values, "low": ends[0], "high": ends[1]}

    def take_units(self, sources: dict[str, Any], reached: Any, names: Sequence[str]) -> None:
        """Show numbers in the units of `sources`, of which a pipeline made `reached`.

        It is possible for a column that is a linear function of one with the same name, such as
        after StandardScaler. Others keep the names that the pipeline gives them.
        """
        self.names_ = [str(names[number]) for number in self.kept_]
        for number, column in enumerate(self._columns(reached, reset=False)[0].T):
            with suppress(KeyError, TypeError, ValueError):  # there is none, or it has no numbers
                name = self.names_[number]
                name = name if name in sources else name.rpartition("__")[2]
                source = np.asarray(sources[name], dtype=np.float64)
                known = np.isfinite(column) & np.isfinite(source)
                column, source = column[known], source[known]
                first, last = source[[column.argmin(), column.argmax()]]
                factor = (last - first) / (np.ptp(column) or np.nan)
                offset = first - factor * column.min()
                tolerance = _UNIT_TOLERANCE * np.abs(source).max()
                if np.allclose(offset + factor * column, source, rtol=0, atol=tolerance):
                    self.names_[number], self.units_[:, number] = name, (offset, factor)

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.input_tags.allow_nan = True
        return tags


def _usual_words(column: NDArray[np.object_]) -> list[str]:
    return sorted(word for word, n in Counter(column).items() if n >= _RARE * len(column))


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


def _as_text(word: Any) -> str:
    """Return a word as text; 1.0 is 1, because a missing value turns a column into floats."""
    return str(int(word) if isinstance(word, float) and word.is_integer() else word)


_as_texts = np.frompyfunc(_as_text, 1, 1)
