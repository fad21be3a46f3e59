"""All measures of one detector at once, with bootstrap intervals."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields, replace
from typing import Any, NamedTuple

import numpy as np

from nescio._charts.cards import card, short_table, strip
from nescio._io.tabular import Tabular, by_name
from nescio._io.toml import from_table
from nescio._validation import checked_share, checked_whole
from nescio.errors import ParameterError
from nescio.metrics.bounds import common_cells, measure_bounds, tied_cells
from nescio.metrics.cells import Cells, ScoreCells
from nescio.metrics.chance import UNSURE, WORSE
from nescio.metrics.intervals import intervals
from nescio.metrics.ranking import Ranking, Values


@dataclass(frozen=True)
class Estimate:
    """A measure and its bootstrap interval; `low` and `high` are None if there is no interval.

    The value differs by at most `error` from that of the scores. It is 0 unless they were too many
    to keep (`ScoreCells`). The interval contains this error too.
    """

    value: float
    low: float | None = None
    high: float | None = None
    error: float = 0.0

    def __float__(self) -> float:
        return self.value

    def __str__(self) -> str:
        if self.low is None or self.high is None:
            return f"{self.value * 100:.2f}"
        return f"{self.value * 100:.2f} [{self.low * 100:.2f}, {self.high * 100:.2f}]"


@dataclass(frozen=True, repr=False)
class Evaluation(Tabular):
    """The result of `evaluate`. Values are shares from 0 to 1; printed text is in per cent.

    Attributes
    ----------
    fpr, auroc, aupr : Estimate
        The measures of the paper, with ID as the positive side.
    aupr_at_ratio : Estimate
        `aupr` at a ratio of `id_to_ood` ID samples per OOD sample.
    fpr_ood_positive, aupr_ood_positive : Estimate
        The measures of the other convention, with OOD as the positive side.
    n_id, n_ood : int
        The number of ID and OOD samples.
    tpr, id_to_ood, confidence : float
        The parameters that `evaluate` was called with.
    """

    index_column = "measure"

    fpr: Estimate
    auroc: Estimate
    aupr: Estimate
    aupr_at_ratio: Estimate
    fpr_ood_positive: Estimate
    aupr_ood_positive: Estimate
    n_id: int
    n_ood: int
    tpr: float
    id_to_ood: float
    confidence: float

    @property
    def fpr_name(self) -> str:
        """The usual name of the FPR at this TPR, such as FPR95."""
        return f"FPR{self.tpr * 100:g}"

    @property
    def worse_than_chance(self) -> bool:
        """Whether the AUROC is clearly below 50 %, and not just by chance.

        It is if the interval of the AUROC is below 50 %, and if equal distributions of ID and OOD
        scores would give such an AUROC in fewer than 2.5 % of cases (Mann-Whitney test).
        """
        highest = self.auroc.value if self.auroc.high is None else self.auroc.high
        error = math.sqrt((self.n_id + self.n_ood + 1) / (12 * self.n_id * self.n_ood))
        return highest < 0.5 and self.auroc.value < 0.5 - 1.96 * error

    def as_dict(self) -> dict[str, Any]:
        """Return the evaluation as plain numbers, for JSON."""
        return asdict(self)

    @classmethod
    def from_dict(cls, content: Mapping[str, Any]) -> Evaluation:
        """Return the evaluation that `as_dict` wrote; unknown keys are ignored."""
        found = from_table(cls, {one.name: content[one.name] for one in fields(cls)})
        if min(found.n_id, found.n_ood) < 1:
            raise ParameterError(
                f"n_id and n_ood must be at least 1, got {found.n_id} and {found.n_ood}."
            )
        return found

    @property
    def estimates(self) -> dict[str, Estimate]:
        """The measures by their attribute."""
        found = ((one.name, getattr(self, one.name)) for one in fields(self))
        return {name: value for name, value in found if isinstance(value, Estimate)}

    def columns(self) -> dict[str, Any]:
        """Return one row per measure: measure (its attribute), value, low, high and error."""
        return by_name([{"measure": name, **asdict(one)} for name, one in self.estimates.items()])

    def _titles(self) -> list[str]:
        """Return the usual names of the measures, in their order."""
        return [
            self.fpr_name,
            "AUROC",
            "AUPR",
            f"AUPR at {self.id_to_ood:g}:1",
            f"{self.fpr_name}, OOD positive",
            "AUPR, OOD positive",
        ]

    def _headline(self) -> str:
        head = f"{self.n_id:,} ID against {self.n_ood:,} OOD, per cent"
        if self.auroc.low is not None:
            head += f" [{self.confidence * 100:g} % interval]"
        return head

    def _repr_html_(self) -> str:
        rows = []
        for title, one in zip(self._titles(), self.estimates.values(), strict=True):
            low = one.value if one.low is None else one.low
            high = one.value if one.high is None else one.high
            rows.append((title, str(one), strip(one.value, low, high)))
        drawn = short_table(("measure", "%", "0 to 100 %"), rows)
        return card(self._headline(), drawn, *self._notes())

    def __repr__(self) -> str:
        return str(self)

    def __str__(self) -> str:
        rows = zip(self._titles(), self.estimates.values(), strict=True)
        lines = (f"  {title:<20}{estimate}" for title, estimate in rows)
        return "\n".join([self._headline(), *lines, *self._notes()])

    def _notes(self) -> list[str]:
        notes = []
        error = max(one.error for one in self.estimates.values())
        if error:
            notes.append(f"Counted in cells: the values are exact to {error * 100:.1g}.")
        if self.auroc.value < 0.5:
            notes.append(WORSE if self.worse_than_chance else UNSURE)
        return notes


def evaluate(
    id_scores: Any,
    ood_scores: Any,
    *,
    tpr: float = 0.95,
    id_to_ood: float = 1.0,
    n_bootstrap: int = 1000,
    confidence: float = 0.95,
    seed: int | np.random.Generator = 0,
) -> Evaluation:
    """Compute the FPR at a TPR, AUROC and AUPR of one detector, with bootstrap intervals.

    Parameters
    ----------
    id_scores, ood_scores : array of shape (n_samples,), or ScoreCells
        Scores of ID and OOD samples. Higher means more in-distribution.
    tpr : float
        The share of ID samples to keep. The FPR is computed at this TPR.
    id_to_ood : float
        The ratio of ID to OOD samples for `aupr_at_ratio`.
    n_bootstrap : int
        The number of bootstrap resamples; 0 for no intervals. ID and OOD samples are resampled
        separately, with more than a million in total by bin. No interval is computed if either
        set has a single sample.
    confidence : float
        The confidence of the intervals. An interval always contains its estimate.
    seed : int or Generator
        The seed of the resampling.

    Examples
    --------
    >>> rng = np.random.default_rng(0)
    >>> print(evaluate(rng.normal(2, 1, 500), rng.normal(0, 1, 400), n_bootstrap=200))
    500 ID against 400 OOD, per cent [95 % interval]
      FPR95               28.00 [25.00, 47.25]
      AUROC               92.87 [91.16, 94.20]
      AUPR                94.38 [93.07, 95.71]
      AUPR at 1:1         93.23 [91.67, 94.83]
      FPR95, OOD positive 30.40 [25.80, 47.29]
      AUPR, OOD positive  89.99 [86.29, 92.48]
    """
    confidence = checked_share("confidence", confidence)
    n_bootstrap = checked_whole("n_bootstrap", n_bootstrap, minimum=0)
    found = _measured(id_scores, ood_scores, tpr, id_to_ood)
    estimates = {
        name: Estimate(value, error=found.errors.get(name, 0.0))
        for name, value in found.values.items()
    }
    if n_bootstrap and min(found.n_id, found.n_ood) > 1:
        rng = np.random.default_rng(seed)
        options = (tpr, id_to_ood, n_bootstrap, confidence, rng)
        ends = intervals(found.ranking, found.values, *options, found.weights)
        for name, one in estimates.items():
            low, high = max(ends[name][0] - one.error, 0.0), min(ends[name][1] + one.error, 1.0)
            estimates[name] = replace(one, low=low, high=high)
    return Evaluation(
        **estimates,
        n_id=found.n_id,
        n_ood=found.n_ood,
        tpr=tpr,
        id_to_ood=id_to_ood,
        confidence=confidence,
    )


class _Measured(NamedTuple):
    """The measures, their errors, and what resamples are drawn from."""

    n_id: int
    n_ood: int
    ranking: Ranking
    weights: dict[str, Values]
    values: dict[str, float]
    errors: dict[str, float]


def _measured(id_scores: Any, ood_scores: Any, tpr: float, id_to_ood: float) -> _Measured:
    """Return the measures; of scores that were counted in cells, the middle of their bounds."""
    pair = [one if isinstance(one, ScoreCells) else None for one in (id_scores, ood_scores)]
    if all(one is None or one.exact for one in pair):
        scores = [
            given if one is None else one.scores
            for one, given in zip(pair, (id_scores, ood_scores), strict=True)
        ]
        ranking = Ranking.from_scores(*scores)
        values = ranking.measures(tpr, id_to_ood)
        return _Measured(ranking.n_id, ranking.n_ood, ranking, {}, values, {})
    id_, ood = common_cells(*(_cells(given) for given in (id_scores, ood_scores)))
    low, high = measure_bounds(id_, ood, tpr, id_to_ood)
    ranking, weights = tied_cells(id_, ood)
    return _Measured(
        int(id_.counts.sum()),
        int(ood.counts.sum()),
        ranking,
        weights,
        {name: (low[name] + high[name]) / 2 for name in low},
        {name: (high[name] - low[name]) / 2 for name in low},
    )


def _cells(scores: Any) -> Cells:
    if isinstance(scores, ScoreCells):
        return scores.cells
    counted = ScoreCells()
    counted.add(scores)
    return counted.cells
