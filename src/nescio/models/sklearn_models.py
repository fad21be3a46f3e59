"""A runner for scikit-learn classifiers of several labels at once. It needs no torch."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from functools import partial
from typing import Any, Self

import numpy as np
import sklearn

from nescio._charts.svg import cut
from nescio._io.files import as_text
from nescio._validation import Array, checked_choice, index_of, is_torch, to_numpy
from nescio.detectors.combined import MOST_FEATURES
from nescio.errors import InputError, MissingInputError, NescioError, ParameterError, ShapeError
from nescio.explain import ExplainedVerdicts
from nescio.models.base import AUTO_LAYER, PREPARED, Runner, layer_names
from nescio.models.inputs import as_texts, length_of, n_rows
from nescio.models.table_features import TableFeatures, after, read_columns, table_features
from nescio.outputs.outputs import INPUT, PENULTIMATE, check_label_names

_DECISIONS, _PROBS = "decision_function", "predict_proba"
_TEXTS = "pass a pipeline that begins with a vectoriser, such as TfidfVectorizer."


class SklearnRunner(Runner):
    """Runs a fitted multi-label classifier, or a pipeline or a search that ends in one.

    `decision_function` gives the logits if the classifier, or each classifier of a
    `MultiOutputClassifier`, has one: log-odds of a logistic model, margins of others. Otherwise
    `predict_proba` is converted.

    If `features` is a fitted transformer of the model's input, its layer is named "prepared".
    `fitted_to` makes one if the caller has chosen no features.
    """

    kind = "sklearn"
    automatic = (PREPARED, PENULTIMATE, INPUT)

    def __init__(self, model: Any, *, prepare: Any = None, **settings: Any) -> None:
        name = type(model).__name__
        if settings.get("tokenizer") is not None:
            raise ParameterError(f"a scikit-learn model takes no tokenizer. For texts, {_TEXTS}")
        self.prepare = prepare
        if hasattr(settings.get("features"), "transform"):
            self.prepare = settings["features"]
            settings["features"] = PREPARED
        if settings.get("device") not in (None, "cpu"):
            raise ParameterError(
                f"scikit-learn runs on the CPU, got device={settings['device']!r}."
            )
        self._steps, self._final = split_steps(model)
        _check_multi_label(self._final, name)
        is_multi = type(self._final).__name__ == "MultiOutputClassifier"
        parts = self._final.estimators_ if is_multi else [model]
        has_decisions = hasattr(model, _DECISIONS) or all(hasattr(p, _DECISIONS) for p in parts)
        methods = [_DECISIONS] if has_decisions else []
        methods += [_PROBS] if hasattr(model, _PROBS) else []
        if not methods:
            raise ParameterError(
                f"this {name} has neither {_DECISIONS} nor {_PROBS}, and predicted labels alone "
                "have no score. Choose a classifier with one of them."
            )
        from_probs = settings.get("from_probs")
        output = settings.get("output") or (_PROBS if from_probs else methods[0])
        if checked_choice("output", output, (_DECISIONS, _PROBS)) not in methods:
            raise ParameterError(f"this {name} has no {output}, but {methods[0]}.")
        if output == _DECISIONS and from_probs:
            raise ParameterError(f"{_DECISIONS} gives no probabilities: leave out from_probs.")
        settings |= {"output": output, "from_probs": output == _PROBS}
        super().__init__(model, **settings)
        if self.label_names is not None:
            check_label_names(self.label_names, len(self._final.classes_))
        self.layers_are_default = layer_names(settings.get("features")) in ((), (AUTO_LAYER,))
        for layer in self.layers:
            if not self.has_layer(layer):
                raise ParameterError(
                    f"a scikit-learn model has no layers: features can only be {INPUT!r}, the "
                    f"model's input, for a pipeline {PENULTIMATE!r}, the input of its last step, "
                    f"or a fitted transformer of the input; got {layer!r} for this {name}."
                )

    @property
    def columns(self) -> tuple[str, ...]:
        """The names of the columns of the data frame that the model was fitted to."""
        return tuple(map(str, getattr(self.model, "feature_names_in_", ())))

    def read(self, columns: Sequence[Any]) -> list[Any]:
        """Return those of the columns that the model, or the features of the detector, read."""
        known = self.columns or columns  # only names that are all texts are known
        parts = [self._steps] + [[self.prepare]] * (PREPARED in self.layers)
        read = {n for steps in parts for n in read_columns(steps, known) or known}
        return [name for name in columns if name in (known if INPUT in self.layers else read)]

    @property
    def table(self) -> dict[str, Any] | None:
        """The units of the features, if `TableFeatures` makes them."""
        last = split_steps(self.prepare)[1]
        is_table = self.features == PREPARED and isinstance(last, TableFeatures)
        return last.units() if is_table else None

    @property
    def n_features(self) -> int:
        """The number of columns that the last step reads, such as the words of a vocabulary."""
        return int(getattr(self._final, "n_features_in_", 0))

    def has_layer(self, name: str, n_columns: int | None = None) -> bool:
        """Return whether this is "input", with a transformer "prepared", or "penultimate"."""
        if name == PREPARED:
            return self.prepare is not None
        return name == INPUT or (name == PENULTIMATE and bool(self._steps))

    def changed(self, **settings: Any) -> Self:
        """Return a runner of the same model and transformer with some parameters changed."""
        automatic = {"features": AUTO_LAYER} if self.layers and self.layers_are_default else {}
        return super().changed(**{"prepare": self.prepare, **automatic, **settings})

    def fitted_to(self, train: Any) -> Self:
        """Return a runner that prepares the columns of a table, if features were not chosen."""
        inputs = to_numpy(train) if is_torch(train) else train
        is_whole = self.takes(inputs) and bool(length_of(inputs))
        if not (self.layers_are_default and is_whole) or self.n_features > MOST_FEATURES:
            return self
        with self._explained_errors(inputs):
            features = table_features(inputs, self._steps)
        return self if features is None else self.changed(prepare=features, features=AUTO_LAYER)

    def explained(self, explanation: ExplainedVerdicts, inputs: Any) -> ExplainedVerdicts:
        """Return an explanation with the names and, of a table, the units of its columns."""
        steps, last = split_steps(self.prepare)
        if self.features == PREPARED and isinstance(last, TableFeatures):
            if not self.takes(inputs):  # batches: the values that are shown are not at hand
                return explanation
            inputs = after(steps, to_numpy(inputs) if is_torch(inputs) else inputs)
            return explanation.with_columns(partial(last.shown, inputs))
        made_by = self.prepare if self.features == PREPARED else (None, *self._steps)[-1]
        with suppress(AttributeError, ValueError):  # not every model names its columns
            is_input = self.features == INPUT
            names = self.model.feature_names_in_ if is_input else made_by.get_feature_names_out()
            return explanation.with_columns(lambda *_: {"names": list(names)})
        return explanation

    def takes(self, inputs: Any) -> bool:
        """Return whether this has rows: an array, a data frame, a sparse matrix or a list."""
        # A DataLoader or a generator has no rows; a list has rows, of numbers or of texts.
        if isinstance(inputs, list):
            return not any(hasattr(row, "shape") and len(row.shape) == 2 for row in inputs[:1])
        return hasattr(inputs, "shape") and not isinstance(inputs, Mapping)

    def _run(self, inputs: Any) -> dict[str, Any]:
        if is_torch(inputs):
            inputs = to_numpy(inputs)
        model, layers = self.model, {INPUT: inputs}
        with self._explained_errors(inputs):
            if PENULTIMATE in self.layers:  # the steps before the last run only once
                model, inputs = self._final, after(self._steps, inputs)
                layers[PENULTIMATE] = inputs
            compute = self._decisions if self.output == _DECISIONS else self._probs
            logits = compute(model, inputs)
            if PREPARED in self.layers:
                layers[PREPARED] = self.prepare.transform(layers[INPUT])
        if logits.ndim != 2:
            raise ShapeError(
                f"{self.output} returns shape {logits.shape}; expected (n_samples, n_labels)."
            )
        n_samples = n_rows(layers[INPUT])
        if len(logits) != n_samples:  # the model iterated over the columns of a frame
            raise ShapeError(
                f"the model returns {len(logits):,} rows for {n_samples:,} inputs. If these are "
                'the texts of a data frame, pass their column: frame["text"].'
            )
        arrays = zip(self.array_names, self.layers, strict=True)
        return {"logits": logits, **{name: _dense(layers[layer], layer) for name, layer in arrays}}

    def _decisions(self, model: Any, inputs: Any) -> Array:
        parts = getattr(self._final, "estimators_", ())
        if not hasattr(model, _DECISIONS):  # of a MultiOutputClassifier
            reached = inputs if model is self._final else after(self._steps, inputs)
            return np.column_stack([part.decision_function(reached) for part in parts])
        decisions = np.asarray(model.decision_function(inputs))
        for label, part in enumerate(parts):
            # OneVsRest gives a label that was never present the logit 0, which is one half.
            if type(part).__name__ == "_ConstantPredictor" and not np.any(part.y_):
                decisions[:, label] = -np.inf
        return decisions

    def _probs(self, model: Any, inputs: Any) -> Array:
        probs = model.predict_proba(inputs)
        if not isinstance(probs, list):
            return np.asarray(probs)
        # A list holds one matrix per label, with one column per class of that label. The column of
        # class 1 is zeros if the training data had only class 0: the sum of no columns.
        columns = zip(probs, map(np.asarray, self._final.classes_), strict=True)
        return np.column_stack([part[:, kinds == 1].sum(axis=1) for part, kinds in columns])

    def _last_layers(self, shape: tuple[int, int]) -> Iterator[tuple[Array, Array]]:
        parts = getattr(self._final, "estimators_", [self._final])
        if all(hasattr(part, "coef_") for part in parts):
            layers = [(np.atleast_2d(part.coef_), np.atleast_1d(part.intercept_)) for part in parts]
            if all(weight.shape[1] == shape[1] for weight, _ in layers):
                weights, biases = zip(*layers, strict=True)
                yield np.vstack(weights), np.hstack(biases)

    def describe(self) -> dict[str, Any]:
        """Return what a manifest says about the model."""
        versions = {"sklearn_version": sklearn.__version__, "n_columns": self.n_features}
        return {**super().describe(), **versions}

    @contextmanager
    def _explained_errors(self, inputs: Any) -> Iterator[None]:
        try:
            yield
        except NescioError:
            raise
        except Exception as error:  # models raise many kinds
            hint = _infinite_cell(inputs)
            if self.columns and not hint and not hasattr(inputs, "columns"):
                hint = (
                    " The model was trained on a data frame. Pass one with the same columns: "
                    "pd.DataFrame([row]) of one row as a dict, pd.DataFrame(rows) of several."
                )
            elif as_texts(inputs) is not None:
                hint = f" For texts, {_TEXTS}"
            elif "no attribute 'lower'" in str(error):  # of a vectoriser
                hint = " The model takes texts: pass a list of them."
            fault = cut(str(error), 400).rstrip(".")  # scikit-learn may show all of the data
            if "isnan" in fault and hasattr(inputs, "select_dtypes"):  # of an encoder of words
                empty = ", ".join(repr(n) for n, cells in inputs.items() if cells.isna().all())
                if empty:
                    fault = f"the columns {empty} have no value, so pandas takes them for numbers"
                    hint = " If they are words, pass frame.astype({name: object})."
            if changed := self._changed_columns(inputs):
                fault = "; ".join(changed[:3])
                hint = " Pass such values as in training. If they are unknown, pass NaN."
            raise InputError(f"the model cannot run on these inputs: {fault}.{hint}") from error

    def _changed_columns(self, frame: Any) -> list[str]:
        """Say which columns held numbers in training and now words, or words and now numbers."""
        made_by = split_steps(self.prepare)[1]
        if not isinstance(made_by, TableFeatures) or not hasattr(frame, "select_dtypes"):
            return []
        words = dict(zip(made_by.words_, made_by.usual_words_, strict=True))
        changed = []
        for name in [n for n in (*(made_by.numbers_ or ()), *words) if n in frame]:
            cells = frame[name].dropna().items()
            odd = [(row, cell) for row, cell in cells if not _is_like(cell, words.get(name))]
            for row, cell in odd[:1]:
                kind = "words" if name in words else "numbers"
                changed.append(
                    f"column {name!r} held {kind} in training, but has {cut(repr(cell), 40)} in "
                    f"row {row} of the index"
                )
        return changed


def _is_like(cell: Any, words: list[str] | None) -> bool:
    """Return whether this may be a cell of a column of numbers, or else of such words."""
    if words is not None:
        return isinstance(cell, str) or as_text(cell) in words
    with suppress(TypeError, ValueError):
        float(cell)
        return True
    return False


def _infinite_cell(inputs: Any) -> str:
    """Say where the first infinite number is; empty without one."""
    numbers = inputs.select_dtypes("number") if hasattr(inputs, "select_dtypes") else inputs
    with suppress(TypeError, ValueError):
        for row, column in np.argwhere(np.isinf(np.asarray(numbers, dtype=np.float64)))[:1]:
            name = getattr(numbers, "columns", range(column + 1))[column]
            index = index_of(numbers)  # of a frame: the rows of a batch are not those of the whole
            place = f"{row} (counted from 0)" if index is None else f"{index[row]} of the index"
            return f" The first infinite number is in row {place}, column {name!r}."
    return ""


def split_steps(model: Any) -> tuple[list[Any], Any]:
    """Return the fitted steps of pipelines and searches, and the classifier at their end."""
    model = getattr(model, "best_estimator_", model)  # what a search has found
    if not hasattr(model, "steps"):
        return [], model
    before = [model[:-1]] if len(model.steps) > 1 else []
    steps, classifier = split_steps(model.steps[-1][1])
    return [*before, *steps], classifier


def _check_multi_label(final: Any, name: str) -> None:
    """Raise unless the classifier is fitted and predicts several labels at once."""
    classes = getattr(final, "classes_", None)
    if classes is None:
        raise ParameterError(
            f"this {name} has no classes_: it is not fitted, or is no classifier. Call fit(X, Y) "
            "first, with multi-hot Y."
        )
    if isinstance(classes, list):
        for label, kinds in enumerate(map(np.asarray, classes)):
            if not np.isin(kinds, (0, 1)).all():
                raise ParameterError(
                    f"label {label} of this {name} has the classes {kinds.tolist()[:5]}; each "
                    "label must be 0 or 1. Fit it with multi-hot Y."
                )
        return
    binarizer = getattr(final, "_label_binarizer", getattr(final, "label_binarizer_", None))
    kind = getattr(binarizer, "y_type_", "")
    if getattr(final, "multilabel_", kind.startswith("multilabel")):
        return
    raise ParameterError(
        f"this {name} chooses one of {len(classes)} classes that exclude each other, but nescio is "
        "for models whose labels can be present together. If yours can, fit the model with "
        "multi-hot Y, in a OneVsRestClassifier or a MultiOutputClassifier if necessary."
    )


def _dense(inputs: Any, layer: str) -> Array:
    array = np.asarray(inputs.toarray() if hasattr(inputs, "toarray") else inputs)
    if array.ndim != 2 or array.dtype.kind not in "fiub":
        raise MissingInputError(
            f"features={layer!r} needs numbers of shape (n_samples, n_features), got "
            f"{array.dtype} of shape {array.shape}. For a table with other columns, pass a fitted "
            "transformer: wrap(model, features=nescio.TableFeatures().fit(train))."
        )
    return array.astype(np.float64) if array.dtype.kind != "f" else array
