"""Several detectors as one, by the weighted harmonic mean of their p-values; the default."""

from __future__ import annotations

import copy
import warnings
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

import numpy as np
from sklearn.base import clone

from nescio._validation import Array
from nescio.calibration import Scores
from nescio.detectors.base import Decided, Detector
from nescio.detectors.features import LinearProbe, OutOfRange
from nescio.detectors.inputs import Arrays, usable_rows
from nescio.detectors.label_scores import JointEnergy, TopKJointEnergy
from nescio.detectors.neighbours import LabelNeighbours
from nescio.detectors.registry import as_detector
from nescio.errors import DefaultDetectorWarning, ParameterError, TiedScoresWarning, warn
from nescio.explain import PartsExplanation
from nescio.outputs import Outputs
from nescio.outputs.outputs import INPUT

_DEFAULT_KINDS = (JointEnergy, LabelNeighbours, LinearProbe, OutOfRange)
"""How they were chosen, with their weights: docs/explanation/the-default.md."""

DEFAULT_PARTS = tuple(kind.name for kind in _DEFAULT_KINDS)

_N_NEAREST = 3
_GUARD = 0.02  # the weight of a guard; chosen in docs/explanation/the-default.md

AUTO_DETECTOR = "auto"
"""In place of a detector's name: `default_detector` chooses."""

MOST_LABELS = 20
"""With more labels, those that are surely absent add up to noise that hides the others."""

MOST_FEATURES = 4_096
"""With more, such as the words of a vocabulary, learning takes minutes and much memory."""

MIN_HELD_OUT = 160
"""With fewer, joint energy with the guard loses more to the smaller half than the guard adds."""

MIN_WITH_TRAINING = 80
"""With at least as many, the combination that has learned is better than joint energy."""

MIN_TRAINING = 160
"""With fewer training samples, what the combination learns from them makes it worse."""

_CERTAIN = 5  # standard errors


