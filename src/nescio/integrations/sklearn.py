"""A multi-label classifier of scikit-learn that says which inputs not to trust it on."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any, Self

import numpy as np
import sklearn
from numpy.typing import NDArray
from sklearn.base import BaseEstimator, ClassifierMixin, MetaEstimatorMixin, TransformerMixin, clone
from sklearn.model_selection import train_test_split
from sklearn.utils import get_tags
from sklearn.utils.metadata_routing import MetadataRouter, MethodMapping, process_routing
from sklearn.utils.metaestimators import available_if
from sklearn.utils.validation import check_is_fitted

from nescio._validation import Array, check_same_order, multi_hot
from nescio.detectors import Assessment, Detector
from nescio.errors import InputError, TooFewSamplesError, listed
from nescio.explain import ExplainedVerdicts, PartsExplanation
from nescio.models import wrap
from nescio.models.inputs import length_of

__all__ = ["WithVerdict"]


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
        A detector or the name of one. By default that of `nescio.wrap`; `reason_` says which.
    features : transformer or str, optional
        What the detector reads: a transformer of X, which `fit` clones and fits on the training
        part; or a layer, as `nescio.wrap` takes it. By default the columns of X
        that the estimator reads, as `nescio.TableFeatures` prepares them.
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
    >>> x = np.random.default_rng(0).normal(size=(600, 3))
    >>> model = WithVerdict(MultiOutputClassifier(LogisticRegression())).fit(x, x > 0)
    >>> new = [[0.5, -1.0, 0.2], [40.0, -1.0, 0.2]]
    >>> model.predict(new), model.verdict(new)
    (array([[ True, False,  True],
           [ True, False,  True]]), array([ 1, -1]))
    >>> print(model.explain(new)[1].by_column().ranges[0].text())
    x0 = 40 (usually -3.772 to 3.066)
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
        if y is None:
            raise InputError("WithVerdict requires y to be passed, but the target y is None.")
        multi_hot(y, name="y")
        check_same_order(X, y)
        if params and sklearn.get_config()["enable_metadata_routing"]:
            params = dict(process_routing(self, "fit", **params).estimator.fit)
        along = [name for name, value in params.items() if length_of(value) == length_of(X)]
        parts = train_test_split(
            X,
            y,
            range(length_of(X) or 0),
            *(params[name] for name in along),
            test_size=self.held_out,
            random_state=self.random_state,
        )
        train, held_out, labels = parts[0], parts[1], parts[2]
        params |= dict(zip(along, parts[6::2], strict=True))
        try:
            estimator = clone(self.estimator).fit(train, labels, **params)
        except ValueError as error:
            truth = multi_hot(labels)
            same = np.flatnonzero((truth == truth[0]).all(axis=0)).tolist()
            if not same:
                raise
            constant = [labels.columns[n] if hasattr(labels, "columns") else n for n in same]
            raise InputError(
                f"{error} The {len(truth):,} rows of the training part have a single value of the "
                f"labels {listed(constant)}: pass more data, or leave these labels out."
            ) from error
        names = [str(name) for name in y.columns] if hasattr(y, "columns") else None
        features = self.features
        if hasattr(features, "fit"):
            features = clone(features).fit(train, labels)
        wrapped = wrap(estimator, detector=self.detector, features=features, label_names=names)
        wrapped = wrapped.fit(train, labels)
        try:
            wrapped = wrapped.calibrate(held_out, tpr=self.tpr, confidence=self.confidence)
        except TooFewSamplesError as error:
            raise TooFewSamplesError(
                f"{error} The calibration samples are held_out={self.held_out} of "
                f"{length_of(X):,}: pass more data or a larger held_out."
            ) from error
        self.estimator_, self.wrapped_ = estimator, wrapped  # only now: both, or neither
        self.detector_, self.reason_ = wrapped.detector, wrapped.reason
        self._training_rows = np.append(parts[4], -1)  # of -1, no row: -1
        return self

    def get_metadata_routing(self) -> MetadataRouter:
        """Return which metadata goes where: all that `fit` gets goes to the estimator."""
        mapping = MethodMapping().add(caller="fit", callee="fit")
        return MetadataRouter(owner=self).add(estimator=self.estimator, method_mapping=mapping)

    # --- the estimator's own ---

    @property
    def checked(self) -> Any:
        """The self-check of `fit`: how many samples are flagged after gross faults."""
        self._fitted()
        return self.wrapped_.checked

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

    def explain(self, X: Any) -> ExplainedVerdicts:
        """Return why each verdict: which part of the detector decided, and unusual columns.

        The nearest training samples are rows of the X of `fit`, counted from 0.
        """
        self._fitted()
        explanation = self.wrapped_.explain(X)
        if isinstance(explanation, PartsExplanation):
            rows = (n if n is None else self._training_rows[n] for n in explanation.nearest)
            return replace(explanation, nearest=tuple(rows))
        return explanation

    def save_pretrained(self, folder: str | Path, **options: Any) -> None:
        """Write estimator and detector to a folder, for `nescio.from_pretrained`."""
        self._fitted()
        self.wrapped_.save_pretrained(folder, **options)

    def transform(self, X: Any) -> NDArray[np.float64]:
        """Return the columns score, p_value and verdict (+1 or -1).

        With `set_output(transform="pandas")`, they are a data frame with the index of X.
        """
        assessment = self.assess(X)
        verdict = np.where(assessment.in_distribution, 1.0, -1.0)
        return np.column_stack([assessment.scores, assessment.p_values, verdict])

    def get_feature_names_out(self, input_features: Any = None) -> NDArray[np.object_]:
        """Return the names of the columns that `transform` gives."""
        return np.array(["score", "p_value", "verdict"], dtype=object)

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
