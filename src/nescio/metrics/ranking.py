"""All measures of separation, computed from ID and OOD scores that are sorted only once."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from nescio.calibration import checked_scores
from nescio.errors import ParameterError

Values = NDArray[np.float64]
Indices = NDArray[np.intp]
Flags = NDArray[np.bool_]


@dataclass(frozen=True)
class Ranking:
    """The positions of sorted ID scores among sorted OOD scores, and of tied scores.

    With these index arrays, each measure is a few sums over sample weights. A bootstrap resample
    is given by weights: how often each sample was drawn.

    Average precision counts all samples of a tie as kept. The copies of a sample that was drawn
    several times are no tie of the data: if they were counted as one, the average precision of
    nearly all resamples could be above that of the data. So the copies of a sample whose score
    occurs once are counted as if they followed one another.
    """

    ood_below: Indices  # for each ID score: the number of smaller OOD scores
    ood_up_to: Indices  # for each ID score: the number of smaller or equal OOD scores
    id_first: Indices  # for each ID score: the first index of its tie
    ood_last: Indices  # for each OOD score: the last index of its tie
    id_untied: Flags  # for each ID score: whether it occurs only once among the ID scores
    ood_untied: Flags  # for each OOD score: whether it occurs only once among the OOD scores

    @classmethod
    def from_scores(cls, id_scores: Any, ood_scores: Any) -> Ranking:
        """Check and sort the scores, and find the position of each ID score among the OOD ones."""
        id_ = np.sort(checked_scores(id_scores, "id_scores"))
        ood = np.sort(checked_scores(ood_scores, "ood_scores"))
        return cls(
            ood_below=np.searchsorted(ood, id_, side="left"),
            ood_up_to=np.searchsorted(ood, id_, side="right"),
            id_first=np.searchsorted(id_, id_, side="left"),
            ood_last=np.searchsorted(ood, ood, side="right") - 1,
            id_untied=_untied(id_),
            ood_untied=_untied(ood),
        )

    @property
    def n_id(self) -> int:
        """The number of ID scores."""
        return len(self.id_first)

    @property
    def n_ood(self) -> int:
        """The number of OOD scores."""
        return len(self.ood_last)

    def measures(
        self,
        tpr: float = 0.95,
        id_to_ood: float = 1.0,
        *,
        id_weights: Values | None = None,
        ood_weights: Values | None = None,
    ) -> dict[str, float]:
        """Return all measures, by their names in `Evaluation`."""
        if not 0 < tpr <= 1:
            raise ParameterError(f"tpr must be above 0 and at most 1, got {tpr!r}.")
        if not 0 < id_to_ood < math.inf:
            raise ParameterError(f"id_to_ood must be a positive number, got {id_to_ood!r}.")
        n, m = self.n_id, self.n_ood
        w_id = np.ones(n) if id_weights is None else id_weights
        w_ood = np.ones(m) if ood_weights is None else ood_weights
        # cumulative[i] is the total weight of the i smallest scores.
        cumulative_id, cumulative_ood = _cumulative(w_id), _cumulative(w_ood)

        below = cumulative_ood[self.ood_below]
        area = _dot(w_id, below + cumulative_ood[self.ood_up_to]) / (2.0 * n * m)

        # How much is kept if the threshold is this ID score.
        kept_id = n - cumulative_id[self.id_first]
        kept_ood = m - below
        # The ID samples at or below the j-th OOD score are those with at most j smaller OOD scores.
        at_each = np.bincount(self.ood_below, weights=w_id, minlength=m + 1).astype(np.float64)
        flagged_id = np.cumsum(at_each)[:m]
        flagged_ood = cumulative_ood[self.ood_last + 1]

        allowed = math.floor(n * (1 - tpr) + 1e-9)
        at_id = np.searchsorted(cumulative_id[1:], allowed, side="right")
        allowed_ood = math.floor(m * (1 - tpr) + 1e-9)
        at_ood = np.searchsorted(cumulative_ood[1:], m - allowed_ood, side="left")
        if id_weights is not None:
            kept_id -= _copies_behind(self.id_untied, w_id)
        if ood_weights is not None:
            flagged_ood -= _copies_behind(self.ood_untied, w_ood)
        return {
            "fpr": float(kept_ood[at_id] / m),
            "auroc": area,
            "aupr": _mean_precision(w_id, kept_id, kept_ood),
            "aupr_at_ratio": _mean_precision(w_id, kept_id, kept_ood * (n / (m * id_to_ood))),
            "fpr_ood_positive": float(flagged_id[at_ood] / n),
            "aupr_ood_positive": _mean_precision(w_ood, flagged_ood, flagged_id),
        }


def _cumulative(weights: Values) -> Values:
    return np.concatenate([[0.0], np.cumsum(weights)])


def _untied(ordered: Values) -> Flags:
    """Return which of the sorted scores occur only once."""
    apart = np.ones(len(ordered) + 1, dtype=bool)
    apart[1:-1] = ordered[1:] != ordered[:-1]
    untied: Flags = apart[1:] & apart[:-1]
    return untied


def _copies_behind(untied: Flags, weights: Values) -> Values:
    """Return how many copies of the same sample follow a copy, on average: (weight - 1) / 2.

    The value for a weight of 0 (-1/2) has no effect, as the sample does not count.
    """
    behind: Values = (weights - 1.0) * (untied * 0.5)
    return behind


def _dot(a: Values, b: Values) -> float:
    # Not np.dot: BLAS starts its own threads, which compete with the threads of the bootstrap.
    return float(np.einsum("i,i->", a, b))


def _mean_precision(weights: Values, true: Values, false: Values) -> float:
    """Return the average precision: the mean over positives of the precision at their score.

    Positives that a resample did not draw have weight 0. For some of these no sample is kept at
    all, so their precision is set to 0 to avoid a division by zero.
    """
    total = true + false
    precision = np.divide(true, total, out=np.zeros_like(true), where=total > 0)
    return _dot(weights, precision) / float(weights.sum())
