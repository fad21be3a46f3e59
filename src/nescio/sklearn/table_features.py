"""Features for detectors from the columns of a table."""

from __future__ import annotations

from typing import Any, Self

import numpy as np
from numpy.typing import NDArray
from sklearn.base import BaseEstimator, TransformerMixin
from sklearn.preprocessing import OneHotEncoder
from sklearn.utils.validation import check_is_fitted, validate_data

from nescio._charts.text import listed
from nescio.errors import IgnoredColumnsWarning, InputError, warn

_RARE = 0.01  # words of fewer rows count as one, so that ids and free text add nothing
_MOST_COUNTED = 50  # with more rows, whole numbers that are all different are taken for ids


class TableFeatures(TransformerMixin, BaseEstimator):  # type: ignore[misc]
    """The columns of a table as features for detectors: standardised, and with a constant column.

    - Numbers have mean 0 and standard deviation 1. A column of 0 and 1 stays as it is.
    - Words become one column each. Words of fewer than 1 % of the rows count as one: ids and free
      text add nothing.
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
        known = np.where(np.isnan(numbers).all(0), 0.0, numbers)  # a column without any number
        self.mean_ = np.where(plain, 0.0, np.nanmean(known, axis=0))
        spread = np.where(plain, 1.0, np.nanstd(known, axis=0))
        self.scale_ = np.where(spread > 0, spread, 1.0)
        self.encoder_ = None
        if words is not None:
            self.encoder_ = OneHotEncoder(
                handle_unknown="infrequent_if_exist", min_frequency=_RARE, sparse_output=False
            ).fit(words)
        return self

    def transform(self, X: Any) -> NDArray[np.float64]:
        """Return the features: one row per sample."""
        check_is_fitted(self)
        numbers, words = self._columns(X, reset=False)
        missing = np.isnan(numbers)
        scaled = np.where(missing, 0.0, (numbers - self.mean_) / self.scale_)
        parts = [scaled, missing.astype(np.float64)]
        if self.encoder_ is not None:
            parts.append(self.encoder_.transform(words))
        n_columns = numbers.shape[1] + (0 if words is None else words.shape[1])
        return np.hstack([*parts, np.full((len(numbers), 1), np.sqrt(n_columns))])

    def _columns(self, X: Any, reset: bool) -> tuple[NDArray[np.float64], Any]:
        """Return the numbers, and the words as text, if there are any."""
        is_frame = hasattr(X, "select_dtypes")
        if reset:
            self.numbers_: list[Any] | None = None
        if not is_frame or (not reset and self.numbers_ is None):
            given = X
            X = validate_data(self, X, reset=reset, dtype=np.float64, ensure_all_finite="allow-nan")
            if reset:
                self.kept_ = _without_ids(dict(enumerate(np.asarray(given).T)))
            return X[:, self.kept_], None
        validate_data(self, X, reset=reset, skip_check_array=True)
        if reset:
            numbers = X.select_dtypes(["number", "bool"], exclude="timedelta")
            self.numbers_ = _without_ids({name: numbers[name] for name in numbers})
            self.kept_ = [list(X.columns).index(name) for name in self.numbers_]
            self.words_ = list(X.select_dtypes(["object", "string", "category"]).columns)
        values = X[self.numbers_].to_numpy(dtype=np.float64, na_value=np.nan)
        if not self.words_:
            return values, None
        words = X[self.words_].astype(object)
        return values, np.where(words.isna(), "", _as_texts(words.to_numpy()))

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.input_tags.allow_nan = True
        return tags


def _without_ids(columns: dict[Any, Any]) -> list[Any]:
    """Return the names of the columns that are no ids; warn about those that are."""
    ids = [name for name, column in columns.items() if _is_id(column)]
    if ids:
        warn(
            f"the columns {listed([repr(name) for name in ids], 5)} hold whole numbers, all "
            "different. They are taken for ids and left out of the features of the detector. Drop "
            "them. If they are quantities, keep them by converting them to float.",
            IgnoredColumnsWarning,
        )
    return [name for name in columns if name not in ids]


def _is_id(column: Any) -> bool:
    if column.dtype.kind not in "iu":
        return False
    known = column.dropna().to_numpy() if hasattr(column, "dropna") else column
    return _MOST_COUNTED < len(known) == len(np.unique(known))


def _as_text(word: Any) -> str:
    """Return a word as text; 1.0 is 1, because a missing value turns a column into floats."""
    return str(int(word) if isinstance(word, float) and word.is_integer() else word)


_as_texts = np.frompyfunc(_as_text, 1, 1)
