"""Verdicts in the style of scikit-learn: a meta-estimator, and features of a table.

`WithVerdict` is a multi-label classifier that also says which inputs it should not be trusted on.
`TableFeatures` turns the columns of a table into features for detectors.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Self

import numpy as np
import sklearn
from numpy.typing import NDArray
from scipy import sparse
from sklearn.base import (
    BaseEstimator,
    ClassifierMixin,
    MetaEstimatorMixin,
    TransformerMixin,
    clone,
)
from sklearn.model_selection import train_test_split
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import OneHotEncoder
from sklearn.utils import get_tags
from sklearn.utils.metadata_routing import MetadataRouter, MethodMapping, process_routing
from sklearn.utils.metaestimators import available_if
from sklearn.utils.multiclass import type_of_target
from sklearn.utils.validation import check_is_fitted, validate_data

from nescio._validation import Array
from nescio.detectors import Assessment, Detector
from nescio.detectors.combined import MOST_FEATURES, default_detector
from nescio.detectors.registry import as_detector
from nescio.errors import (
    IgnoredColumnsWarning,
    InputError,
    ShapeError,
    TooFewSamplesError,
    listed,
    warn,
)
from nescio.models import Wrapped, wrap
from nescio.models.inputs import length_of
from nescio.models.sklearn_models import split_steps

__all__ = ["TableFeatures", "WithVerdict"]

_COLUMNS = ("score", "p_value", "verdict")
_SPARSE = (
    " The classifier gets a sparse matrix, so columns of numbers are not compared with training "
    "data. If there are such columns, pass sparse_threshold=0 to ColumnTransformer."
)
_RARE = 0.01  # words of fewer rows count as one, so that ids and free text add nothing
_MOST_COUNTED = 50  # with more rows, whole numbers that are all different are taken for ids


def _estimator_has(name: str) -> Callable[[Any], bool]:
    """Return whether the estimator has a method, so that `hasattr` says so."""

    def check(self: WithVerdict) -> bool:
        getattr(getattr(self, "estimator_", self.estimator), name)  # its own error, if it has none
        return True

    return check


class WithVerdict(ClassifierMixin, TransformerMixin, MetaEstimatorMixin, BaseEstimator):  # type: ignore[misc]
    """A multi-label classifier with a detector: it predicts as before, and gives verdicts too.

    `fit` divides the data at random. The estimator is fitted on one part, and the detector learns
    from the same part. The other part, which neither has seen, calibrates the detector. So a new
    in-distribution sample gets the verdict +1 with probability at least `tpr`. The estimator is not
    fitted again on all of the data: the threshold would be that of another model.

    `predict`, `predict_proba`, `decision_function`, `score`, `classes_` and the names of the
    columns are those of the estimator, unchanged. Use it wherever you use the estimator.

    Parameters
    ----------
    estimator : estimator
        A multi-label classifier, or a pipeline that ends in one. If it is already fitted, pass
        `FrozenEstimator(model)`, and to `fit` data that it has not seen.
    detector : Detector or str, optional
        A detector or the name of one. By default `knn` on the columns, if they are a table of
        numbers and words; otherwise nescio's default. `reason_` says which.
    features : transformer or str, optional
        What the detector reads: a transformer of X, which `fit` clones and fits on the training
        part; or a layer, as `nescio.wrap` takes it. By default what the classifier reads, that is X
        or the output of the pipeline's other steps, as `TableFeatures` prepares it.
    tpr : float, optional
        The share of in-distribution data to keep; by default the detector's own, 0.95.
    confidence : float, optional
        The long-run share that is kept is at least `tpr` with this confidence.
    held_out : float or int
        The share or the number of samples that calibrate.
    random_state : int or RandomState
        Which samples these are.

    Attributes
    ----------
    estimator_ : estimator
        Fitted on the training part.
    detector_ : Detector
        Calibrated on the held-out part.
    wrapped_ : Wrapped
        Both together, as `nescio.wrap` makes them: to explain, to save, to serve.
    reason_ : str
        Why this detector, if you chose none.

    Examples
    --------
    >>> from sklearn.linear_model import LogisticRegression
    >>> from sklearn.multioutput import MultiOutputClassifier
    >>> x = np.random.default_rng(0).normal(size=(400, 3))
    >>> model = WithVerdict(MultiOutputClassifier(LogisticRegression())).fit(x, x > 0)
    >>> new = [[0.5, -1.0, 0.2], [40.0, -1.0, 0.2]]
    >>> model.predict(new), model.verdict(new)
    (array([[ True, False,  True],
           [ True, False,  True]]), array([ 1, -1]))
    """

    def __init__(
        self,
        estimator: Any,
        detector: Detector | str | None = None,
        *,
        features: Any = None,
        tpr: float | None = None,
        confidence: float | None = None,
        held_out: float | int = 0.25,
        random_state: Any = 0,
    ) -> None:
        self.estimator = estimator
        self.detector = detector
        self.features = features
        self.tpr = tpr
        self.confidence = confidence
        self.held_out = held_out
        self.random_state = random_state

    # --- fitting ---

    def fit(self, X: Any, y: Any, **params: Any) -> Self:
        """Fit the estimator, then calibrate the detector on samples that were held out.

        Parameters
        ----------
        X : array, data frame, sparse matrix or list
            What the estimator takes.
        y : array or data frame of shape (n_samples, n_labels)
            Multi-hot labels. The columns of a data frame are the names of the labels.
        **params
            For the `fit` of the estimator, such as sample_weight. What has one entry per sample is
            divided like X.
        """
        _check_multi_hot(y)
        if params and sklearn.get_config()["enable_metadata_routing"]:
            params = dict(process_routing(self, "fit", **params).estimator.fit)
        along = [name for name, value in params.items() if length_of(value) == length_of(X)]
        parts = train_test_split(
            X,
            y,
            *(params[name] for name in along),
            test_size=self.held_out,
            random_state=self.random_state,
        )
        train, held_out, labels = parts[0], parts[1], parts[2]
        params |= dict(zip(along, parts[4::2], strict=True))
        estimator = clone(self.estimator).fit(train, labels, **params)
        names = [str(name) for name in y.columns] if hasattr(y, "columns") else None
        chosen, note = self._chosen(estimator, train, labels, names)
        try:
            wrapped = chosen.calibrate(held_out, tpr=self.tpr, confidence=self.confidence)
        except TooFewSamplesError as error:
            raise TooFewSamplesError(
                f"{error} The calibration samples are held_out={self.held_out} of "
                f"{length_of(X):,}: pass more data or a larger held_out."
            ) from error
        self.estimator_, self.wrapped_ = estimator, wrapped  # only now: both, or neither
        self.detector_, self.reason_ = wrapped.detector, wrapped.reason + note
        return self

    def _chosen(
        self, estimator: Any, train: Any, labels: Any, label_names: list[str] | None
    ) -> tuple[Wrapped, str]:
        """Return the model with a detector that has learned, and a note for the user."""
        detector = None if self.detector is None else as_detector(self.detector)
        features, reason, note = self.features, "", ""
        if hasattr(features, "fit"):
            features = clone(features).fit(train, labels)
        elif features is None and (detector is None or _reads_features(detector)):
            steps, _ = split_steps(estimator)
            reached = make_pipeline(*steps).transform(train) if steps else train
            features = _table_features(reached)
            if features is not None and steps:
                features = make_pipeline(*steps, features)
            note = _SPARSE if detector is None and sparse.issparse(reached) else ""
        if detector is None and hasattr(features, "transform"):
            detector, reason = default_detector(of_table=True)
        wrapped = wrap(
            estimator, detector=detector, features=features, label_names=label_names
        ).fit(train, labels.toarray() if sparse.issparse(labels) else labels)
        return Wrapped(wrapped.runner, wrapped.detector, wrapped.reason or reason), note

    def get_metadata_routing(self) -> MetadataRouter:
        """Return which metadata goes where: all that `fit` gets goes to the estimator."""
        mapping = MethodMapping().add(caller="fit", callee="fit")
        return MetadataRouter(owner=self).add(estimator=self.estimator, method_mapping=mapping)

    # --- the estimator's own ---

    @property
    def classes_(self) -> Any:
        """The classes of each label, as the estimator has them."""
        return self._fitted().classes_

    @property
    def n_features_in_(self) -> int:
        """The number of columns of X."""
        return int(self.estimator_.n_features_in_)

    @property
    def feature_names_in_(self) -> Array:
        """The names of the columns of X, if it was a data frame."""
        return np.asarray(self.estimator_.feature_names_in_)

    def predict(self, X: Any) -> Any:
        """Return the labels that the estimator predicts."""
        return self._fitted().predict(X)

    @available_if(_estimator_has("predict_proba"))  # type: ignore[untyped-decorator]
    def predict_proba(self, X: Any) -> Any:
        """Return the probabilities, in the form in which the estimator gives them."""
        return self._fitted().predict_proba(X)

    @available_if(_estimator_has("decision_function"))  # type: ignore[untyped-decorator]
    def decision_function(self, X: Any) -> Any:
        """Return the estimator's decision for each label; `assess` has the score of the verdict."""
        return self._fitted().decision_function(X)

    @available_if(_estimator_has("score"))  # type: ignore[untyped-decorator]
    def score(self, X: Any, y: Any, **params: Any) -> float:
        """Return the score of the estimator. It does not depend on the detector."""
        return float(self._fitted().score(X, y, **params))

    def _fitted(self) -> Any:
        check_is_fitted(self, "wrapped_")
        return self.estimator_

    # --- verdicts ---

    def verdict(self, X: Any) -> NDArray[np.int64]:
        """Return +1 for in-distribution, -1 for inputs that the model should not be trusted on."""
        return np.where(self.assess(X).in_distribution, 1, -1)

    def assess(self, X: Any, *, fdr: float | None = None) -> Assessment:
        """Return score, p-value and verdict of each sample; `fdr` is as for a detector."""
        self._fitted()
        return self.wrapped_.assess(X, fdr=fdr)

    def transform(self, X: Any) -> NDArray[np.float64]:
        """Return the columns score, p_value and verdict (+1 or -1).

        With `set_output(transform="pandas")`, they are a data frame with the index of X.
        """
        assessment = self.assess(X)
        verdict = np.where(assessment.in_distribution, 1.0, -1.0)
        return np.column_stack([assessment.scores, assessment.p_values, verdict])

    def get_feature_names_out(self, input_features: Any = None) -> NDArray[np.object_]:
        """Return the names of the columns that `transform` gives."""
        return np.asarray(_COLUMNS, dtype=object)

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        inner = get_tags(self.estimator)
        tags.input_tags = inner.input_tags
        tags.target_tags.multi_output = True
        tags.target_tags.single_output = False
        tags.target_tags.two_d_labels = True
        tags.classifier_tags.multi_label = True
        tags.classifier_tags.multi_class = False
        return tags


