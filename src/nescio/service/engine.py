"""One detector and, if there is one, one model: loaded together, replaced together."""

from __future__ import annotations

import copy
import warnings
from collections.abc import Callable, Collection, Hashable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple, TypeVar

import numpy as np

from nescio._validation import Array
from nescio.calibration import CUSTOM, Calibration, Threshold
from nescio.detectors import Detector, load
from nescio.detectors.assessment import Assessment
from nescio.errors import InputError, ProbabilitiesWarning, ShapeError
from nescio.explain import Explanation
from nescio.outputs import Outputs, quiet_about_probabilities
from nescio.service.errors import RefusedError
from nescio.service.model import Model
from nescio.service.settings import Settings

_HISTOGRAM_BINS = 60

Work = TypeVar("Work")


class Scored(NamedTuple):
    """What the model gave for some inputs, and the verdicts."""

    outputs: Outputs
    assessment: Assessment


Recorder = Callable[[Scored], object]


@dataclass(frozen=True)
class Engine:
    """What requests are scored with; it never changes, a reload makes another."""

    detector: Detector
    model: Model | None

    @classmethod
    def load(cls, settings: Settings) -> Engine:
        """Read the files; a `NescioError` says what is wrong with them."""
        # In memory: of a file that somebody copies over, what is mapped would be gone (SIGBUS).
        detector = copy.deepcopy(load(settings.detector))
        calibration = getattr(detector, "calibration_", None)
        if calibration is None:
            raise InputError(
                f"{settings.detector} is not calibrated: a verdict needs a threshold on held-out "
                "data. Use nescio fit, or detector.calibrate(held_out)."
            )
        if calibration.by == CUSTOM:
            raise InputError(
                f"{settings.detector} was calibrated by groups of your own, which the service "
                "cannot know. Calibrate without groups or by label count."
            )
        model = None if settings.model is None else Model.load(settings, detector)
        return cls(detector, model)

    @property
    def calibration(self) -> Calibration:
        """The detector's thresholds."""
        calibration: Calibration = self.detector.calibration_
        return calibration

    @property
    def label_names(self) -> tuple[str, ...] | None:
        """The labels, where the detector or the model knows them."""
        known = self.detector.label_names_
        return known if known or self.model is None else self.model.label_names

    @property
    def n_labels(self) -> int | None:
        """How many logits an input has; None if only its features were ever seen."""
        if "logits" in self.detector.n_columns_:
            return int(self.detector.n_features_in_)
        firing = self.detector.profile_.firing
        names = self.label_names
        return firing.n_labels if firing is not None else None if names is None else len(names)

    # --- scoring, many requests at once ---

    def score(self, works: Sequence[Outputs], record: Recorder) -> list[Scored | Exception]:
        """The verdicts on outputs of one kind; a bad one spoils only itself.

        `record` is called with what was scored together.
        """
        return _together(works, lambda some: self._scored(some, record))

    def predict(
        self, works: Sequence[Mapping[str, Array]], record: Recorder
    ) -> list[Scored | Exception]:
        """The model's outputs for inputs of one kind, and the verdicts."""
        if self.model is None:
            return [RefusedError(404, "there is no model here: start with --model.")] * len(works)
        model = self.model
        if model.batches:
            return _together(works, lambda some: self._predicted(model, some, record))
        alone = [
            _together([work], lambda some: self._predicted(model, some, record)) for work in works
        ]
        return [outcome for outcomes in alone for outcome in outcomes]

    def _scored(self, works: Sequence[Outputs], record: Recorder) -> list[Scored]:
        joined = works[0] if len(works) == 1 else _joined(works)
        if self.n_labels not in (None, joined.n_labels):
            raise ShapeError(
                f"the detector was made for {self.n_labels} labels, got {joined.n_labels} logits."
            )
        with quiet_about_probabilities(joined):
            whole = Scored(joined, self.detector.assess(joined))
        record(whole)
        if len(works) == 1:
            return [whole]
        ends = np.cumsum([len(work) for work in works]).tolist()
        rows = [slice(end - len(work), end) for work, end in zip(works, ends, strict=True)]
        return [
            Scored(work, replace(whole.assessment[part], ids=work.ids))
            for work, part in zip(works, rows, strict=True)
        ]

    def _predicted(
        self, model: Model, works: Sequence[Mapping[str, Array]], record: Recorder
    ) -> list[Scored]:
        sizes = [len(next(iter(work.values()))) for work in works]
        joined = {name: np.concatenate([work[name] for work in works]) for name in works[0]}
        outputs = model.outputs(joined)
        ends = np.cumsum(sizes).tolist()
        parts = [outputs[end - size : end] for size, end in zip(sizes, ends, strict=True)]
        return self._scored(parts, record)

    def explain(self, outputs: Outputs) -> Explanation:
        """Each label's part in the scores; a `NescioError` if the detector has no such parts."""
        with quiet_about_probabilities(outputs):
            return self.detector.explain(outputs)

    # --- what it is ---

    def describe(self) -> dict[str, Any]:
        """All that a client may want to know: thresholds, labels, the calibration's histogram."""
        calibration = self.calibration
        first = next(iter(calibration.thresholds.values()))
        names = self.label_names
        return {
            "detector": self.detector.name,
            "params": {k: v for k, v in self.detector.get_params().items() if k != "tpr"},
            "reads": self.detector.scores_from[0],
            "n_inputs": self.detector.n_features_in_,
            "label_names": None if names is None else list(names),
            "tau": calibration.taus,
            "tpr": first.tpr,
            "confidence": first.confidence,
            "by": calibration.by,
            "n_calibration": calibration.n_samples,
            "statement": calibration.statement(),
            "explains": self.detector.label_terms() is not None
            and self.detector.profile_.medians is not None,
            "histogram": _histogram(calibration.thresholds.values()),
            "group_histograms": None
            if calibration.by is None
            else {name: _histogram([one]) for name, one in calibration.thresholds.items()},
            "example": self._example(),
            "model": None if self.model is None else self.model.describe(),
        }

    def _example(self) -> list[float] | None:
        """Logits to try, made of the calibration's medians; None if they make no ordinary row."""
        terms, usual = self.detector.label_terms(), self.detector.profile_.medians
        if terms is None or usual is None:
            return None
        at = len(usual.groups) // 2
        ladder = np.linspace(-40.0, 40.0, 8_001)
        steps = np.asarray(terms.of(ladder[None, :]))[0]  # they grow with the logit
        commonest_first = np.argsort(-usual.labels[at], kind="stable")
        row = np.empty(len(commonest_first))
        row[commonest_first] = np.interp(usual.ranks[at], steps, ladder).round(2)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", ProbabilitiesWarning)
            ordinary = self.detector.assess(row[None, :]).in_distribution[0]
        return row.tolist() if ordinary else None


