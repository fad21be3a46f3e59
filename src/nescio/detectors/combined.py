"""Several detectors as one: their conformal p-values, combined by a rule."""

from __future__ import annotations

import copy
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from scipy.special import ndtri
from sklearn.base import clone

from nescio._validation import Array, checked_choice
from nescio.calibration import Scores
from nescio.calibration.thresholds import continuous_p_values
from nescio.detectors import inputs as reading
from nescio.detectors.base import Detector
from nescio.detectors.inputs import Arrays
from nescio.detectors.naming import as_detector, written
from nescio.errors import ParameterError, TiedScoresWarning
from nescio.explain import PartsExplanation

_SUMS: dict[str, Callable[[Scores], Scores]] = {
    "fisher": np.log,
    "stouffer": ndtri,
    "cauchy": lambda p: -np.cos(np.pi * p) / np.sin(np.pi * p),
    "harmonic": lambda p: -1 / p,
}
"""The rules that sum a function of the p-values. It grows with p, as a score has to."""

RULES = (*_SUMS, "bonferroni")

DEFAULT_PARTS = ("joint_energy", "label_neighbours", "linear_probe")
"""How they were chosen, with the rule: docs/explanation/the-default.md."""

_N_NEAREST = 3


@dataclass(eq=False, repr=False)
class Combined(Detector):
    """The conformal p-values of several detectors, combined by a rule.

    Scores of different detectors cannot be added, but their p-values have the same meaning: how
    often an in-distribution sample scores as low or lower. A part's p-values come from its scores
    of a random half of the held-out data. The rule makes one score of them, and only the other half
    of the held-out data calibrates it. So the verdict keeps the share `tpr` for every rule, however
    the parts depend on each other.

    | rule | score, with weights w that sum to 1 | as a p-value |
    |---|---|---|
    | fisher | sum of w log(p) | exact for independent parts and equal weights only |
    | stouffer | sum of w z(p), divided by the length of w | exact for independent parts only |
    | cauchy | minus the sum of w cot(pi p) | approximate, for small values, under any dependence |
    | harmonic | minus the sum of w / p | under any dependence if multiplied by e log(n_parts) |
    | bonferroni | smallest log(p / w) | valid under any dependence |

    z is the quantile of the normal distribution. The third column says when a p-value that is
    computed from the formula would be valid. It is not needed here: the p-value of the combined
    score comes from the half of the data that calibrates it. (The factor of the harmonic mean is
    that of Vovk & Wang, Biometrika 2020.)

    The parts' p-values are a continuous form of the conformal (1 + number of reference scores <=
    score) / (n + 1), see `continuous_p_values`. With the latter, all samples that score lower than
    every reference score would be tied.

    Parameters
    ----------
    detectors : list or tuple
        The parts: detectors, or their names, with parameters if needed ("top_k_joint_energy(k=5)").
    weights : list or tuple of float
        One positive number per part; equal weights if empty.
    rule : {"fisher", "stouffer", "cauchy", "harmonic", "bonferroni"}
        How the p-values are combined. Fisher's and Stouffer's rules add up what each part says;
        the others follow the part with the smallest p-value. The harmonic mean does so without
        silencing the others, and a part that sees nothing strange cannot outweigh one that does.
        Under Cauchy's and Stouffer's rules a
        part whose p-value is close to 1 can outweigh the alarm of another, because their terms
        have no upper bound.

    Attributes
    ----------
    detectors_ : list of Detector
        The parts, each one calibrated on the half of the held-out data that makes the p-values.

    Examples
    --------
    >>> held_out = np.random.default_rng(0).normal(0, 3, (500, 10))
    >>> detector = Combined(["joint_energy", "top_k_joint_energy(k=3)"], weights=[1, 2])
    >>> detector.calibrate(held_out).predict([[4.0, 4.0] + [-4.0] * 8, [-6.0] * 10])
    array([ 1, -1])
    """

    name = "combined"
    paper = "Fisher, 1932; Stouffer et al., 1949; Liu & Xie, JASA 2020; Wilson, PNAS 2019"
    learned = ("detectors_",)

    detectors_: list[Detector] = field(init=False)

    detectors: Sequence[Any] = DEFAULT_PARTS
    weights: Sequence[float] = ()
    rule: str = "harmonic"

    @property
    def learns_from(self) -> tuple[str, ...]:
        """What the parts learn from."""
        return _union(part.learns_from for part in self._given_parts())

    @property
    def learns_from_held_out(self) -> tuple[str, ...]:
        """What the parts score, and what they learn from held-out data."""
        parts = self._given_parts()
        return _union(
            name for part in parts for name in (part.scores_from, part.learns_from_held_out)
        )

    @property
    def scores_from(self) -> tuple[str, ...]:
        """What the parts score."""
        return _union(part.scores_from for part in self._given_parts())

    @property
    def accepts_masked(self) -> bool:  # type: ignore[override]  # it depends on the parts
        """Whether every part accepts masked labels."""
        return all(part.accepts_masked for part in self._given_parts())

    def _check_params(self) -> None:
        super()._check_params()
        checked_choice("rule", self.rule, RULES)
        for part in self._given_parts():
            part._check_params()
        weights = self.weights
        positive = isinstance(weights, list | tuple) and all(
            isinstance(w, int | float) and not isinstance(w, bool) and 0 < w < np.inf
            for w in weights
        )
        if not positive or len(weights) not in (0, len(self.detectors)):
            raise ParameterError(
                f"weights must be a list of {len(self.detectors)} positive numbers, one per part, "
                f"or empty for equal weights, got {weights!r}."
            )

    def _given_parts(self) -> list[Detector]:
        """Return the parts as they were given; text is read once, because scoring asks often."""
        given = self.detectors
        if not isinstance(given, list | tuple) or not given:
            raise ParameterError(
                "detectors must be a list of detectors or of their names, such as "
                f"['joint_energy', 'max_logit'], got {given!r}."
            )
        known = self.__dict__.setdefault("_read_parts", {})
        for text in given:
            if isinstance(text, str) and text not in known:
                known[text] = as_detector(text, may_import=False)
        return [known[part] if isinstance(part, str) else as_detector(part) for part in given]

    def _new_parts(self) -> list[Detector]:
        """Return new parts to learn with."""
        return [clone(part) for part in self._given_parts()]

    # --- learning ---

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
            # The threshold of a part decides nothing; few samples need not be an error.
            return part.calibrate(arrays, tpr=min(self.tpr, n_samples / (n_samples + 1)))

    def _check_learned(self) -> None:
        names = [part.name for part in self._given_parts()]
        calibrations = [getattr(part, "calibration_", None) for part in self.detectors_]
        if [part.name for part in self.detectors_] != names or any(
            calibration is None or calibration.by is not None for calibration in calibrations
        ):
            raise ValueError("its parts are not those of its parameters, or not calibrated")

    # --- scoring ---

    def _score(self, arrays: Arrays) -> Array:
        terms = self._terms(self._p_values(self._part_scores(arrays)))
        scores: Array = terms.min(1) if self.rule == "bonferroni" else terms.sum(1)
        return scores

    def _part_scores(self, arrays: Arrays) -> Scores:
        """Return the scores of the parts, of shape (n_samples, n_parts)."""
        return np.stack([part.score_samples(arrays) for part in self.detectors_], axis=1)

    def _p_values(self, scores: Scores) -> Scores:
        """Return the p-values of the parts' scores, of shape (n_samples, n_parts)."""
        columns = zip(self.detectors_, scores.T, strict=True)
        return np.stack(
            [
                continuous_p_values(reference_scores(part), column, reference_limits(part))
                for part, column in columns
            ],
            axis=1,
        )

    def _terms(self, p_values: Scores) -> Scores:
        """Return each part's term: the score is their sum or, for bonferroni, the smallest."""
        weights = self.normalised_weights()
        with np.errstate(divide="ignore"):  # a score of -inf has the p-value 0 and the term -inf
            if self.rule == "bonferroni":
                return np.log(p_values) - np.log(weights)
            return weights * _SUMS[self.rule](p_values)

    def normalised_weights(self) -> Scores:
        """Return the weights with a sum of 1, or of length 1 for Stouffer's rule."""
        weights = np.array(self.weights or [1.0] * len(self.detectors), dtype=np.float64)
        return weights / (np.linalg.norm(weights) if self.rule == "stouffer" else weights.sum())

    # --- explaining ---

    @property
    def explains(self) -> bool:
        """Always: by part."""
        return True

    def explain(
        self, X: Any, *, groups: Any = None, from_probs: bool | None = None
    ) -> PartsExplanation:
        """Return what each part says: its score, its p-value and its share of the evidence.

        Parts whose score is made of labels are explained label by label, and parts that know their
        nearest training samples (that have a method `nearest`) name them.
        """
        decided = self._decide(X, groups, from_probs=from_probs)
        arrays = decided.given.arrays
        scores = np.full((len(arrays), len(self.detectors_)), np.nan)
        usable = reading.usable_rows(arrays, self)
        if usable is None:
            scores = self._part_scores(arrays)
        elif usable.any():
            scores[usable] = self._part_scores(arrays[usable])
        p_values = self._p_values(scores)
        parts = [copy.copy(part).set_params(nonfinite="out") for part in self.detectors_]
        explanation = PartsExplanation(
            detector=self.name,
            parts=tuple(written(part, defaults=False) for part in self.detectors_),
            part_scores=scores,
            part_p_values=p_values,
            shares=self._shares(self._terms(p_values)),
            explanations=tuple(part.explain(arrays) if part.explains else None for part in parts),
            nearest=tuple(_nearest(part, arrays) for part in parts),
            scores=decided.scores,
            thresholds=np.broadcast_to(decided.threshold, decided.scores.shape),
            p_values=self.calibration_.p_values(decided.scores, decided.groups),
            groups=decided.groups,
        )
        names = self.label_names_ or decided.given.label_names
        return explanation.named(decided.given.ids, names, decided.given.index)

    def _shares(self, terms: Scores) -> Scores:
        """Return each part's share of the evidence: of the terms below 0, or of the smallest."""
        if self.rule == "bonferroni":
            against = (terms == terms.min(1, keepdims=True)).astype(np.float64)
        else:
            against = np.maximum(-terms, 0.0)
        endless = np.isinf(against)
        against = np.where(endless.any(1, keepdims=True), endless, against)  # (n_samples, n_parts)
        total = against.sum(1, keepdims=True)
        shares = np.full(against.shape, np.nan)
        np.divide(against, total, out=shares, where=total > 0)
        return shares


def _nearest(part: Detector, arrays: Arrays) -> Array | None:
    if not hasattr(part, "nearest"):
        return None
    rows: Array = part.nearest(arrays, min(_N_NEAREST, len(part.bank_)))
    return rows


def reference_scores(part: Detector) -> Scores:
    """Return the scores that a part's p-values come from, ascending."""
    (threshold,) = part.calibration_.thresholds.values()
    return threshold.scores[np.isfinite(threshold.scores)]


def reference_limits(part: Detector) -> Scores:
    """Return the limits of the reference scores: what counts as tied with each of them."""
    (threshold,) = part.calibration_.thresholds.values()
    return threshold.limits[np.isfinite(threshold.limits)]


def _union(names: Any) -> tuple[str, ...]:
    return tuple(dict.fromkeys(name for some in names for name in some))
