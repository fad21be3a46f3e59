"""All measures of one detector at once, with bootstrap intervals; results worse than chance."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, fields
from typing import Any

import numpy as np

from nescio._charts.results import Result, View, strip
from nescio._io.results import by_name
from nescio._io.toml import from_table
from nescio._validation import checked_share, checked_whole
from nescio.metrics.intervals import intervals
from nescio.metrics.ranking import Ranking

_NEARLY_ALL = 0.8  # of the detectors: then the data is the likely cause, and not the detectors
_SIGN = "(a higher score must mean more in-distribution)"

WORSE = (
    "Worse than chance: OOD samples tend to have higher scores than ID samples. Usual causes: the "
    f"ID and the OOD data are swapped, the logits or the scores have the wrong sign {_SIGN}, or "
    "the detector fails on this data."
)
UNSURE = (
    "No better than chance: the AUROC is below 50, but by no more than chance explains in a "
    "sample of this size."
)


@dataclass(frozen=True)
class Estimate:
    """A measure and its bootstrap interval; `low` and `high` are None if there is no interval."""

    value: float
    low: float | None = None
    high: float | None = None

    def __float__(self) -> float:
        return self.value

    def __str__(self) -> str:
        if self.low is None or self.high is None:
            return f"{self.value * 100:.2f}"
        return f"{self.value * 100:.2f} [{self.low * 100:.2f}, {self.high * 100:.2f}]"


@dataclass(frozen=True, repr=False)
class Evaluation(Result):
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
        evaluation = from_table(cls, {field.name: content[field.name] for field in fields(cls)})
        checked_whole("n_id", evaluation.n_id, minimum=1)
        checked_whole("n_ood", evaluation.n_ood, minimum=1)
        return evaluation

    @property
    def estimates(self) -> dict[str, Estimate]:
        """The measures by their attribute."""
        values = {field.name: getattr(self, field.name) for field in fields(self)}
        return {name: value for name, value in values.items() if isinstance(value, Estimate)}

    def columns(self) -> dict[str, Any]:
        """Return one row per measure: measure (its attribute), value, low and high."""
        return by_name([{"measure": name, **asdict(one)} for name, one in self.estimates.items()])

    def _view(self) -> View:
        estimates = self.estimates.values()
        drawn = [
            strip(
                e.value, e.value if e.low is None else e.low, e.value if e.high is None else e.high
            )
            for e in estimates
        ]
        titles = [
            self.fpr_name,
            "AUROC",
            "AUPR",
            f"AUPR at {self.id_to_ood:g}:1",
            f"{self.fpr_name}, OOD positive",
            "AUPR, OOD positive",
        ]
        head = f"{self.n_id:,} ID against {self.n_ood:,} OOD, per cent"
        if self.auroc.low is not None:
            head += f" [{self.confidence * 100:g} % interval]"
        table: dict[str, Sequence[str]]
        table = {"measure": titles, "value": list(map(str, estimates)), "0 to 100 %": drawn}
        notes = [WORSE if self.worse_than_chance else UNSURE] if self.auroc.value < 0.5 else []
        return View(head, table=table, notes=notes)

    def __str__(self) -> str:
        return repr(self)


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
    id_scores, ood_scores : array of shape (n_samples,)
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
    measure                             value
    FPR95                28.00 [25.00, 47.25]
    AUROC                92.87 [91.16, 94.20]
    AUPR                 94.38 [93.07, 95.71]
    AUPR at 1:1          93.23 [91.67, 94.83]
    FPR95, OOD positive  30.40 [25.80, 47.29]
    AUPR, OOD positive   89.99 [86.29, 92.48]
    """
    confidence = checked_share("confidence", confidence)
    n_bootstrap = checked_whole("n_bootstrap", n_bootstrap, minimum=0)
    ranking = Ranking.from_scores(id_scores, ood_scores)
    values = ranking.measures(tpr, id_to_ood)
    ends: dict[str, tuple[float, float]] = {}
    if n_bootstrap and min(ranking.n_id, ranking.n_ood) > 1:
        rng = np.random.default_rng(seed)
        ends = intervals(ranking, values, tpr, id_to_ood, n_bootstrap, confidence, rng)
    return Evaluation(
        **{name: Estimate(value, *ends.get(name, ())) for name, value in values.items()},
        n_id=ranking.n_id,
        n_ood=ranking.n_ood,
        tpr=tpr,
        id_to_ood=id_to_ood,
        confidence=confidence,
    )


def points_at_data(n_worse: int, n_detectors: int) -> bool:
    """Whether so many detectors are worse than chance that the data is the likely cause."""
    return n_worse > 0 and n_worse >= _NEARLY_ALL * n_detectors


def chance_note(worse: Sequence[str], unsure: Sequence[str], n_detectors: int) -> str:
    """Return a sentence about the detectors that are worse than chance on one OOD set.

    `worse` are clearly worse than chance; `unsure` are the others with an AUROC below 50 %.
    """
    if n_detectors > 1 and points_at_data(len(worse), n_detectors):
        who = "all" if len(worse) == n_detectors else f"{len(worse)} of"
        return (
            f"Worse than chance (AUROC below 50): {who} {n_detectors} detectors. The likely cause: "
            f"the ID and the OOD data are swapped, or the logits have the wrong sign {_SIGN}."
        )
    notes = []
    if worse and n_detectors == 1:
        notes.append(WORSE)
    elif worse:
        fail, their = ("It fails", "its") if len(worse) == 1 else ("They fail", "their")
        notes.append(
            f"Worse than chance (AUROC below 50): {', '.join(worse)}. {fail} on this data, or "
            f"{their} scores have the wrong sign {_SIGN}."
        )
    if unsure:
        notes.append(
            f"No better than chance: {', '.join(unsure)} (AUROC below 50, but by no more than "
            "chance explains in a sample of this size)."
        )
    return " ".join(notes)
