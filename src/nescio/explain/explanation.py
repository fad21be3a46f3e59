"""Why an input was flagged: each label's term of its score, against what is usual.

A score that is a sum over labels can be taken apart into them. Each label's term is compared with
two medians over the in-distribution data that the detector was calibrated on:

    median       of that label. Most labels are absent from most inputs, so it is often near 0.
    rank median  of the largest term of each input, the second largest, and so on: what an ordinary
                 input's first label has, whichever label that is.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from nescio._validation import Array, BoolArray, FloatArray
from nescio.explain.terms import Floats, Medians, Terms, terms_of

__all__ = ["Explanation", "LabelTerm", "Reason"]

_SHOWN_ROWS = 10
_SHOWN_LABELS = 10


# --- one input --------------------------------------------------------------------------------


class LabelTerm(NamedTuple):
    """One label's part in the score of one input.

    Attributes
    ----------
    label : str
        Its name, or its number where names are not known.
    term : float
        Its energy, logit or probability.
    share : float
        Of the score; 0 if the label does not count (not among the k largest), NaN where shares
        make no sense (a score of 0, or terms below 0).
    median : float
        Of this label's term, in-distribution.
    rank : int
        1 for the input's largest term.
    rank_median : float
        Of the term of this rank, in-distribution.
    """

    label: str
    term: float
    share: float
    median: float
    rank: int
    rank_median: float

    @property
    def difference(self) -> float:
        """The term less the label's median."""
        return self.term - self.median

    def as_dict(self) -> dict[str, Any]:
        """For JSON, which has no infinity and no NaN: they are None."""
        return _plain(self._asdict() | {"difference": self.difference})


@dataclass(frozen=True, repr=False)
class Reason:
    """One input's score, label by label.

    Attributes
    ----------
    detector, term : str
        The score's name, and what its terms are called.
    id, group : str or None
        Of the input, where known.
    score, tau, p_value : float
        The p-value is None if the detector is fitted only.
    in_distribution : bool
        The verdict.
    labels : tuple of LabelTerm
        The largest term first.
    """

    detector: str
    term: str
    id: str | None
    group: str | None
    score: float
    tau: float
    p_value: float | None
    in_distribution: bool
    labels: tuple[LabelTerm, ...]

    def most_telling(self, n_labels: int) -> tuple[LabelTerm, ...]:
        """The labels that say most: high here or, by their median, usually; largest term first."""
        order = sorted(self.labels, key=lambda label: -_height(label))
        return tuple(sorted(order[:n_labels], key=lambda label: label.rank))

    def headline(self) -> str:
        """The verdict and what it rests on, in a line."""
        verdict = "in-distribution" if self.in_distribution else "OUT"
        against = "at least" if self.in_distribution else "below"
        text = f"{verdict}. {self.detector} {self.score:.5g} is {against} tau {self.tau:.5g}"
        more = [] if self.p_value is None else [f"p-value {self.p_value:.4f}"]
        more += [] if self.group is None else [f"group {self.group}"]
        return f"{text} ({', '.join(more)})." if more else f"{text}."

    def summary(self) -> str:
        """The largest term against that of an ordinary input, in a line."""
        bad = [label.label for label in self.labels if math.isnan(label.term)]
        if bad:
            return f"Its logits hold NaN or infinity: {', '.join(bad[:_SHOWN_LABELS])}."
        top = self.labels[0]
        return (
            f"Its largest {self.term} is {top.term:.3g} ({top.label}); "
            f"that of an ordinary input is {top.rank_median:.3g}."
        )

    def as_dict(self) -> dict[str, Any]:
        """For JSON, which has no infinity and no NaN: they are None."""
        labels = [label.as_dict() for label in self.labels]
        return _plain(vars(self)) | {"labels": labels}

    def __repr__(self) -> str:
        shown = self.most_telling(_SHOWN_LABELS)
        width = max(5, *(len(label.label) for label in shown))
        name = "" if self.id is None else f"{self.id}: "
        lines = [name + self.headline(), self.summary()]
        titles = (self.term, "share", "median", "rank median")
        lines.append(f"{'label':<{width}} " + " ".join(f"{title:>11}" for title in titles))
        for label in shown:
            row = " ".join(f"{cell:>11}" for cell in cells(label))
            lines.append(f"{label.label:<{width}} {row}")
        return "\n".join(lines + ([others] if (others := self.others(shown)) else []))

    def others(self, shown: tuple[LabelTerm, ...]) -> str:
        """What is left besides the labels shown, in a few words; empty if nothing is."""
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
    """Term, share, median and rank median for a person to read."""
    share = f"{label.share:.1%}" if label.share else "-"  # one that does not count has none
    share = "" if math.isnan(label.share) else share
    return _number(label.term), share, _number(label.median), _number(label.rank_median)