def _check_multi_hot(y: Any) -> None:
    """Raise unless y has one column per label, of 0 and 1."""
    if y is None:
        raise InputError("WithVerdict requires y to be passed, but the target y is None.")
    array = y if sparse.issparse(y) else np.asarray(y)
    values = np.asarray(y.data if sparse.issparse(y) else array)
    odd = values[~np.isin(values, (0, 1))]
    if array.ndim != 2:
        raise ShapeError(
            "y must be multi-hot labels, of shape (n_samples, n_labels), got a "
            f"{type_of_target(array)} target of shape {array.shape}. For a single label, pass "
            "y[:, None]."
        )
    if len(odd):
        raise InputError(
            f"y must be multi-hot labels, each of them 0 or 1, got {odd[0]}. "
            "sklearn.preprocessing.MultiLabelBinarizer converts lists of labels."
        )


def _reads_features(detector: Detector) -> bool:
    return not {*detector.scores_from, *detector.learns_from} <= {"logits", "labels"}


def _table_features(reached: Any) -> TableFeatures | None:
    """Return fitted features of what the classifier reads; None if that is no table."""
    if sparse.issparse(reached):
        return None  # such as the words of a vocabulary
    if not hasattr(reached, "select_dtypes"):  # no data frame
        array = np.asarray(reached)
        if array.ndim != 2 or array.dtype.kind not in "fiub" or array.shape[1] > MOST_FEATURES:
            return None  # such as texts
    return TableFeatures().fit(reached)


# --- features of a table --------------------------------------------------------------------------


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
        filled = np.where(np.isnan(numbers).all(0), 0.0, numbers)  # a column without any number
        self.mean_ = np.where(plain, 0.0, np.nanmean(filled, axis=0))
        spread = np.where(plain, 1.0, np.nanstd(filled, axis=0))
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
            numbers = validate_data(
                self, X, reset=reset, dtype=np.float64, ensure_all_finite="allow-nan"
            )
            if reset:
                self.kept_ = _without_ids(dict(enumerate(np.asarray(X).T)))
            return numbers[:, self.kept_], None
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
