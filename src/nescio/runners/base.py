"""What every wrapped model does: run in batches, gather `Outputs`, ask the detector."""

from __future__ import annotations

import copy
from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, ClassVar, Self

import numpy as np

from nescio._validation import (
    Array,
    check_matrix,
    checked_whole,
    looks_like_probabilities,
    to_numpy,
)
from nescio._version import __version__
from nescio.detectors import Detector, NotCalibratedError, load
from nescio.detectors.arrays import label_difference
from nescio.detectors.naming import build_detector, parse_detector
from nescio.errors import (
    InputError,
    LabelMismatchError,
    MissingInputError,
    ParameterError,
    ProbabilitiesWarning,
    ShapeError,
    warn,
)
from nescio.outputs import Outputs, check_label_names, quiet_about_probabilities
from nescio.runners.batches import Batch, batches_of
from nescio.runners.prediction import Prediction
from nescio.scores import logits_from_probs


class Wrapped(ABC):
    """A model as it is, and a detector that says when not to trust it. Made by `wrap`.

    Attributes
    ----------
    kind : str
        "torch", "transformers", "sklearn" or "onnx".
    model
        What was wrapped.
    detector : Detector or None
    features : str or None
        What the features are taken from.
    from_probs : bool
        Whether the model gives probabilities, which are converted to logits.
    output : str, int or None
        Which of the model's outputs holds the logits.
    """

    kind: ClassVar[str] = ""

    def __init__(
        self,
        model: Any,
        *,
        detector: Detector | str | Path | None = None,
        features: str | None = None,
        label_names: Sequence[str] | None = None,
        from_probs: bool = False,
        device: Any = None,
        output: str | int | None = None,
    ) -> None:
        self.model = model
        self.features = features
        self.from_probs = from_probs
        self.device = device
        self.output = output
        self._own_names = None if label_names is None else _checked_names(label_names)
        self.detector = None if detector is None else self._fitting(detector)

    @property
    def label_names(self) -> tuple[str, ...] | None:
        """The labels' names: those that were given, else the detector's."""
        if self._own_names is not None or self.detector is None:
            return self._own_names
        return self.detector.label_names_

    def settings(self) -> dict[str, Any]:
        """What to wrap the model with again."""
        return {
            "detector": self.detector,
            "features": self.features,
            "label_names": self._own_names,
            "from_probs": self.from_probs,
            "device": self.device,
            "output": self.output,
        }

    # --- what a kind of model writes ---

    @abstractmethod
    def _run(self, inputs: Any) -> tuple[Any, Any]:
        """The model's output, and its features or None, for one batch."""

    @abstractmethod
    def _is_data(self, inputs: Any) -> bool:
        """Whether these are inputs of samples, not batches to iterate over."""

    def _describe(self) -> dict[str, Any]:
        """What the manifest says of the model."""
        kind = type(self.model)
        return {"model": f"{kind.__module__}.{kind.__qualname__}"}

    def _rows_a_batch(self, batch_size: int) -> int:
        """How many samples to run at once."""
        return batch_size

    # --- running ---

    def outputs(
        self,
        inputs: Any,
        *,
        labels: Any = None,
        ids: Sequence[str] | None = None,
        batch_size: int = 256,
    ) -> Outputs:
        """The model's logits and, where named, features.

        Parameters
        ----------
        inputs
            What the model takes, samples first: an array or a tensor, a mapping of them by name, a
            tuple of them by position; for scikit-learn also a data frame, a sparse matrix or a
            list. Or batches of such: a DataLoader or another iterable, of inputs or of pairs
            (inputs, labels).
        labels : array of shape (n_samples, n_labels), optional
            Multi-hot truth, to keep with the outputs.
        ids : sequence of str, optional
            One name a sample.
        batch_size : int
            How many samples to run at once. Batches that come as such are run as they come.
        """
        checked_whole("batch_size", batch_size, minimum=1)
        parts: list[Array] = []
        features: list[Array] = []
        truth: list[Array] = []
        for batch in self._batches(inputs, batch_size):
            logits, feature_rows = self._run(batch.inputs)
            parts.append(_checked_part(logits, "logits", parts))
            if feature_rows is not None:
                features.append(_checked_part(feature_rows, "features", features))
            if batch.labels is not None:
                truth.append(to_numpy(batch.labels))
            if truth and len(truth) != len(parts):
                raise InputError("some of the batches bring labels, and others do not.")
        if not parts:
            raise ShapeError("there are no inputs: not a single sample came.")
        if truth and labels is not None:
            raise InputError("labels came with the batches and as labels=...; pass them once.")
        return Outputs(
            self._as_logits(np.concatenate(parts)),
            features=np.concatenate(features) if features else None,
            labels=np.concatenate(truth) if truth else labels,
            ids=ids,
            label_names=self.label_names,
            manifest=self._manifest(),
        )

    def _batches(self, inputs: Any, batch_size: int) -> Iterator[Batch]:
        return batches_of(inputs, self._rows_a_batch(batch_size), self._is_data)

    def _as_logits(self, values: Array) -> Array:
        n_labels = values.shape[1]
        if self.label_names is not None and len(self.label_names) != n_labels:
            raise self._other_count(self.label_names, n_labels)
        if self.from_probs:
            return np.asarray(logits_from_probs(values))
        if looks_like_probabilities(values):
            warn(
                "every output of the model lies within [0, 1]: these look like probabilities. If "
                "they are, wrap it with from_probs=True.",
                ProbabilitiesWarning,
            )
        return values

    def _other_count(self, names: Sequence[str], n_labels: int) -> ShapeError:
        if self._own_names is not None:
            return ShapeError(
                f"the model gives {n_labels} outputs a sample, and there are {len(names)} label "
                "names. Name each of its labels, in its order."
            )
        told = ", ".join(names[:3]) + (", ..." if len(names) > 3 else "")
        return ShapeError(
            f"the detector was made for {len(names)} labels ({told}), and the model gives "
            f"{n_labels}. Calibrate one on outputs of this very model."
        )

    def _manifest(self) -> dict[str, Any]:
        return {
            "kind": self.kind,
            **self._describe(),
            "features": self.features,
            "output": self.output,
            "from_probs": self.from_probs,
            "nescio_version": __version__,
        }

    def __call__(
        self,
        inputs: Any,
        *,
        labels: Any = None,
        ids: Sequence[str] | None = None,
        batch_size: int = 256,
        groups: Any = None,
        fdr: float | None = None,
        threshold: float = 0.5,
    ) -> Prediction:
        """Labels, probabilities and verdict of each sample.

        Parameters
        ----------
        inputs, labels, ids, batch_size
            As `outputs` takes them.
        groups, fdr
            As the detector's `assess` takes them.
        threshold : float
            A label is predicted if its probability is above this.
        """
        if self.detector is None:
            raise NotCalibratedError(
                "there is no detector to give a verdict. Calibrate one on held-out data, "
                "wrapped.calibrate(held_out), or pass one: wrap(model, detector=...)."
            )
        outputs = self.outputs(inputs, labels=labels, ids=ids, batch_size=batch_size)
        with quiet_about_probabilities(outputs):
            assessment = self.detector.assess(outputs, groups=groups, fdr=fdr)
        return Prediction(outputs, assessment, threshold)

    # --- the detector ---

    def with_detector(self, detector: Detector | str | Path) -> Self:
        """The same model with this detector, calibrated, or read from a file."""
        other = copy.copy(self)
        other.detector = other._fitting(detector)
        return other

    def calibrate(
        self,
        held_out: Any,
        detector: Detector | str = "joint_energy",
        *,
        tpr: float | None = None,
        confidence: float | None = None,
        groups: Any = None,
        batch_size: int = 256,
    ) -> Self:
        """The same model with a detector calibrated on held-out inputs.

        Parameters
        ----------
        held_out
            In-distribution inputs that neither the model nor the detector has learned from, as
            `outputs` takes them.
        detector : Detector or str
            One that is ready to be calibrated, and stays as it is, or the name of one that has
            nothing to learn, such as "top_k_joint_energy(k=5)".
        tpr, confidence, groups
            As the detector's `calibrate` takes them.
        batch_size : int
            How many samples to run at once.
        """
        own = (
            build_detector(*parse_detector(detector))
            if isinstance(detector, str)
            else copy.deepcopy(detector)
        )
        self._check_reads(own)
        outputs = self.outputs(held_out, batch_size=batch_size)
        with quiet_about_probabilities(outputs):
            own.calibrate(outputs, tpr=tpr, confidence=confidence, groups=groups)
        return self.with_detector(own)

    def _fitting(self, detector: Any) -> Detector:
        """The detector, if it has a threshold and reads what this model gives."""
        if isinstance(detector, str | Path):
            detector = load(detector)
        if not isinstance(detector, Detector):
            raise ParameterError(
                f"detector must be a calibrated Detector or the file of one, got {detector!r}."
            )
        self._check_reads(detector)
        if not hasattr(detector, "offset_"):
            raise NotCalibratedError(
                f"this {type(detector).__name__} has no threshold yet. Calibrate it first, or let "
                "wrap(model).calibrate(held_out, detector) do so."
            )
        ours, theirs = self._own_names, detector.label_names_
        if ours is not None and theirs is not None and ours != theirs:
            raise LabelMismatchError(
                label_difference(theirs, ours).replace("the data", "the model")
            )
        n_labels = detector.n_columns_.get("logits")
        if ours is not None and n_labels is not None and n_labels != len(ours):
            raise ShapeError(
                f"the detector was made for {n_labels} labels, and the model has {len(ours)}. "
                "Calibrate one on outputs of this very model."
            )
        return detector

    def _check_reads(self, detector: Detector) -> None:
        reads = detector.scores_from[0]
        if reads == "features" and self.features is None:
            raise MissingInputError(
                f"{detector.name} reads features. Say where the model has them (--features, in "
                "Python wrap(model, features=...))."
            )
        if reads not in ("logits", "features"):
            raise MissingInputError(
                f"{detector.name} reads {reads}, the outputs for perturbed inputs, which a wrapped "
                "model does not give. See nescio extract --tuned."
            )

    def __repr__(self) -> str:
        given = {"features": self.features, "detector": self.detector}
        parts = [f"{self.kind}: {self._describe()['model']}"]
        parts += [f"{name}={value!r}" for name, value in given.items() if value is not None]
        return f"Wrapped({', '.join(parts)})"


def _checked_names(names: Sequence[str]) -> tuple[str, ...]:
    if isinstance(names, str):
        raise ParameterError(f"label_names must be a sequence of names, got the text {names!r}.")
    return check_label_names(names, len(names))


def _checked_part(values: Any, name: str, before: Sequence[Array]) -> Array:
    array = to_numpy(values)
    check_matrix(array, name)
    if before and before[0].shape[1] != array.shape[1]:
        raise ShapeError(
            f"the model gave {name} of {before[0].shape[1]} columns for one batch and of "
            f"{array.shape[1]} for another."
        )
    return array
