"""False alarms and the FPR by label, and by how frequent a label is.

A threshold that keeps 95 % of all samples may keep 98 % of those with a frequent label, and 80 % of
those with a rare one. A sample counts for each of its labels.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from nescio._charts.results import Result, View, by_name, strip
from nescio._validation import BoolArray, checked_scores, checked_share, multi_hot
from nescio.errors import ShapeError, listed
from nescio.metrics.measures import Estimate, Values, n_allowed
from nescio.outputs import Outputs

FREQUENCIES = ("rare", "medium", "frequent")
NO_LABEL = "no label"

_SHOWN_LABELS = 4  # beside the frequencies
_NAMED_LABELS = 5


class SampleLabels(NamedTuple):
    """The labels that samples are grouped by, (n_samples, n_labels), and which labels they are."""

    has: BoolArray
    kind: str  # "true", or "most likely"


def sample_labels(outputs: Outputs) -> SampleLabels:
    """Return the true labels of each sample or, without truth, its most likely label.

    Not the predicted labels: a sample that is flagged often has none.
    """
    if outputs.labels is not None:
        return SampleLabels(outputs.labels.astype(np.bool_), "true")
    logits = np.nan_to_num(outputs.logits, nan=-np.inf)
    is_largest = np.arange(logits.shape[1]) == logits.argmax(axis=1)[:, None]
    return SampleLabels(is_largest & np.isfinite(logits), "most likely")


@dataclass(frozen=True)
class Rate:
    """How some samples fare: those with one label, or with a label of one frequency."""

    name: str  # the label, or the frequency: "rare", "medium", "frequent", or "no label"
    frequency: str  # of the label
    n_samples: int
    n_flagged: int
    false_alarms: Estimate  # the share that is flagged
    fpr: Estimate | None  # what is let through if `tpr` of these samples is kept, of OOD samples

    def as_dict(self) -> dict[str, Any]:
        """Return the row as plain data; without the FPR if there is none."""
        alarms, fpr = self.false_alarms, self.fpr
        row: dict[str, Any] = {"label": self.name, "frequency": self.frequency}
        row |= {"n_samples": self.n_samples, "flagged": self.n_flagged}
        row |= {"false_alarms": alarms.value, "low": alarms.low, "high": alarms.high}
        if fpr is not None:
            row |= {"fpr": fpr.value, "fpr_low": fpr.low, "fpr_high": fpr.high}
        return row


@dataclass(frozen=True, repr=False)
class LabelRates(Result):
    """The result of `label_rates`. Values are shares from 0 to 1; printed text is in per cent.

    Attributes
    ----------
    labels : sequence of Rate
        One per label that has samples, the highest share of false alarms first.
    by_frequency : sequence of Rate
        Samples with a label of the rarest third of the labels, of the middle and of the most
        frequent third; and samples without a label, if there are any.
    suffering : sequence of str
        The labels that are flagged more often than all samples, beyond chance: at a level of 5 %
        for all labels together (Bonferroni). Also "no label", if such samples are.

    Examples
    --------
    >>> labels = np.array([[1, 0], [1, 0], [1, 1], [0, 1]])
    >>> label_rates([0.1, 0.2, 0.9, 0.8], labels, threshold=0.5).to_dict()["flagged"]
    [2, 0]
    """

    index_column = "label"

    labels: Sequence[Rate]
    by_frequency: Sequence[Rate]
    overall: Rate  # of all samples
    suffering: Sequence[str]
    fpr_name: str  # such as FPR95

    def columns(self) -> dict[str, Any]:
        """Return one row per label: n_samples, flagged, false_alarms and its interval, fpr."""
        return by_name([rate.as_dict() for rate in self.labels])

    def as_dict(self) -> dict[str, Any]:
        """Return all rates as plain data, for JSON."""
        return {
            "overall": self.overall.as_dict(),
            "by_frequency": [rate.as_dict() for rate in self.by_frequency],
            "labels": [rate.as_dict() for rate in self.labels],
            "suffering": list(self.suffering),
        }

    def summary(self) -> str:
        """Say which labels suffer, or that none does beyond chance."""
        if not self.suffering:
            return "No label is flagged more often than the others, beyond chance."
        rates = (*self.labels, *self.by_frequency)
        counts = {rate.name: f"{rate.n_flagged:,} of {rate.n_samples:,}" for rate in rates}
        named = [f"{name} ({counts[name]})" for name in self.suffering]
        return (
            "Flagged more often than all samples together, beyond chance: "
            f"{listed(named, _NAMED_LABELS, quoted=False)}."
        )

    def rows(self) -> list[Rate]:
        """Return what is shown: the frequencies, and the labels with most false alarms, if any."""
        return [*self.by_frequency, *(r for r in self.labels[:_SHOWN_LABELS] if r.n_flagged)]

    def _view(self) -> View:
        rates = self.rows()
        alarms = [rate.false_alarms for rate in rates]
        table: dict[str, Sequence[str]] = {
            "samples with": [rate.name for rate in rates],
            "samples": [f"{rate.n_samples:,}" for rate in rates],
            "false alarms": list(map(str, alarms)),
            "0 to 100 %": [strip(share.value, share.low, share.high) for share in alarms],
        }
        if self.overall.fpr is not None:
            table[f"{self.fpr_name} ↓"] = [str(rate.fpr) for rate in rates]
        head = f"{self.overall.n_samples:,} samples, {self.overall.false_alarms} % flagged"
        return View(
            f"{head}; per cent by label [95 % interval]",
            table=table,
            n_rows=len(self.by_frequency) + len(self.labels),
            notes=[self.summary()],
        )


def label_rates(
    id_scores: Any,
    labels: Any,
    ood_scores: Any = None,
    *,
    threshold: float | None = None,
    tpr: float = 0.95,
    label_names: Sequence[str] | None = None,
) -> LabelRates:
    """Compute the share of false alarms, and the FPR, of the samples with each label.

    Parameters
    ----------
    id_scores : array of shape (n_samples,)
        Scores of ID samples. Higher means more in-distribution.
    labels : array of shape (n_samples, n_labels)
        Multi-hot labels of these samples.
    ood_scores : array, optional
        Scores of OOD samples, for the FPR by label: the share that is let through by the threshold
        that keeps `tpr` of the samples with this label.
    threshold : float, optional
        Samples below it are flagged. By default, it keeps `tpr` of the ID samples. For the verdicts
        of a calibrated detector, pass `detector.decision_function(x)` as scores, and 0.
    tpr : float
        The share of ID samples to keep.
    label_names : sequence of str, optional
        One name per label.

    Examples
    --------
    >>> rng = np.random.default_rng(0)
    >>> labels = rng.random((2000, 4)) < [0.4, 0.3, 0.2, 0.02]
    >>> scores = rng.normal(size=2000) - 2 * labels[:, 3]
    >>> label_rates(scores, labels, label_names=["cat", "dog", "car", "tie"])
    2,000 samples, 5.00 [4.09, 6.05] % flagged; per cent by label [95 % interval]
    samples with  samples          false alarms
    rare              468    7.48 [5.26, 10.25]
    medium            596    5.37 [3.70, 7.50]
    frequent          788    4.06 [2.79, 5.68]
    no label          617    4.38 [2.90, 6.30]
    tie                42  50.00 [34.19, 65.81]
    dog               596    5.37 [3.70, 7.50]
    car               435    4.37 [2.65, 6.74]
    cat               788    4.06 [2.79, 5.68]
    Flagged more often than all samples together, beyond chance: tie (21 of 42).
    """
    scores, truth = checked_scores(id_scores, "id_scores"), multi_hot(labels)
    if len(truth) != len(scores):
        raise ShapeError(
            f"labels must have one row for each of the {len(scores):,} scores, got {truth.shape}."
        )
    names = [f"label {k}" for k in range(truth.shape[1])] if label_names is None else label_names
    if len(names) != truth.shape[1]:
        raise ShapeError(f"{len(names)} label_names were passed for {truth.shape[1]} labels.")
    order = np.argsort(scores, kind="stable")
    ascending, has = scores[order], truth[order].astype(np.bool_)
    ood = None if ood_scores is None else np.sort(checked_scores(ood_scores, "ood_scores"))
    if threshold is None:
        threshold = float(ascending[n_allowed(len(scores), checked_share("tpr", tpr))])
    limit = threshold

    def rate(name: str, frequency: str, members: Any) -> Rate:
        own = ascending[members]
        n_flagged = int(np.searchsorted(own, limit, side="left"))
        fpr = None if ood is None else _fpr(own, ood, tpr)
        return Rate(name, frequency, len(own), n_flagged, share(n_flagged, len(own)), fpr)

    overall = rate("all", "", np.ones(len(scores), dtype=np.bool_))
    counts = has.sum(axis=0)
    ordered = np.argsort(counts, kind="stable")
    # The labels that have samples, in thirds by their number of samples.
    parts = np.array_split(ordered[counts[ordered] > 0], len(FREQUENCIES))
    thirds = {name: third for name, third in zip(FREQUENCIES, parts, strict=True) if len(third)}
    by_label = [
        rate(names[label], frequency, has[:, label])
        for frequency, members in thirds.items()
        for label in members
    ]
    by_label.sort(key=lambda rate: (-rate.false_alarms.value, -rate.n_samples, rate.name))
    by_frequency = [
        rate(frequency, frequency, has[:, members].any(axis=1))
        for frequency, members in thirds.items()
    ]
    if not has.any(axis=1).all():
        by_frequency.append(rate(NO_LABEL, NO_LABEL, ~has.any(axis=1)))
    strict = 1 - 2 * 0.05 / max(1, len(by_label))  # of which only the lower end counts
    suffering = [
        rate.name
        for rate in (*by_label, *(rate for rate in by_frequency if rate.name == NO_LABEL))
        if (share(rate.n_flagged, rate.n_samples, strict).low or 0.0) > overall.false_alarms.value
    ]
    return LabelRates(by_label, by_frequency, overall, suffering, f"FPR{tpr * 100:g}")


def share(count: int, n: int, confidence: float = 0.95) -> Estimate:
    """Return a share and its exact interval (Clopper-Pearson)."""
    from scipy.special import betaincinv

    tail = (1 - confidence) / 2
    low = float(betaincinv(count, n - count + 1, tail)) if count else 0.0
    high = float(betaincinv(count + 1, n - count, 1 - tail)) if count < n else 1.0
    return Estimate(count / n if n else math.nan, low, high)


def _fpr(own: Values, ood: Values, tpr: float) -> Estimate:
    """Return the FPR of ascending scores, with an interval that holds with at least 95 %.

    The order statistics around the threshold contain the quantile that it estimates, and the
    interval of a share contains what a threshold lets through in the long run.
    """
    from scipy.special import bdtrik

    def kept(rank: int) -> int:  # by the score of this rank, counted from 1, as the threshold
        if not 1 <= rank <= len(own):
            return len(ood) if rank < 1 else 0
        return len(ood) - int(np.searchsorted(ood, own[rank - 1], side="left"))

    tails = np.array([0.0125, 0.9875])
    first, last = np.ceil(np.nan_to_num(bdtrik(tails, len(own), 1 - tpr))).astype(int).tolist()
    low = share(kept(last + 1), len(ood), 0.975).low
    high = share(kept(first), len(ood), 0.975).high
    return Estimate(kept(n_allowed(len(own), tpr) + 1) / len(ood), low, high)
