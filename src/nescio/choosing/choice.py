"""The result of `choose`: detectors in order of their criterion, and the one to use."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
from scipy import stats
from sklearn.base import clone

from nescio._charts.cards import card, short_table
from nescio._charts.text import cut
from nescio._io.tabular import Tabular, by_name
from nescio.choosing.standings import Standing, deviation, mean, shown
from nescio.detectors import Detector
from nescio.metrics import Estimate

CONFIDENCE = 0.95
COLUMNS = ("detector", "criterion ↓", "near ↓", "far ↓", "p")


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
class Choice(Tabular):
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
        made: Detector = clone(self._detectors[name or self.pick])
        return made

    def standing(self, name: str | None = None) -> Standing:
        """Return the standing of the pick or, by name, of another detector of the ranking."""
        return next(one for one in self.ranking if one.name == (name or self.pick))

    @property
    def expected(self) -> Estimate:
        """The near FPR of the pick, with an interval for other labels that nobody has learned.

        It is a prediction interval of Student's t over folds: where the FPR on one more part of the
        labels would lie. It contains the exact binomial interval of all folds together, so that
        equal folds do not make it empty. There is none with a single fold.
        """
        values = self.standing().near
        value, spread, n = mean(values), deviation(values), len(values)
        if spread is None:
            return Estimate(value)
        half = float(stats.t.ppf((1 + CONFIDENCE) / 2, n - 1)) * spread * (1 + 1 / n) ** 0.5
        counts = [fold.n_near for fold in self.folds if fold.used]
        kept = round(sum(share * count for share, count in zip(values, counts, strict=True)))
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
                one.name,
                shown(one.criterion, 1, 2),
                shown(one.near),
                shown(one.mean_far),
                "" if one.p_value is None else f"{one.p_value:.2g}",
            )
            for one in self.ranking
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
            "ranking": [one.as_dict() for one in self.ranking],
            "baseline": self.baseline.as_dict(),
            "skipped": dict(self.skipped),
            "folds": [asdict(fold) for fold in self.folds],
        }

    def columns(self) -> dict[str, Any]:
        """Return one row per detector: detector, criterion, near, far and p_value (means)."""
        return by_name(
            [
                {
                    "detector": one.name,
                    "criterion": one.mean,
                    "near": mean(one.near),
                    "far": mean(one.mean_far) if one.mean_far else None,
                    "p_value": one.p_value,
                }
                for one in self.ranking
            ]
        )

    def __str__(self) -> str:
        return self.summary()

    def __repr__(self) -> str:
        return "\n".join(cut(line, 400) for line in (self._headline(), self._expectation()))

    def _repr_html_(self) -> str:
        texts = (self._expectation(), *self.notes())
        return card(self._headline(), short_table(COLUMNS, self.rows()), *texts)

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
        interval = (
            "no interval with a single fold"
            if expected.low is None or expected.high is None
            else f"{_percent(expected.low)} to {_percent(expected.high)} for other labels"
        )
        near = _percent(expected.value)
        far = self.standing().mean_far
        text = (
            f"Expected {self.fpr_name}: {near} % near ({interval}), by {used} "
            f"{'fold' if used == 1 else 'folds'} of left-out labels"
        )
        if far:
            text += f", and {_percent(mean(far))} % far ({', '.join(self.standing().far)})"
        return (
            f"{text}. This is an estimate for labels that were left out, not a promise for what "
            "you will meet."
        )

    def notes(self) -> list[str]:
        """Return what limits the estimate."""
        found = []
        if self.refit == "none":
            found.append(
                "No head was refitted: the columns of the left-out labels were dropped. This is "
                "the weaker estimate, because the model has learned these labels. The head can "
                "be refitted if there are features."
            )
        else:
            found.append(self._refitted())
        if not self.baseline.far:
            found.append("No far data: the criterion is the near part only.")
        unused = sum(not fold.used for fold in self.folds)
        if unused:
            found.append(
                f"{unused} of {len(self.folds)} folds were not used: too few samples carry only "
                "their left-out labels."
            )
        return found

    def _refitted(self) -> str:
        pairs = [(f.map_refitted, f.map_model) for f in self.folds if f.map_refitted is not None]
        refitted, model = np.mean(np.array(pairs, dtype=np.float64), axis=0).tolist()
        return (
            f"The refitted heads have an mAP of {_percent(refitted)} %, the model itself "
            f"{_percent(model)} %. If layers before the head were trained on these labels too, "
            "unknown inputs are harder than left-out labels."
        )


def _percent(share: float) -> str:
    return f"{100 * share:.1f}"
