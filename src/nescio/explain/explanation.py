"""Why an input was flagged: the term of each label in the score, next to the usual values.

A score that is a sum over labels can be split into the terms of the labels. Each term is compared
with two medians over the in-distribution data that the detector was calibrated on:

    median       The median of this label. Most labels are absent from most inputs, so it is often
                 near 0.
    rank median  The median of the largest term of each input, of the second largest, and so on,
                 whichever labels these are.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any, NamedTuple, Self

import numpy as np
from numpy.typing import NDArray

from nescio._charts.text import cut
from nescio._io.tabular import by_name, joined, label_columns
from nescio._validation import FloatArray
from nescio.explain.judged import Judged, JudgedRows, plain
from nescio.explain.terms import Floats, Medians, Terms, terms_of

__all__ = ["Explanation", "LabelTerm", "Reason"]

_SHOWN_LABELS = 8
_LONGEST_NAME = 24


# --- one input --------------------------------------------------------------------------------


class LabelTerm(NamedTuple):
    """The part of one label in the score of one input.

    Attributes
    ----------
    label : str
        Name of the label, or its number if names are not known.
    term : float
        Energy, logit or probability of the label.
    share : float
        Share of the score. It is 0 if the label does not count (it is not among the k largest), and
        NaN if shares have no meaning (the score is 0, or some terms are negative).
    median : float
        In-distribution median of the term of this label.
    rank : int
        Rank of the term; 1 is the largest term of the input.
    rank_median : float
        In-distribution median of the term of this rank.
    """

    label: str
    term: float
    share: float
    median: float
    rank: int
    rank_median: float

    @property
    def difference(self) -> float:
        """The term minus the median of the label."""
        return self.term - self.median

    def as_dict(self) -> dict[str, Any]:
        """Return a dict for JSON, with None in place of infinity and NaN."""
        return plain(self._asdict() | {"difference": self.difference})


@dataclass(frozen=True, repr=False)
class Reason(Judged):
    """The score of one input, label by label.

    Attributes
    ----------
    term : str
        Name of the terms, such as "energy".
    labels : tuple of LabelTerm
        The largest term first.
    """

    index_column = "label"

    term: str
    labels: tuple[LabelTerm, ...]

    def by_label(self) -> Reason:
        """Return itself; the parts of a combination may have no labels."""
        return self

    def most_telling(self, n_labels: int) -> tuple[LabelTerm, ...]:
        """Return the labels with the largest term or median, largest term first."""
        order = sorted(self.labels, key=lambda label: -_height(label))
        return tuple(sorted(order[:n_labels], key=lambda label: label.rank))

    def summary(self) -> str:
        """Return one line that compares the largest term with the usual one."""
        bad = [label.label for label in self.labels if math.isnan(label.term)]
        if bad:
            return f"Its logits hold NaN or infinity: {', '.join(bad[:_SHOWN_LABELS])}."
        top = self.labels[0]
        return (
            f"Its largest {self.term} is {top.term:.3g} ({top.label}); "
            f"the median over in-distribution inputs is {top.rank_median:.3g}."
        )

    def as_dict(self) -> dict[str, Any]:
        """Return a dict for JSON, with None in place of infinity and NaN."""
        labels = [label.as_dict() for label in self.labels]
        return plain(vars(self)) | {"labels": labels}

    def __repr__(self) -> str:
        shown = self.most_telling(_SHOWN_LABELS)
        width = min(_LONGEST_NAME, max(5, *(len(label.label) for label in shown)))
        lines = [self.short_headline(), cut(self.summary(), 120)]
        titles = (self.term, "share", "median", "rank median")
        lines.append(f"{'label':<{width}} " + " ".join(f"{title:>11}" for title in titles))
        for label in shown:
            row = " ".join(f"{cell:>11}" for cell in cells(label))
            lines.append(f"{cut(label.label, width):<{width}} {row}")
        return "\n".join(lines + ([others] if (others := self.others(shown)) else []))

    def _repr_html_(self) -> str:
        from nescio.explain.showing import reason_card

        return reason_card(self)

    def columns(self) -> dict[str, Any]:
        """Return one row per label: label, term, share, median, rank and rank_median."""
        return by_name([label._asdict() for label in self.labels])

    def plot(self, ax: Any = None, **options: Any) -> Any:
        """Draw the terms of the most telling labels; see `ExplanationDisplay`."""
        from nescio.displays import ExplanationDisplay

        return ExplanationDisplay.from_reason(self, ax=ax, **options)

    def others(self, shown: tuple[LabelTerm, ...]) -> str:
        """Return the number and the share of the labels that are not shown; empty if none."""
        left = [label for label in self.labels if label not in shown]
        if not left:
            return ""
        share = sum(label.share for label in left)
        what = f"{len(left):,} other label{'s' if len(left) > 1 else ''}"
        return what if math.isnan(share) else f"{what}: {share:.1%}"


def _height(label: LabelTerm) -> float:
    if math.isnan(label.term):
        return math.inf
    return max(label.term, label.median)


def cells(label: LabelTerm) -> tuple[str, str, str, str]:
    """Write the term, the share, the median and the rank median of a label."""
    share = f"{label.share:.1%}" if label.share else "-"  # a label that does not count has no share
    share = "" if math.isnan(label.share) else share
    return _number(label.term), share, _number(label.median), _number(label.rank_median)


def _number(value: float) -> str:
    """Write a number with three decimals, or as a power of ten if it is tiny."""
    return f"{value:.1e}" if 0 < abs(value) < 0.0005 else f"{value:.3f}"


# --- a batch ----------------------------------------------------------------------------------


@dataclass(frozen=True, eq=False, repr=False)
class Explanation(JudgedRows):
    """The terms of all labels, one row per sample; `explanation[i]` is the `Reason` of one input.

    Attributes
    ----------
    detector : str
        Name of the detector.
    how : Terms
        The name of the terms, and how many of the largest ones the score sums.
    terms : array of shape (n_samples, n_labels)
        Their sum (of the largest ones, if not all count) is the score. A masked logit has -inf and
        does not count; a logit that cannot be used has NaN.
    medians : array of shape (n_samples, n_labels)
        In-distribution median of the term of each label; within the group of the sample, if the
        detector is calibrated by group.
    rank_medians : array of shape (n_samples, n_labels)
        In-distribution median of the largest term of an input, of the second largest, and so on.
    scores, thresholds : array of shape (n_samples,)
        A sample is in-distribution if its score is at least its threshold.
    p_values : array of shape (n_samples,) or None
        None if the detector is fitted but not calibrated.
    groups, ids : array of str of shape (n_samples,) or None
        Groups and ids of the samples, if any.
    label_names : tuple of str or None
        Names of the labels, if known.
    index : pandas index or None
        The index of the pandas frame that the samples came from, for `to_pandas`.
    """

    detector: str
    how: Terms
    terms: FloatArray
    medians: FloatArray
    rank_medians: FloatArray
    scores: Floats
    thresholds: Floats
    p_values: Floats | None = None
    groups: NDArray[np.str_] | None = None
    ids: NDArray[np.str_] | None = None
    label_names: tuple[str, ...] | None = None
    index: Any = None

    @classmethod
    def from_logits(
        cls, detector: str, how: Terms, logits: FloatArray, medians: Medians, **columns: Any
    ) -> Explanation:
        """Split logits into terms, next to the medians of the group of each sample."""
        labels, ranks = medians.of_samples(columns["groups"], len(logits))
        return cls(detector, how, terms_of(how, logits), labels, ranks, **columns)

    def named(self, ids: Any, label_names: tuple[str, ...] | None, index: Any = None) -> Self:
        """Return a copy with the ids and the index of the samples and the names of the labels."""
        return replace(self, ids=ids, label_names=label_names, index=index)

    @property
    def shares(self) -> Floats:
        """The share of each label in the score, (n_samples, n_labels); see `LabelTerm.share`."""
        return _shares(self.terms, self.how.largest)

    def __getitem__(self, row: int) -> Reason:
        order = _order(self.terms[[row]])[0]
        names = self.label_names or [f"label {label}" for label in range(len(order))]
        shares = _shares(self.terms[[row]], self.how.largest)[0]
        labels = map(
            LabelTerm,
            [names[label] for label in order],
            self.terms[row, order].tolist(),
            shares[order].tolist(),
            self.medians[row, order].tolist(),
            range(1, len(order) + 1),
            self.rank_medians[row].tolist(),
        )
        return Reason(**self.verdict_at(row), term=self.how.name, labels=tuple(labels))

    def __iter__(self) -> Iterator[Reason]:
        return (self[row] for row in range(len(self)))

    def as_dict(self) -> dict[str, Any]:
        """Return a dict for JSON: the detector, and the reason of each input."""
        return {"detector": self.detector, "samples": [reason.as_dict() for reason in self]}

    def __repr__(self) -> str:
        return self.table(f"largest {self.how.name}", self._largest)

    def _repr_html_(self) -> str:
        if len(self) == 1:
            return self[0]._repr_html_()
        return self.card(f"largest {self.how.name}", self._largest)

    def _largest(self, row: int) -> str:
        labels = self[row].labels[:3]
        return ", ".join(f"{cut(label.label, 24)} {label.term:.3g}" for label in labels)

    def columns(self) -> dict[str, Any]:
        """Return the terms: one row per sample, one column per label, and the ids if known."""
        return joined(self._ids(), label_columns(self.label_names, self.terms))

    def plot(self, ax: Any = None, *, row: int = 0, **options: Any) -> Any:
        """Draw the terms of one sample; see `ExplanationDisplay`."""
        return self[row].plot(ax, **options)


def _order(terms: FloatArray) -> NDArray[np.intp]:
    """Return the labels of each row, NaN first, then the largest term first."""
    return np.argsort(np.where(np.isnan(terms), -np.inf, -terms), axis=1, kind="stable")


def _shares(terms: FloatArray, largest: int | None) -> Floats:
    counted = np.where(np.isneginf(terms), 0.0, terms)  # (n_samples, n_labels)
    if largest is not None:
        np.put_along_axis(counted, _order(terms)[:, largest:], 0.0, axis=1)
    total = counted.sum(1, keepdims=True)
    sensible = (counted.min(1, keepdims=True) >= 0) & (total > 0)
    shares = np.full(counted.shape, np.nan)
    np.divide(counted, total, out=shares, where=sensible)
    return shares