def _number(value: float) -> str:
    """The same decimals for all, so that they can be compared at a glance, unless it is tiny."""
    return f"{value:.1e}" if 0 < abs(value) < 0.0005 else f"{value:.3f}"


def _plain(values: dict[str, Any]) -> dict[str, Any]:
    return {
        name: None if isinstance(value, float) and not math.isfinite(value) else value
        for name, value in values.items()
    }


# --- a batch ----------------------------------------------------------------------------------


@dataclass(frozen=True, eq=False, repr=False)
class Explanation:
    """Each label's term of the score, one row a sample; `explanation[i]` is one input's `Reason`.

    Attributes
    ----------
    detector : str
        Its name.
    how : Terms
        What the terms are called, and how many of the largest the score sums.
    terms : array of shape (n_samples, n_labels)
        Their sum (of the largest, if not all count) is the score. -inf is a masked logit and counts
        nothing; NaN is a logit that cannot be used.
    medians : array of shape (n_samples, n_labels)
        The in-distribution median of each label's term; within the sample's group, if calibrated by
        group.
    rank_medians : array of shape (n_samples, n_labels)
        The in-distribution median of an input's largest term, second largest, and so on.
    scores, tau : array of shape (n_samples,)
        In-distribution if the score is at least tau.
    p_values : array of shape (n_samples,) or None
        None if the detector is fitted only.
    groups, ids : array of str of shape (n_samples,) or None
        Where there are any.
    label_names : tuple of str or None
        Where known.
    """

    detector: str
    how: Terms
    terms: FloatArray
    medians: FloatArray
    rank_medians: FloatArray
    scores: Floats
    tau: Floats
    p_values: Floats | None = None
    groups: NDArray[np.str_] | None = None
    ids: NDArray[np.str_] | None = None
    label_names: tuple[str, ...] | None = None

    @classmethod
    def from_logits(
        cls, detector: str, how: Terms, logits: FloatArray, medians: Medians, **columns: Any
    ) -> Explanation:
        """Take logits apart into terms, beside the medians of each sample's group."""
        labels, ranks = medians.of_samples(columns["groups"], len(logits))
        return cls(detector, how, terms_of(how, logits), labels, ranks, **columns)

    def __len__(self) -> int:
        return len(self.scores)

    @property
    def in_distribution(self) -> BoolArray:
        """The verdicts."""
        return np.asarray(self.scores >= self.tau)

    @property
    def shares(self) -> Floats:
        """Each label's share of the score, (n_samples, n_labels); see `LabelTerm.share`."""
        return _shares(self.terms, self.how.largest)

    def __getitem__(self, row: int) -> Reason:
        def at(column: Array | None) -> Any:
            return None if column is None else column[row].item()

        order = _order(self.terms[[row]])[0]
        names = self.label_names or [f"label {label}" for label in range(len(order))]
        shares = _shares(self.terms[[row]], self.how.largest)[0]
        term, share, median = (
            column[order].tolist() for column in (self.terms[row], shares, self.medians[row])
        )
        ranks = range(1, len(order) + 1)
        usual = self.rank_medians[row].tolist()
        labels = [names[label] for label in order.tolist()]
        return Reason(
            detector=self.detector,
            term=self.how.name,
            id=at(self.ids),
            group=at(self.groups),
            score=at(self.scores),
            tau=at(self.tau),
            p_value=at(self.p_values),
            in_distribution=bool(self.scores[row] >= self.tau[row]),
            labels=tuple(map(LabelTerm, labels, term, share, median, ranks, usual)),
        )

    def __iter__(self) -> Iterator[Reason]:
        return (self[row] for row in range(len(self)))

    def as_dict(self) -> dict[str, Any]:
        """For JSON: the detector, and each input's reason."""
        return {"detector": self.detector, "samples": [reason.as_dict() for reason in self]}

    def __repr__(self) -> str:
        lines = [f"{len(self):,} explained, {np.count_nonzero(~self.in_distribution):,} flagged"]
        lines.append(f"{'':>8} {'score':>12} {'tau':>12}  verdict  largest {self.how.name}")
        for row, reason in zip(range(_SHOWN_ROWS), self, strict=False):
            word = "in" if reason.in_distribution else "OUT"
            top = ", ".join(f"{label.label} {label.term:.3g}" for label in reason.labels[:3])
            name = str(row) if reason.id is None else reason.id
            lines.append(f"{name:>8.8} {reason.score:>12.5g} {reason.tau:>12.5g}  {word:<7}  {top}")
        if len(self) > _SHOWN_ROWS:
            lines.append(f"{'...':>8}")
        return "\n".join(lines)


def _order(terms: FloatArray) -> NDArray[np.intp]:
    """The labels of each row, the largest term first; NaN, which makes a row out, before all."""
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