@dataclass(eq=False, repr=False)
class Combined(Detector):
    """The weighted harmonic mean of the conformal p-values of several detectors.

    Scores of different detectors cannot be added, but their p-values have the same meaning: how
    often an in-distribution sample scores as low or lower. A part's p-values come from its scores
    of a random half of the held-out data, which calibrates the parts, `detectors_`. The score is
    minus the sum of weight / p, with weights that sum to 1: minus 1 over their harmonic mean. Only
    the other half of the held-out data calibrates it. So the verdict keeps the share `tpr`, however
    the parts depend on each other.

    One small p-value is enough for a low score, and a part that finds nothing strange cannot
    outvote it. A part with a small weight, a guard, decides only where its p-value is far below
    what the other parts need: it costs little power elsewhere.

    Parameters
    ----------
    detectors : list or tuple
        The parts: detectors, or their names, with parameters if needed ("top_k_joint_energy(k=5)").
    weights : list or tuple of float
        One positive number per part. If empty, each part has its usual weight: 1, and 0.02 for the
        guard `out_of_range`.

    Examples
    --------
    >>> held_out = np.random.default_rng(0).normal(0, 3, (500, 10))
    >>> detector = Combined(["joint_energy", "top_k_joint_energy(k=3)"], weights=[1, 2])
    >>> detector.calibrate(held_out).predict([[4.0, 4.0] + [-4.0] * 8, [-6.0] * 10])
    array([ 1, -1])
    """

    name = "combined"
    paper = "Wilson, PNAS 2019 (harmonic mean of p-values)"
    learned = ("detectors_",)

    detectors_: list[Detector] = field(init=False)

    detectors: Sequence[Any] = DEFAULT_PARTS
    weights: Sequence[float] = ()

    @property
    def learns_from(self) -> tuple[str, ...]:
        """What the parts learn from."""
        return _union(part.learns_from for part in self._unfitted_parts())

    @property
    def learns_from_held_out(self) -> tuple[str, ...]:
        """What the parts score, and what they learn from held-out data."""
        parts = self._unfitted_parts()
        return _union(
            name for part in parts for name in (part.scores_from, part.learns_from_held_out)
        )

    @property
    def scores_from(self) -> tuple[str, ...]:
        """What the parts score."""
        return _union(part.scores_from for part in self._unfitted_parts())

    @property
    def accepts_masked(self) -> bool:  # type: ignore[override]  # it depends on the parts
        """Whether every part accepts masked labels."""
        return all(part.accepts_masked for part in self._unfitted_parts())

    def _check_params(self) -> None:
        super()._check_params()
        for part in self._unfitted_parts():
            part._check_params()
        weights = self.weights
        positive = isinstance(weights, list | tuple) and all(
            isinstance(w, int | float) and not isinstance(w, bool) and 0 < w < np.inf
            for w in weights
        )
        if not positive or len(weights) not in (0, len(self.detectors)):
            raise ParameterError(
                f"weights must be a list of {len(self.detectors)} positive numbers, one per part, "
                f"or empty for the usual weights, got {weights!r}."
            )

    def _unfitted_parts(self) -> list[Detector]:
        """Return the parts of the parameters; text is read once, because scoring asks often."""
        parts = self.detectors
        if not isinstance(parts, list | tuple) or not parts:
            raise ParameterError(
                "detectors must be a list of detectors or of their names, such as "
                f"['joint_energy', 'max_logit'], got {parts!r}."
            )
        if tuple(parts) == DEFAULT_PARTS:
            return [kind() for kind in _DEFAULT_KINDS]
        by_text = self.__dict__.setdefault("_parts_by_text", {})
        for part in parts:
            if isinstance(part, str) and part not in by_text:
                by_text[part] = as_detector(part, may_import=False)
        return [by_text[part] if isinstance(part, str) else as_detector(part) for part in parts]

    def _new_parts(self) -> list[Detector]:
        """Return new parts to learn with."""
        return [clone(part) for part in self._unfitted_parts()]

    def _learn(self, arrays: Arrays) -> None:
        self.detectors_ = self._new_parts()
        for part in self.detectors_:
            if part.learns_from:
                part.fit(arrays)

    def _learn_held_out(self, arrays: Arrays) -> None:
        parts = self.detectors_ if self.learns_from else self._new_parts()
        # Copies: if a later step of the calibration fails, the parts stay as they were.
        self.detectors_ = [self._calibrated(copy.copy(part), arrays) for part in parts]

    def _calibrated(self, part: Detector, arrays: Arrays) -> Detector:
        n_samples = len(arrays) // 2 if part.learns_from_held_out else len(arrays)
        with warnings.catch_warnings():
            # What ties of a part do to the combined score shows in the ties of that.
            warnings.simplefilter("ignore", TiedScoresWarning)
            if isinstance(part, OutOfRange):
                part.adapt(arrays, (1 - self.tpr) / 2)
            # The threshold of a part decides nothing; few samples need not be an error.
            return part.calibrate(arrays, tpr=min(self.tpr, n_samples / (n_samples + 1)))

    def _check_learned(self) -> None:
        names = [part.name for part in self._unfitted_parts()]
        calibrations = [getattr(part, "calibration_", None) for part in self.detectors_]
        if [part.name for part in self.detectors_] != names or any(
            calibration is None or calibration.by is not None for calibration in calibrations
        ):
            raise ValueError("its parts are not those of its parameters, or not calibrated")

    def _score(self, arrays: Arrays) -> Array:
        part_scores = np.stack([part.score_samples(arrays) for part in self.detectors_], axis=1)
        scores: Array = self._terms(self._p_values(part_scores)).sum(1)
        return scores

    def _p_values(self, scores: Scores) -> Scores:
        """Return the p-values of the parts' scores, of shape (n_samples, n_parts)."""
        columns = zip(self.detectors_, scores.T, strict=True)
        return np.stack(
            [
                continuous_p_values(
                    reference_scores(part), column, reference_scores(part, "limits")
                )
                for part, column in columns
            ],
            axis=1,
        )

    def _terms(self, p_values: Scores) -> Scores:
        """Return each part's term; their sum is the score."""
        with np.errstate(divide="ignore"):  # a score of -inf has the p-value 0 and the term -inf
            return -self.normalised_weights() / p_values

    def normalised_weights(self) -> Scores:
        """Return the weights with a sum of 1."""
        usual = [_GUARD if isinstance(p, OutOfRange) else 1.0 for p in self._unfitted_parts()]
        weights = np.array(self.weights or usual, dtype=np.float64)
        return np.asarray(weights / weights.sum())

    def _explain(self, decided: Decided) -> PartsExplanation:
        data, arrays = decided.data, decided.data.arrays
        names = {
            "ids": data.ids,
            "index": data.index,
            "label_names": self.label_names_ or data.label_names,
            "columns": data.columns,
        }
        parts = [copy.copy(part).set_params(nonfinite="out") for part in self.detectors_]
        scores, explanations, nearest = [], [], []
        for part in parts:
            alone = part._decide(arrays, None)
            scores.append(alone.scores)
            named = alone._replace(data=replace(alone.data, **names))
            explanations.append(part._explain(named) if part.explains else None)
            search = getattr(part, "nearest", None)
            nearest.append(search and search(arrays, min(_N_NEAREST, len(part.bank_))))
        part_scores = np.stack(scores, axis=1)
        usable = usable_rows(arrays, self)
        if usable is not None:
            part_scores[~usable] = np.nan
        p_values = self._p_values(part_scores)
        lowest = [
            float(getattr(p, "outliers_", 0)) + 1 / (1 + len(reference_scores(p)))
            for p in self.detectors_
        ]
        against = -self._terms(p_values)  # (n_samples, n_parts)
        endless = np.isinf(against)
        against = np.where(endless.any(1, keepdims=True), endless, against)
        return PartsExplanation(
            parts=tuple(part.text(defaults=False) for part in self.detectors_),
            part_scores=part_scores,
            part_p_values=np.maximum(p_values, lowest),
            shares=against / against.sum(1, keepdims=True),
            explanations=tuple(explanations),
            nearest=tuple(nearest),
            **self._explained(decided),
        )


