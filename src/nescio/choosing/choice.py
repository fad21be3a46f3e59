"""The result of `choose`: detectors side by side over the folds, and the one to use."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from statistics import fmean
from typing import Any

import numpy as np
from scipy import stats
from sklearn.base import clone

from nescio._charts.results import Result, View, by_name
from nescio.detectors import Detector
from nescio.metrics import Estimate
from nescio.metrics.comparison import Spread

CONFIDENCE = 0.95
COLUMNS = ("detector", "criterion ↓", "near ↓", "far ↓", "p")

SMALLEST_BASELINE = 0.05
"""An FPR is divided by that of joint energy, or by this if that is lower.

Otherwise one sample more or less would decide where joint energy lets almost nothing through.
"""

Values = tuple[float, ...]


@dataclass(frozen=True)
class Standing:
    """A detector and its FPRs, fold by fold.

    Attributes
    ----------
    name : str
        The detector with its parameters, as on the command line.
    near : tuple of float
        The FPR on samples that carry only left-out labels, by fold.
    far : mapping of str to tuple of float
        The FPR on each far set, by fold. Empty if there is none.
    criterion : tuple of float
        Mean of the near FPR and of the mean far FPR, each divided by joint energy's, by fold.
        Without far sets, only the near part.
    p_value : float or None
        Of a paired t-test over folds against the pick. None for the pick, or with a single fold.
    """

    name: str
    near: Values
    far: Mapping[str, Values]
    criterion: Values = ()
    p_value: float | None = None

    @property
    def mean(self) -> float:
        """The mean of the criterion. Joint energy has 1; lower is better."""
        return fmean(self.criterion)

    @property
    def mean_far(self) -> Values:
        """The mean FPR over the far sets, by fold."""
        return tuple(np.mean(list(self.far.values()), axis=0).tolist()) if self.far else ()

    def as_dict(self) -> dict[str, Any]:
        """Return the standing as plain data, with means and standard deviations over folds."""
        values = {"criterion": self.criterion, "near": self.near}
        if self.far:
            values["far"] = self.mean_far
        return asdict(self) | {
            "mean": {name: fmean(own) for name, own in values.items()},
            "deviation": {name: Spread.of(own).deviation for name, own in values.items()},
        }


def with_criterion(standing: Standing, baseline: Standing) -> Standing:
    """Return the standing with its criterion, relative to the FPRs of the baseline."""
    parts = [np.array(standing.near) / max(fmean(baseline.near), SMALLEST_BASELINE)]
    if standing.far:
        parts.append(np.array(standing.mean_far) / max(fmean(baseline.mean_far), SMALLEST_BASELINE))
    return replace(standing, criterion=tuple(np.mean(parts, axis=0).tolist()))


def ordered(standings: Sequence[Standing]) -> tuple[Standing, ...]:
    """Return the standings, the best first, with p-values against it.

    Of equal ones, the first is the best.
    """
    best, *rest = sorted(standings, key=lambda standing: standing.mean)
    tested = [
        replace(standing, p_value=paired_p_value(standing.criterion, best.criterion))
        for standing in rest
    ]
    return (best, *tested)


def paired_p_value(a: Sequence[float], b: Sequence[float]) -> float | None:
    """Return the p-value of a paired t-test over folds; None with a single fold.

    Folds share samples, so it is an approximation.

    Examples
    --------
    >>> paired_p_value([0.9, 1.1, 1.0], [0.5, 0.8, 0.6])
    0.00816
    >>> paired_p_value([1.0, 1.0], [1.0, 1.0])
    1.0
    """
    differences = np.subtract(a, b)
    if len(differences) < 2:
        return None
    if np.ptp(differences) <= 1e-12:  # the t-test would divide by 0
        return 1.0 if abs(differences[0]) <= 1e-12 else 0.0
    return float(stats.ttest_1samp(differences, 0.0).pvalue)


@dataclass(frozen=True)
class FoldFacts:
    """What a fold was made of.

    Attributes
    ----------
    left_out : tuple of str
        The names of the left-out labels, or their positions.
    n_id, n_near : int
        The number of in-distribution samples, and of samples that carry only left-out labels.
    used : bool
        Whether these were enough. If not, the fold counts for nothing.
    map_refitted, map_model : float or None
        mAP of the refitted head and of the model itself, on the in-distribution samples and for the
        labels that were not left out. None if no head was refitted.
    """

    left_out: tuple[str, ...]
    n_id: int
    n_near: int
    used: bool
    map_refitted: float | None = None
    map_model: float | None = None


@dataclass(frozen=True, repr=False)
class Choice(Result):
    """The result of `choose`.

    Attributes
    ----------
    pick : str
        The detector to use, with its parameters. `detector` makes it.
    ranking : tuple of Standing
        All detectors that could run, the lowest criterion first.
    baseline : Standing
        Joint energy, which the criterion compares with.
    skipped : mapping of str to str
        Why a detector could not run.
    folds : tuple of FoldFacts
        What the folds were made of.
    refit : {"head", "none"}
        Whether the head was trained anew without the left-out labels.
    tpr : float
        The share of in-distribution samples that is kept. FPRs are at this TPR.
    seed : int
        The seed of the folds.
    """

    index_column = "detector"

    pick: str
    ranking: tuple[Standing, ...]
    baseline: Standing
    skipped: Mapping[str, str]
    folds: tuple[FoldFacts, ...]
    refit: str
    tpr: float
    seed: int
    _detectors: Mapping[str, Detector]

    def detector(self, name: str | None = None) -> Detector:
        """Return a new detector: the pick or, by name, another of the ranking."""
        detector: Detector = clone(self._detectors[name or self.pick])
        return detector

    def standing(self, name: str | None = None) -> Standing:
        """Return the standing of the pick or, by name, of another detector of the ranking."""
        return next(s for s in self.ranking if s.name == (name or self.pick))

    @property
    def expected(self) -> Estimate:
        """The near FPR of the pick, with an interval for other labels that nobody has learned.

        It is a prediction interval of Student's t over folds: where the FPR on one more part of the
        labels would lie. It contains the exact binomial interval of all folds together, so that
        equal folds do not make it empty. There is none with a single fold.
        """
        near = Spread.of(self.standing().near)
        value, n = near.mean, near.n
        if near.deviation is None:
            return Estimate(value)
        half = float(stats.t.ppf((1 + CONFIDENCE) / 2, n - 1)) * near.deviation * (1 + 1 / n) ** 0.5
        counts = [fold.n_near for fold in self.folds if fold.used]
        kept = round(
            sum(share * count for share, count in zip(self.standing().near, counts, strict=True))
        )
        pooled = stats.binomtest(kept, sum(counts)).proportion_ci(CONFIDENCE)
        low, high = min(value - half, pooled.low), max(value + half, pooled.high)
        return Estimate(value, float(max(0.0, low)), float(min(1.0, high)))

    @property
    def fpr_name(self) -> str:
        """The usual name of the FPR at this TPR, such as FPR95."""
        return f"FPR{self.tpr * 100:g}"

    def rows(self) -> list[tuple[str, ...]]:
        """Return the ranking as text, under `COLUMNS`: means ± standard deviations over folds."""
        return [
            (
                standing.name,
                Spread.of(standing.criterion).text(1, 2),
                Spread.of(standing.near).text(digits=1),
                Spread.of(standing.mean_far).text(digits=1) if standing.far else "",
                "" if standing.p_value is None else f"{standing.p_value:.2g}",
            )
            for standing in self.ranking
        ]

    def as_dict(self) -> dict[str, Any]:
        """Return the choice as plain data, for JSON."""
        return {
            "pick": self.pick,
            "summary": self.summary(),
            "expected_near_fpr": asdict(self.expected),
            "tpr": self.tpr,
            "refit": self.refit,
            "seed": self.seed,
            "ranking": [standing.as_dict() for standing in self.ranking],
            "baseline": self.baseline.as_dict(),
            "skipped": dict(self.skipped),
            "folds": [asdict(fold) for fold in self.folds],
        }

    def columns(self) -> dict[str, Any]:
        """Return one row per detector: detector, criterion, near, far and p_value (means)."""
        return by_name(
            [
                {
                    "detector": standing.name,
                    "criterion": standing.mean,
                    "near": fmean(standing.near),
                    "far": fmean(standing.mean_far) if standing.far else None,
                    "p_value": standing.p_value,
                }
                for standing in self.ranking
            ]
        )

    def __str__(self) -> str:
        return self.summary()

    def _view(self) -> View:
        table = dict(zip(COLUMNS, zip(*self.rows(), strict=True), strict=True))
        return View(self._headline(), self._expectation(), table, notes=self.notes())

    def summary(self) -> str:
        """Return a few lines: the pick, what to expect of it, and how far to trust this."""
        return "\n".join([self._headline(), self._expectation(), *self.notes()])

    def _headline(self) -> str:
        return (
            f"Pick: {self.pick}, with a criterion of {self.standing().mean:.2f} "
            f"(joint energy: {self.baseline.mean:.2f}; lower is better)."
        )

    def _expectation(self) -> str:
        expected, used = self.expected, sum(fold.used for fold in self.folds)
        interval = "no interval with a single fold"
        if expected.low is not None and expected.high is not None:
            low, high = _percent(expected.low), _percent(expected.high)
            interval = f"{low} to {high} for other labels"
        standing, far = self.standing(), ""
        if standing.far:
            far = f", and {_percent(fmean(standing.mean_far))} % far ({', '.join(standing.far)})"
        return (
            f"Expected {self.fpr_name}: {_percent(expected.value)} % near ({interval}), by {used} "
            f"{'fold' if used == 1 else 'folds'} of left-out labels{far}. This is an estimate for "
            "labels that were left out, not a promise for what you will meet."
        )

    def notes(self) -> list[str]:
        """Return what limits the estimate."""
        pairs = [(f.map_refitted, f.map_model) for f in self.folds if f.map_refitted is not None]
        if pairs:
            refitted, model = np.mean(np.array(pairs, dtype=np.float64), axis=0).tolist()
            notes = [
                f"The refitted heads have an mAP of {_percent(refitted)} %, the model itself "
                f"{_percent(model)} %. If layers before the head were trained on these labels too, "
                "unknown inputs are harder than left-out labels."
            ]
        else:
            notes = [
                "No head was refitted: the columns of the left-out labels were dropped. This is "
                "the weaker estimate, because the model has learned these labels. The head can "
                "be refitted if there are features."
            ]
        if not self.baseline.far:
            notes.append("No far data: the criterion is the near part only.")
        unused = sum(not fold.used for fold in self.folds)
        if unused:
            notes.append(
                f"{unused} of {len(self.folds)} folds were not used: too few samples carry only "
                "their left-out labels."
            )
        return notes


def _percent(share: float) -> str:
    return f"{100 * share:.1f}"
