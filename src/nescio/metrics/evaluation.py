"""All measures of one detector at once, with bootstrap intervals; results worse than chance.

The intervals are bias-corrected and accelerated (BCa; Efron, 1987). The method was chosen by the
coverage that `benchmarks/detection/intervals.py` measures.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass, fields
from statistics import NormalDist
from typing import Any

import numpy as np

from nescio._charts.results import Result, View, strip
from nescio._io.results import by_name
from nescio._threads import available_cpus
from nescio._validation import checked_share, checked_whole
from nescio.metrics.measures import Indices, Ranking, Values

_NORMAL = NormalDist()
_DRAWN_ONE_BY_ONE = 1_000_000  # samples; a thousand resamples of more take minutes
_N_BINS = 16_384
_NEARLY_ALL = 0.8  # of the detectors: then the data is the likely cause, and not the detectors
_SIGN = "(a higher score must mean more in-distribution)"

WORSE = (
    "Worse than chance: OOD samples tend to have higher scores than ID samples. Usual causes: the "
    f"ID and the OOD data are swapped, the logits or the scores have the wrong sign {_SIGN}, or "
    "the detector fails on this data."
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


@dataclass(frozen=True)
class Spread:
    """A measure over seeds or folds; the values are between 0 and 1, its text is in per cent.

    Attributes
    ----------
    mean : float
    deviation : float or None
        The sample standard deviation; None for one value.
    n : int
        The number of values.
    """

    mean: float
    deviation: float | None
    n: int

    @classmethod
    def of(cls, values: Sequence[float]) -> Spread:
        """Return the mean and the sample standard deviation of some values."""
        deviation = float(np.std(values, ddof=1)) if len(values) > 1 else None
        return cls(float(np.mean(values)), deviation, len(values))

    @property
    def printed(self) -> float:
        """The mean in per cent, rounded as printed; equal ones are ranked as equal."""
        return round(100 * self.mean, 2)

    def text(self, unit: float = 100, digits: int = 2) -> str:
        """Write the mean ± the standard deviation, by default in per cent."""
        mean = f"{unit * self.mean:.{digits}f}"
        return mean if self.deviation is None else f"{mean} ± {unit * self.deviation:.{digits}f}"

    def __str__(self) -> str:
        return self.text()


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

    @property
    def estimates(self) -> dict[str, Estimate]:
        """The measures by their attribute."""
        values = {field.name: getattr(self, field.name) for field in fields(self)}
        return {name: value for name, value in values.items() if isinstance(value, Estimate)}

    def columns(self) -> dict[str, Any]:
        """Return one row per measure: measure (its attribute), value, low and high."""
        return by_name(
            [{"measure": name, **asdict(estimate)} for name, estimate in self.estimates.items()]
        )

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
        note, _ = chance_note({"": [self]})
        return View(head, table=table, notes=[note] if note else [])

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


def chance_note(evaluations: Mapping[str, Sequence[Evaluation]]) -> tuple[str, bool]:
    """Return a note on detectors worse than chance, and whether the data is the likely cause.

    A detector has one evaluation or, over seeds, several. It is worse than chance if all of them
    are.
    """
    n = len(evaluations)
    worse = [name for name, own in evaluations.items() if all(e.worse_than_chance for e in own)]
    if not worse:
        return "", False
    if n == 1:
        return WORSE, True
    if len(worse) < _NEARLY_ALL * n:
        return (
            f"Worse than chance (AUROC below 50): {', '.join(worse)}. These fail on this data, or "
            f"their scores have the wrong sign {_SIGN}.",
            False,
        )
    who = "all" if len(worse) == n else f"{len(worse)} of"
    return (
        f"Worse than chance (AUROC below 50): {who} {n} detectors. The likely cause: the ID and "
        f"the OOD data are swapped, or the logits have the wrong sign {_SIGN}.",
        True,
    )


# --- intervals ------------------------------------------------------------------------------------


def intervals(
    ranking: Ranking,
    values: Mapping[str, float],
    tpr: float,
    id_to_ood: float,
    n_bootstrap: int,
    confidence: float,
    rng: np.random.Generator,
) -> dict[str, tuple[float, float]]:
    """Return the interval of each measure; of more than a million samples, by bin."""
    options = (tpr, id_to_ood, n_bootstrap, rng)
    if ranking.n_id + ranking.n_ood <= _DRAWN_ONE_BY_ONE:
        samples = resample(ranking, *options)
    else:
        samples = resample_bins(ranking, values, *options)
    ends = {name: interval(samples[name], value, confidence) for name, value in values.items()}
    return {name: (max(low, 0.0), min(high, 1.0)) for name, (low, high) in ends.items()}


def resample(
    ranking: Ranking,
    tpr: float,
    id_to_ood: float,
    n_bootstrap: int,
    rng: np.random.Generator,
    draw: Callable[[np.random.Generator], tuple[Values, Values]] | None = None,
) -> dict[str, Values]:
    """Compute each measure for every resample.

    A resample is represented by how often each sample was drawn, so nothing is sorted again. Each
    resample has its own random stream, so the result does not depend on the number of threads.
    `draw` returns these weights of the ID and OOD samples.
    """

    def draw_samples(stream: np.random.Generator) -> tuple[Values, Values]:
        sizes = ranking.n_id, ranking.n_ood
        id_, ood = (np.bincount(stream.integers(0, n, n), minlength=n) for n in sizes)
        return id_.astype(np.float64), ood.astype(np.float64)

    def measure(stream: np.random.Generator) -> dict[str, float]:
        id_weights, ood_weights = (draw or draw_samples)(stream)
        return ranking.measures(tpr, id_to_ood, id_weights=id_weights, ood_weights=ood_weights)

    with ThreadPoolExecutor(available_cpus()) as pool:
        results = list(pool.map(measure, rng.spawn(n_bootstrap)))
    return {name: np.array([result[name] for result in results]) for name in results[0]}


def resample_bins(
    ranking: Ranking,
    values: Mapping[str, float],
    tpr: float,
    id_to_ood: float,
    n_bootstrap: int,
    rng: np.random.Generator,
) -> dict[str, Values]:
    """Compute each measure for every resample, drawn by bin.

    A resample of n samples takes time and memory for n draws, a thousand times. But the measures
    hardly depend on the order within many narrow bins, and a resample of the counts in the bins is
    a multinomial draw. The measures of the binned data differ a little from `values`, so those of
    the resamples are moved by the difference.
    """
    id_counts, ood_counts = _bins(ranking)

    def draw(stream: np.random.Generator) -> tuple[Values, Values]:
        id_, ood = (
            stream.multinomial(n, counts / n).astype(np.float64)
            for n, counts in ((ranking.n_id, id_counts), (ranking.n_ood, ood_counts))
        )
        return id_, ood

    binned = Ranking.from_sorted(np.arange(_N_BINS, dtype=float), np.arange(_N_BINS, dtype=float))
    center = binned.measures(tpr, id_to_ood, id_weights=id_counts, ood_weights=ood_counts)
    samples = resample(binned, tpr, id_to_ood, n_bootstrap, rng, draw)
    return {name: samples[name] + (value - center[name]) for name, value in values.items()}


def _bins(ranking: Ranking) -> tuple[Values, Values]:
    """Return how many ID and OOD samples are in each bin.

    A tie is in a single bin. Otherwise bins end where `_scale` of the ID scores and that of the OOD
    scores add up to equal steps.
    """
    n, m, first, last = ranking.n_id, ranking.n_ood, ranking.id_first, ranking.ood_last
    id_ends = np.arange(1, n + 1) if first is None else np.searchsorted(first, first, "right")
    ood_ends = np.arange(1, m + 1) if last is None else last + 1
    sides = []
    for up_to_id, up_to_ood in ((id_ends, ranking.ood_up_to), (ranking.id_up_to, ood_ends)):
        place = (_scale(up_to_id, n) + _scale(up_to_ood, m)) / 2
        bins = np.clip(np.ceil(place * _N_BINS).astype(np.intp) - 1, 0, _N_BINS - 1)
        sides.append(np.bincount(bins, minlength=_N_BINS).astype(np.float64))
    return sides[0], sides[1]


def _scale(up_to: Indices, n: int) -> Values:
    """Return a place from 0 to 1 for the end of each tie, from the number of scores up to there.

    Half of it is the share of the scores, half is on a logarithmic scale from both ends: average
    precision depends on the first few scores of a side.
    """
    logarithmic = (np.log1p(up_to) - np.log1p(n - up_to)) / (2 * math.log1p(n)) + 0.5
    return np.asarray((up_to / n + logarithmic) / 2)


def interval(samples: Values, value: float, confidence: float) -> tuple[float, float]:
    """Return the interval of a measure from its value and its values in resamples.

    The interval is widened to contain the value, if it does not.
    """
    tails = [(1 - confidence) / 2, (1 + confidence) / 2]
    low, high = np.quantile(samples, bca_levels(samples, value, tails)).tolist()
    return min(low, value), max(high, value)


def bca_levels(samples: Values, value: float, tails: list[float]) -> list[float]:
    """Return the shares of resamples at which a BCa interval ends.

    The bias is measured by the share of resamples below the value. The acceleration is a sixth of
    the skewness of the resamples: a jackknife would need one more evaluation per sample.
    """
    n = len(samples)
    below = (np.count_nonzero(samples < value) + np.count_nonzero(samples <= value)) / (2 * n)
    bias = _NORMAL.inv_cdf(min(max(below, 0.5 / n), 1 - 0.5 / n))
    spread = float(np.std(samples))
    skewness = float(np.mean(((samples - np.mean(samples)) / spread) ** 3)) if spread > 0 else 0.0
    levels = []
    for tail in tails:
        shifted = bias + _NORMAL.inv_cdf(tail)
        stretched = 1 - skewness / 6 * shifted
        # The formula has a pole: from there on, the interval ends at the last resample.
        end = bias + shifted / stretched if stretched > 0 else shifted * np.inf
        levels.append(_NORMAL.cdf(end))
    return levels
