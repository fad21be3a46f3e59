"""A scikit-learn classifier of several labels at once. No torch."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import sklearn
from sklearn.base import is_regressor

from nescio._validation import Array, checked_choice, is_torch, to_numpy
from nescio.errors import InputError, ParameterError, ShapeError
from nescio.runners.base import Wrapped

_DECISIONS, _PROBS = "decision_function", "predict_proba"
_INPUTS = "inputs"


class SklearnModel(Wrapped):
    """A fitted multi-label classifier, or a pipeline or a search that ends in one.

    `decision_function` gives the logits where the classifier, or each classifier of a
    `MultiOutputClassifier`, has one: log-odds of a logistic model, margins of others. Otherwise
    `predict_proba` is converted.
    """

    kind = "sklearn"

    def __init__(self, model: Any, **settings: Any) -> None:
        name = type(model).__name__
        if settings.get("device") not in (None, "cpu"):
            raise ParameterError(
                f"scikit-learn runs on the CPU, got device={settings['device']!r}."
            )
        if settings.get("features") not in (None, _INPUTS):
            raise ParameterError(
                f"a scikit-learn model has no layers: features can only be {_INPUTS!r}, the inputs "
                f"themselves, got {settings['features']!r}."
            )
        self._final = _final_step(model)
        _check_multi_label(self._final, name)
        output = settings.get("output")
        if output is None:
            output = _PROBS if settings.get("from_probs") else self._best_output(model)
        checked_choice("output", output, (_DECISIONS, _PROBS))
        if output == _DECISIONS and settings.get("from_probs"):
            raise ParameterError(f"{_DECISIONS} gives no probabilities: leave from_probs out.")
        if output == _PROBS and not hasattr(model, _PROBS):
            raise ParameterError(f"this {name} has no {_PROBS}, so it gives no probabilities.")
        if output == _DECISIONS and not self._has_decisions(model):
            raise ParameterError(f"this {name} has no {_DECISIONS}; leave output out.")
        settings |= {"output": output, "from_probs": output == _PROBS}
        super().__init__(model, **settings)

    def _has_decisions(self, model: Any) -> bool:
        return hasattr(model, _DECISIONS) or _part_classifiers(self._final) is not None

    def _best_output(self, model: Any) -> str:
        if self._has_decisions(model):
            return _DECISIONS
        if hasattr(model, _PROBS):
            return _PROBS
        raise ParameterError(
            f"this {type(model).__name__} has neither {_DECISIONS} nor {_PROBS}, and labels alone "
            "have no score. Choose a classifier with one of them, or probability=True if it has "
            "that."
        )

    def _is_data(self, inputs: Any) -> bool:
        # A DataLoader or a generator has no rows to take; a list is rows, of numbers or of texts.
        if isinstance(inputs, list):
            return not any(hasattr(row, "shape") and len(row.shape) == 2 for row in inputs[:1])
        return hasattr(inputs, "shape") and not isinstance(inputs, Mapping)

    def _run(self, inputs: Any) -> tuple[Any, Any]:
        if is_torch(inputs):
            inputs = to_numpy(inputs)
        features = _dense(inputs) if self.features == _INPUTS else None
        try:
            found = self._decisions(inputs) if self.output == _DECISIONS else self._probs(inputs)
        except ValueError as error:
            if isinstance(error, InputError):
                raise
            raise InputError(f"the model cannot run on these inputs: {error}") from error
        if found.ndim != 2:
            raise ShapeError(
                f"{self.output} gives shape {found.shape}, and (n_samples, n_labels) is expected."
            )
        return found, features

    def _decisions(self, inputs: Any) -> Array:
        if hasattr(self.model, _DECISIONS):
            return _without_constants(np.asarray(self.model.decision_function(inputs)), self._final)
        parts = _part_classifiers(self._final)
        assert parts is not None  # checked at the start
        reached = _before_final(self.model, inputs)
        return np.column_stack([part.decision_function(reached) for part in parts])

    def _probs(self, inputs: Any) -> Array:
        found = self.model.predict_proba(inputs)
        if not isinstance(found, list):
            return np.asarray(found)
        # A list holds a matrix for each label, a column for each of its classes.
        columns = zip(found, self._final.classes_, strict=True)
        return np.column_stack([_positive(np.asarray(part), kinds) for part, kinds in columns])

    def _describe(self) -> dict[str, Any]:
        return {**super()._describe(), "sklearn_version": sklearn.__version__}


def _final_step(model: Any) -> Any:
    """The classifier at the end of pipelines and searches."""
    while True:
        if hasattr(model, "steps"):
            model = model.steps[-1][1]
        elif hasattr(model, "best_estimator_"):
            model = model.best_estimator_
        else:
            return model


def _before_final(model: Any, inputs: Any) -> Any:
    """What the classifier at the end is given."""
    while True:
        if hasattr(model, "steps"):
            if len(model.steps) > 1:
                inputs = model[:-1].transform(inputs)
            model = model.steps[-1][1]
        elif hasattr(model, "best_estimator_"):
            model = model.best_estimator_
        else:
            return inputs


def _part_classifiers(final: Any) -> list[Any] | None:
    """One classifier a label, of a `MultiOutputClassifier`, if each has a decision function."""
    parts = getattr(final, "estimators_", None)
    if type(final).__name__ != "MultiOutputClassifier" or parts is None:
        return None
    return list(parts) if all(hasattr(part, _DECISIONS) for part in parts) else None


def _check_multi_label(final: Any, name: str) -> None:
    """Raise unless the fitted classifier tells several labels at once."""
    if is_regressor(final):
        raise ParameterError(f"{name} is a regressor; nescio is for multi-label classifiers.")
    classes = getattr(final, "classes_", None)
    if classes is None:
        raise ParameterError(
            f"this {name} has no classes_: it is not fitted, or no classifier. Call fit(X, Y) "
            "first, with Y multi-hot."
        )
    if isinstance(classes, list):
        for at, kinds in enumerate(map(np.asarray, classes)):
            if not np.isin(kinds, (0, 1)).all():
                raise ParameterError(
                    f"label {at} of this {name} has the classes {kinds.tolist()[:5]}; each label "
                    "must be 0 or 1. Fit it with multi-hot Y."
                )
        return
    binarizer = getattr(final, "_label_binarizer", getattr(final, "label_binarizer_", None))
    kind = getattr(binarizer, "y_type_", "")
    if getattr(final, "multilabel_", kind.startswith("multilabel")):
        return
    raise ParameterError(
        f"this {name} chooses one of {len(classes)} classes that exclude each other, and nescio is "
        "for models whose labels can hold together. If yours can, fit it with multi-hot Y, in a "
        "OneVsRestClassifier or a MultiOutputClassifier if need be."
    )


def _without_constants(decisions: Array, final: Any) -> Array:
    """Decisions in which a label that was never seen is masked.

    OneVsRestClassifier says 0 for it, which as a logit would be a probability of one half.
    """
    for at, part in enumerate(getattr(final, "estimators_", ())):
        if type(part).__name__ == "_ConstantPredictor" and not np.any(part.y_):
            decisions[:, at] = -np.inf
    return decisions


def _positive(probs: Array, kinds: Any) -> Array:
    """The column of class 1; a label with only one class in the training data has one column."""
    found = np.flatnonzero(np.asarray(kinds) == 1)
    return probs[:, found[0]] if len(found) else np.zeros(len(probs))


def _dense(inputs: Any) -> Array:
    array = np.asarray(inputs.toarray() if hasattr(inputs, "toarray") else inputs)
    if array.ndim != 2 or array.dtype.kind not in "fiub":
        raise InputError(
            f"features={_INPUTS!r} needs inputs of numbers, of shape (n_samples, n_features); got "
            f"{array.dtype} of shape {array.shape}."
        )
    return array.astype(np.float64) if array.dtype.kind != "f" else array