def kind_of(outputs: Outputs) -> Hashable:
    """Outputs of one kind can be scored as one matrix."""
    arrays = {"logits": outputs.logits, "features": outputs.features, **outputs.arrays}
    shapes = tuple(
        (name, array.shape[1], array.dtype.str)
        for name, array in arrays.items()
        if array is not None
    )
    return shapes, outputs.label_names


def _joined(works: Sequence[Outputs]) -> Outputs:
    first = works[0]
    return Outputs(
        np.concatenate([work.logits for work in works]),
        features=None
        if first.features is None
        else np.concatenate([work.features for work in works if work.features is not None]),
        label_names=first.label_names,
        arrays={
            name: np.concatenate([work.arrays[name] for work in works]) for name in first.arrays
        },
    )


def _together(
    works: Sequence[Work], run: Callable[[Sequence[Work]], list[Scored]]
) -> list[Scored | Exception]:
    """Run all at once; if that fails, one by one, so that each gets its own result or reason."""
    try:
        return list(run(works))
    except Exception as error:
        if len(works) == 1:
            return [error]
    return [outcome for work in works for outcome in _together([work], run)]


def _histogram(thresholds: Collection[Threshold]) -> dict[str, Any]:
    """The calibration scores of some groups, in bins that leave out the last half per cent."""
    scores = np.concatenate([threshold.scores for threshold in thresholds])
    scores = scores[np.isfinite(scores)]
    taus = [threshold.tau for threshold in thresholds]
    low, high = np.quantile(scores, (0.0025, 0.9975))
    low, high = min(low, *taus), max(high, *taus)
    if low == high:
        low, high = low - 0.5, high + 0.5
    counts, edges = np.histogram(
        np.clip(scores, low, high), bins=_HISTOGRAM_BINS, range=(low, high)
    )
    return {"edges": edges.tolist(), "counts": counts.tolist()}