def reference_scores(part: Detector, what: str = "scores") -> Scores:
    """Return the scores that a part's p-values come from, ascending; or their tie "limits".

    Those of a guard are without the lowest: one odd row among the held-out ones would hide every
    fault that is less extreme. The threshold, which has all rows, keeps the promise nevertheless.
    """
    (threshold,) = part.calibration_.thresholds.values()
    values: Scores = getattr(threshold, what)
    values = values[np.isfinite(values)]
    return values[int(getattr(part, "outliers_", 0) * len(values)) :]


def _union(names: Any) -> tuple[str, ...]:
    return tuple(dict.fromkeys(name for some in names for name in some))


# --- p-values as a continuous function of the score, for scores that are made of p-values ---


def tail_scale(reference: Scores) -> float:
    """Return the scale of the lower tail: how far the lowest tenth lies below the next score."""
    lowest = max(1, len(reference) // 10)
    scale = reference[min(lowest, len(reference) - 1)] - reference[:lowest].mean()
    return float(scale or reference[-1] - reference[0] or 1.0)


def continuous_p_values(reference: Scores, scores: Scores, limits: Scores | None = None) -> Scores:
    """Return p-values of scores against n ascending reference scores, as a continuous function.

    At the i-th smallest reference score it is i / (n + 1), and it is linear between them. So
    P(p <= i / (n + 1)) = i / (n + 1) for i < n and a new score from the same distribution, as for
    the conformal p-value, which is larger by at most 1 / (n + 1). At and above the largest
    reference score it is n / (n + 1). Below the smallest one it falls as 1 / (n + 1) / (1 + gap /
    scale), so that scores keep their order however low they are; `tail_scale` is the scale.

    A score from the limit of a reference score on (`tie_limits`, by default the score itself)
    counts as at least that score. So rounding does not move a score across tied reference scores.
    """
    n = len(reference)
    scores = np.minimum(scores, reference[-1])
    tied = reference if limits is None else limits
    below = np.searchsorted(tied, scores, side="right")  # or equal
    lower, upper = reference[np.maximum(below - 1, 0)], reference[np.minimum(below, n - 1)]
    between = np.maximum(scores - lower, 0.0) / np.where(upper > lower, upper - lower, 1.0)
    gaps = np.maximum(reference[0] - scores, 0.0) / tail_scale(reference)
    return np.where(below == 0, 1 / (1 + gaps), below + between) / (n + 1)


GUARDED_INPUT = Combined((*DEFAULT_PARTS, f"{OutOfRange.name}(layer={INPUT})"))
"""The default of a model: a layer may hide what its input shows. A second guard reads that."""


class Default(NamedTuple):
    """A detector, not fitted yet, and the sentences that say why it was chosen."""

    detector: Detector
    reason: str
    obstacle: str = ""  # what keeps it from learning from training data; empty if it learns


def default_detector(
    train: Any = None,
    held_out: Any = None,
    *,
    has_learned: bool = False,
    no_features: str = "",
    tpr: float = 0.95,
    nonfinite: str = "raise",
) -> Default:
    """Return the best detector that the data allows, not fitted yet, and why.

    With training outputs that have features and labels, it is the combination of joint energy,
    `label_neighbours`, `linear_probe` and the guard `out_of_range`. Otherwise it is joint energy
    with the guard, on features if there are any, or else on logits; with a warning if there is
    training data that could not be used. If the outputs have the input of the model, a second
    guard reads that. With few held-out samples it is joint energy alone. The documentation says
    why: docs/explanation/the-default.md.

    Both are `Outputs`, or arrays of logits. `has_learned` says that a combination has learned
    already, from training outputs that are not passed again; `no_features` says why the training
    outputs have none.

    Examples
    --------
    >>> held_out = np.random.default_rng(0).normal(-2, 3, (500, 10))
    >>> default_detector(held_out=held_out).detector.calibrate(held_out).predict(10 * held_out[:2])
    array([-1, -1])
    """
    train, held_out = (
        outputs if isinstance(outputs, Outputs | None) else Outputs(outputs)
        for outputs in (train, held_out)
    )
    options: Any = {"tpr": tpr, "nonfinite": nonfinite}
    outputs = held_out or train
    layers = [n for n in ("features", INPUT) if outputs is not None and outputs.get(n) is not None]
    combined = GUARDED_INPUT if INPUT in layers else Combined()
    combined = clone(combined).set_params(**options)
    obstacle = _obstacle(combined, train, held_out, has_learned=has_learned)
    if not obstacle:
        return Default(
            combined,
            "Chosen: joint energy, the similarity to training samples with the same labels, a "
            f"linear probe of the features, and the ranges of the {' and the '.join(layers)}, "
            "combined.",
        )
    many = outputs is not None and outputs.n_labels > MOST_LABELS
    energy = TopKJointEnergy(MOST_LABELS, **options) if many else JointEnergy(**options)
    chosen: Detector = energy
    if no_features and train is not None and train.features is None:
        obstacle += f": {no_features}"
    reads = f"joint energy{f' of the {MOST_LABELS} largest labels' if many else ''}"
    if outputs is not None and (held_out is None or len(held_out) >= MIN_HELD_OUT):
        layers = layers or ["logits"]
        guards = [OutOfRange(layer, held_out=True) for layer in layers]
        chosen = Combined([energy, *guards], **options)
        reads += f", and the ranges of the {' and the '.join(layers)}"
    reason = f"Chosen: {reads}. A combination with training data separates better, but {obstacle}."
    if chosen is energy and held_out is not None and not has_learned and train is None:
        reason += f" From {MIN_HELD_OUT} held-out samples on, it also sees values out of range."
    if has_learned or train is not None:  # whoever passes training data expects that it is used
        warn(reason, DefaultDetectorWarning)
    return Default(chosen, reason, obstacle)


def _obstacle(
    combined: Combined, train: Outputs | None, held_out: Outputs | None, *, has_learned: bool
) -> str:
    """Return why the combination cannot or should not learn from this data; empty if it may."""
    if train is None and not has_learned:
        return "it needs training outputs with features and labels (--train; in Python, fit)"
    if train is not None:
        features = train.get("features")  # left out by `fit` if the model reads too many
        n_features = train.manifest.get("n_columns", 0) if features is None else features.shape[1]
        if n_features > MOST_FEATURES:
            return (
                f"there are {n_features:,} features, and {MOST_FEATURES:,} is its limit: keep "
                "fewer, such as by TfidfVectorizer(max_features=4000), or reduce them by PCA"
            )
    for what, outputs, names in (
        ("training outputs", train, combined.learns_from),
        ("held-out outputs", held_out, combined.scores_from),
    ):
        absent = [name for name in names if outputs is not None and outputs.get(name) is None]
        if absent:
            return f"the {what} have no {' and no '.join(absent)}"
    if held_out is not None and len(held_out) < MIN_WITH_TRAINING:
        return f"it needs {MIN_WITH_TRAINING} held-out samples, and there are {len(held_out):,}"
    if train is None:
        return ""
    if len(train) < MIN_TRAINING:
        return f"it needs {MIN_TRAINING} training samples, and there are {len(train):,}"
    gaps, needed = _label_gaps(train)
    own = np.diag(gaps)
    check = "Check the order of rows and labels"
    # Labels that come together fit each other's logits too, but not twice as well as their own.
    beyond = gaps - needed - 2 * np.maximum(np.maximum.outer(own, own), 0)
    label, other = map(int, np.unravel_index(np.argmax(beyond), beyond.shape))
    if beyond[label, other] > 0:
        labels: Sequence[Any] = train.label_names or range(train.n_labels)
        return (
            f"the training labels do not fit the logits: label {labels[label]!r} fits the logits "
            f"of {labels[other]!r} much better than its own. {check}"
        )
    if (n_odd := np.count_nonzero(own <= 0)) > train.n_labels / 3:
        return (
            f"the training labels do not fit the logits: {n_odd} of {train.n_labels} labels have "
            f"no higher logits where they are present. {check}"
        )
    return ""


def _label_gaps(train: Outputs) -> tuple[Array, Array]:
    """Return by how much the presence of a label (row) raises the logit of each label (column).

    In standard deviations; and how much may be chance. A label that is always or never present
    tells nothing: it counts as one that raises its own logit very much.
    """
    labels = np.asarray(train.labels, dtype=np.float64)
    logits = np.nan_to_num(np.asarray(train.logits, dtype=np.float64), posinf=0.0, neginf=0.0)
    logits -= logits.mean(0)
    logits /= np.maximum(logits.std(0), 1e-9)  # less is rounding
    present, absent = (counts[:, None] for counts in (labels.sum(0), (1 - labels).sum(0)))
    sums = labels.T @ logits  # and minus this where the label is absent
    gaps = sums / np.maximum(present, 1) + sums / np.maximum(absent, 1)
    gaps[np.diag((present * absent)[:, 0] == 0)] = 1e9
    return gaps, _CERTAIN / np.sqrt(np.maximum(present, 1))
