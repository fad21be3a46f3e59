"""One detector and, optionally, one model, which are loaded and replaced together."""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from nescio._charts.histogram import Histogram
from nescio.calibration import CUSTOM, Calibration
from nescio.detectors import Detector, load
from nescio.detectors.assessment import Assessment
from nescio.detectors.saving import plain_params
from nescio.errors import InputError, ShapeError
from nescio.explain import Explanation, PartsExplanation
from nescio.outputs import Outputs, quiet_about_probabilities
from nescio.outputs.matching import match_labels
from nescio.service.model import Model
from nescio.service.settings import Settings


class BatchResult(NamedTuple):
    """The outputs of the model for one or several requests, and the verdicts."""

    outputs: Outputs
    assessment: Assessment


@dataclass(frozen=True)
class Engine:
    """Scores requests. It never changes: a reload makes another one."""

    detector: Detector
    model: Model | None

    @classmethod
    def load(cls, settings: Settings) -> Engine:
        """Read the files; a `NescioError` says what is wrong with them."""
        detector = load(settings.detector)
        calibration = getattr(detector, "calibration_", None)
        if calibration is None:
            raise InputError(
                f"{settings.detector} is not calibrated, so it has no threshold. Use nescio "
                "calibrate, or detector.calibrate(held_out)."
            )
        if calibration.by == CUSTOM:
            raise InputError(
                f"{settings.detector} was calibrated with groups of your own, which the service "
                "does not know. Calibrate it without groups or by label count."
            )
        model = None if settings.model is None else Model.load(settings, detector)
        return cls(detector, model)

    @property
    def calibration(self) -> Calibration:
        """The calibration of the detector."""
        calibration: Calibration = self.detector.calibration_
        return calibration

    @property
    def label_names(self) -> tuple[str, ...] | None:
        """The label names, if the detector or the model knows them."""
        known = self.detector.label_names_
        return known if known or self.model is None else self.model.wrapped.label_names

    @property
    def n_labels(self) -> int | None:
        """The number of labels, or None if it is unknown because only features were seen."""
        if "logits" in self.detector.n_columns_:
            return self.detector.n_columns_["logits"]
        if self.detector.profile_.firing is not None:
            return self.detector.profile_.firing.n_labels
        return None if self.label_names is None else len(self.label_names)

    def score(self, outputs: Outputs) -> BatchResult:
        """Return the verdicts on outputs; labels with names are matched by name."""
        known = self.detector.label_names_
        if known is not None and outputs.label_names is not None:
            outputs = match_labels(outputs, known, self.detector.scores_from)
        if self.n_labels not in (None, outputs.n_labels):
            raise ShapeError(
                f"the detector expects logits of {self.n_labels} labels, got {outputs.n_labels}."
            )
        with quiet_about_probabilities(outputs):
            return BatchResult(outputs, self.detector.assess(outputs))

    def explain(self, outputs: Outputs) -> Explanation | PartsExplanation:
        """Return each label's share of the scores, or that of each part of a combination."""
        with quiet_about_probabilities(outputs):
            return self.detector.explain(outputs)

    def describe(self) -> dict[str, Any]:
        """Return what clients may want to know about the detector and the model."""
        calibration = self.calibration
        first = next(iter(calibration.thresholds.values()))
        names = self.label_names
        return {
            "detector": self.detector.name,
            "params": {k: v for k, v in plain_params(self.detector).items() if k != "tpr"},
            "scores_from": list(self.detector.scores_from),
            "n_columns": self.detector.n_columns_,
            "label_names": None if names is None else list(names),
            "threshold": calibration.threshold_values,
            "tpr": first.tpr,
            "confidence": first.confidence,
            "by": calibration.by,
            "n_calibration": calibration.n_samples,
            "n_by_group": {name: len(of.scores) for name, of in calibration.thresholds.items()},
            "statement": calibration.statement(),
            "explains": _explains_labels(self.detector),
            "histogram": self.histogram(None).as_dict(),
            "example": self._example(),
            "model": None if self.model is None else self.model.describe(),
        }

    def histogram(self, group: str | None) -> Histogram:
        """Return the histogram of the calibration scores, of all groups or of one."""
        thresholds = self.calibration.thresholds
        if group is not None:
            return Histogram.of(thresholds[group].scores, [thresholds[group].value])
        return Histogram.of(self.calibration.scores, [one.value for one in thresholds.values()])

    def _example(self) -> list[float] | None:
        """Return logits to try, made of medians of the calibration data, if they are "in"."""
        terms, medians = self.detector.label_terms(), self.detector.profile_.medians
        if terms is None or medians is None:
            return None
        at = len(medians.groups) // 2
        ladder = np.linspace(-40.0, 40.0, 8_001)
        steps = np.asarray(terms.of(ladder[None, :]))[0]  # increasing
        commonest_first = np.argsort(-medians.labels[at], kind="stable")
        row = np.empty(len(commonest_first))
        row[commonest_first] = np.interp(medians.ranks[at], steps, ladder).round(2)
        ordinary = self.score(Outputs(row[None, :])).assessment.in_distribution[0]
        return row.tolist() if ordinary else None


def _explains_labels(detector: Detector) -> bool:
    """Return whether the score, or that of a part, can be explained label by label."""
    if detector.label_terms() is not None:
        return detector.profile_.medians is not None
    return any(
        map(_explains_labels, getattr(detector, "detectors_", ()) if detector.explains else ())
    )


def kind_of(outputs: Outputs) -> Hashable:
    """Return a key; outputs with the same key can be scored together."""
    columns = tuple(
        (name, outputs.get(name).shape[1], outputs.get(name).dtype.str)
        for name in outputs.names
        if name != "head"
    )
    return columns, outputs.label_names, outputs.ids is None, id(outputs.head)
