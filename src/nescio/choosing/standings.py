"""Detectors side by side over the folds: the criterion, the pick, and paired tests."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

import numpy as np
from scipy import stats

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
        return mean(self.criterion)

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
            "mean": {name: mean(own) for name, own in values.items()},
            "deviation": {name: deviation(own) for name, own in values.items()},
        }


def with_criterion(one: Standing, baseline: Standing) -> Standing:
    """Return the standing with its criterion, relative to the FPRs of the baseline."""
    parts = [np.array(one.near) / max(mean(baseline.near), SMALLEST_BASELINE)]
    if one.far:
        parts.append(np.array(one.mean_far) / max(mean(baseline.mean_far), SMALLEST_BASELINE))
    return replace(one, criterion=tuple(np.mean(parts, axis=0).tolist()))


def ordered(standings: Sequence[Standing]) -> tuple[Standing, ...]:
    """Return the standings, the best first, with p-values against it.

    Of equal ones, the first is the best.
    """
    best, *others = sorted(standings, key=lambda one: one.mean)
    tested = [replace(one, p_value=paired_p_value(one.criterion, best.criterion)) for one in others]
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


def mean(values: Sequence[float]) -> float:
    """Return the mean over folds."""
    return float(np.mean(values))


def deviation(values: Sequence[float]) -> float | None:
    """Return the standard deviation over folds; None for fewer than two."""
    return float(np.std(values, ddof=1)) if len(values) > 1 else None


def shown(values: Sequence[float], unit: float = 100, digits: int = 1) -> str:
    """Write the mean ± the standard deviation over folds, by default in per cent.

    Examples
    --------
    >>> shown([0.1, 0.2]), shown([0.5], unit=1, digits=2), shown([])
    ('15.0 ± 7.1', '0.50', '')
    """
    if not values:
        return ""
    spread = deviation(values)
    text = f"{unit * mean(values):.{digits}f}"
    return text if spread is None else f"{text} ± {unit * spread:.{digits}f}"
