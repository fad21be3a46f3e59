"""Why an input was flagged: the term of each label in the score, next to the usual values.

A score that is a sum over labels can be split into the terms of the labels. Each term is compared
with two medians over the in-distribution data that the detector was calibrated on:

    median       The median of this label. Most labels are absent from most inputs, so it is often
                 near 0.
    rank median  The median of the largest term of each input, of the second largest, and so on,
                 whichever labels these are.

The score of a combination is split into its parts, and these, if possible, into labels.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from nescio._charts.results import Result, View, first_rows, word
from nescio._charts.style import end_of
from nescio._io.results import joined, label_columns
from nescio._validation import Array, BoolArray, FloatArray
from nescio.errors import InputError
from nescio.explain.reason import LabelTerm, PartReason, Reason

Floats = NDArray[np.float64]

# A median of 5,000 values is accurate to about 2 % of their standard deviation. Sorting all rows of
# a large calibration set would take longer than calibrating.
_ROWS = 5_000
_ROWS_OF_A_GROUP = 500


@dataclass(frozen=True)
class Terms:
    """How a score is made of labels: the sum of the largest of their terms.

    Attributes
    ----------
    name : str
        The name of a term: energy, logit, probability.
    of : callable
        Computes each label's term for logits of shape (n_samples, n_labels). A term must grow with
        its logit.
    largest : int or None
        How many of the largest terms count: 1 for a maximum, k for a top-k, None for all.
    """

    name: str
    of: Callable[[Any], Any]
    largest: int | None = None


@dataclass(frozen=True, eq=False)
class Medians:
    """Medians over in-distribution data, one row per group of samples.

    Attributes
    ----------
    groups : tuple of str
        The names of the groups; a single empty name if there are no groups.
    labels : array of shape (n_groups, n_labels)
        The median of each label's term.
    ranks : array of shape (n_groups, n_labels)
        The median of a sample's largest term, second largest term, and so on.
    """

    groups: tuple[str, ...]
    labels: Floats
    ranks: Floats

    @staticmethod
    def from_logits(
        terms: Terms,
        logits: FloatArray,
        usable: BoolArray,
        groups: NDArray[np.str_] | None = None,
    ) -> Medians:
        """Compute the medians of the usable rows, within each group if there are any.

        Of many rows, 5,000 are drawn with a fixed seed; with groups, 5,000 in total but at least
        500 of each group.
        """
        names = ("",) if groups is None else tuple(np.unique(groups).tolist())
        n_rows = max(_ROWS_OF_A_GROUP, _ROWS // len(names))
        medians = []
        for name in names:
            rows = np.flatnonzero(usable if groups is None else usable & (groups == name))
            n = len(rows)
            chosen = np.sort(np.random.default_rng(0).choice(n, min(n, n_rows), replace=False))
            values = np.asarray(terms.of(logits[rows[chosen]]), dtype=np.float64)
            ranks = np.median(np.sort(values, axis=1), axis=0)[::-1]
            medians.append((np.median(values, axis=0), ranks))
        labels, ranks = (np.stack(column) for column in zip(*medians, strict=True))
        return Medians(names, labels, ranks)

    def check(self, n_labels: int | None) -> None:
        """Raise a `ValueError` unless there is one median per label and group."""
        for array in (self.labels, self.ranks):
            if array.shape != (len(self.groups), n_labels) or np.isnan(array).any():
                raise ValueError("its medians do not fit its labels and groups")

    def of_samples(
        self, groups: NDArray[np.str_] | None, n_samples: int
    ) -> tuple[FloatArray, FloatArray]:
        """Return the medians of each sample's group: label by label, and rank by rank."""
        if groups is None:
            shape = (n_samples, self.labels.shape[1])
            return np.broadcast_to(self.labels, shape), np.broadcast_to(self.ranks, shape)
        at = np.searchsorted(self.groups, groups)
        return self.labels[at], self.ranks[at]


@dataclass(frozen=True, eq=False, repr=False, kw_only=True)
class ExplainedVerdicts(Result):
    """The verdicts on some samples; `explanation[i]` is the `Reason` of one of them.

    Attributes
    ----------
    detector : str
        Name of the detector.
    scores, thresholds, p_values : array of shape (n_samples,)
        A sample is in-distribution if its score is at least its threshold.
    groups, ids : array of str of shape (n_samples,) or None
        Groups and ids of the samples, if any.
    index : pandas index or None
        The index of the pandas frame that the samples came from, for `to_pandas`.
    """

    index_column = "id"

    detector: str
    scores: Floats
    thresholds: Floats
    p_values: Floats
    groups: NDArray[np.str_] | None = None
    ids: NDArray[np.str_] | None = None
    index: Any = None

    def __len__(self) -> int:
        return len(self.scores)

    def __getitem__(self, row: int) -> Reason:
        raise NotImplementedError

    def __iter__(self) -> Iterator[Reason]:
        return (self[row] for row in range(len(self)))

    @property
    def in_distribution(self) -> BoolArray:
        """The verdicts."""
        return np.asarray(self.scores >= self.thresholds)

    def _reason(self, row: int, **pieces: Any) -> Reason:
        """Return the reason of one sample, with its labels or parts."""

        def value(column: Array | None) -> Any:
            return None if column is None else column[row].item()

        return Reason(
            self.detector,
            value(self.ids),
            value(self.groups),
            value(self.scores),
            value(self.thresholds),
            value(self.p_values),
            value(self.in_distribution),
            **pieces,
        )

    def summary(self) -> str:
        """Return one line: how many samples were explained, and how many of them are flagged."""
        return f"{len(self):,} explained, {np.count_nonzero(~self.in_distribution):,} flagged"

    def as_dict(self) -> dict[str, Any]:
        """Return a dict for JSON: the detector, and the reason of each input."""
        return {"detector": self.detector, "samples": [reason.as_dict() for reason in self]}

    def plot(self, ax: Any = None, *, row: int = 0, **options: Any) -> Any:
        """Draw the terms, or the shares of the parts, of one sample; see `ExplanationDisplay`."""
        return self[row].plot(ax, **options)

    def _table(self, pieces: dict[str, Any]) -> dict[str, Any]:
        """Return one column per label or part, after the ids if they are known."""
        return joined({} if self.ids is None else {"id": self.ids}, pieces)

    def _view(self) -> View:
        if len(self) == 1:
            return self[0]._view()
        reasons = [self[row] for row in first_rows(len(self))]
        return View(
            self.summary(),
            table={
                "sample": [
                    end_of(str(row) if reason.id is None else reason.id, 24)
                    for row, reason in enumerate(reasons)
                ],
                "score": [f"{reason.score:.5g}" for reason in reasons],
                "threshold": [f"{reason.threshold:.5g}" for reason in reasons],
                "verdict": [
                    word("in", "in") if reason.in_distribution else word("OUT", "out")
                    for reason in reasons
                ],
                f"largest {reasons[0].piece}": [reason.largest() for reason in reasons],
            },
            n_rows=len(self),
        )


@dataclass(frozen=True, eq=False, repr=False, kw_only=True)
class Explanation(ExplainedVerdicts):
    """The terms of all labels, one row per sample; `explanation[i]` is the `Reason` of one input.

    It also has the attributes of `ExplainedVerdicts`.

    Attributes
    ----------
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
    label_names : tuple of str or None
        Names of the labels, if known.
    """

    how: Terms
    terms: FloatArray
    medians: FloatArray
    rank_medians: FloatArray
    label_names: tuple[str, ...] | None = None

    @classmethod
    def from_logits(
        cls, how: Terms, logits: FloatArray, medians: Medians, **verdicts: Any
    ) -> Explanation:
        """Split logits into terms, next to the medians of the group of each sample."""
        labels, ranks = medians.of_samples(verdicts["groups"], len(logits))
        terms = np.array(how.of(logits.astype(np.float64)), dtype=np.float64)
        terms[np.isnan(logits) | np.isposinf(logits)] = np.nan
        return cls(how=how, terms=terms, medians=labels, rank_medians=ranks, **verdicts)

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
        labels = map(
            LabelTerm,
            [names[label] for label in order],
            self.terms[row, order].tolist(),
            _shares(self.terms[[row]], self.how.largest)[0, order].tolist(),
            self.medians[row, order].tolist(),
            range(1, len(order) + 1),
            self.rank_medians[row].tolist(),
        )
        return self._reason(row, term=self.how.name, labels=tuple(labels))

    def columns(self) -> dict[str, Any]:
        """Return the terms: one row per sample, one column per label, and the ids if known."""
        return self._table(label_columns(self.label_names, self.terms))


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


@dataclass(frozen=True, eq=False, repr=False, kw_only=True)
class PartsExplanation(ExplainedVerdicts):
    """What the parts of a combination say about some samples; `explanation[i]` is one of them.

    It also has the attributes of `ExplainedVerdicts`.

    Attributes
    ----------
    parts : tuple of str
        The parts, with their parameters.
    part_scores, part_p_values, shares : array of shape (n_samples, n_parts)
        As in `PartReason`.
    explanations : tuple of Explanation, PartsExplanation or None
        For each part, its own explanation, if it has one.
    nearest : tuple of array or None
        For each part, the nearest training samples of each sample, if the part knows them.
    """

    parts: tuple[str, ...]
    part_scores: Floats
    part_p_values: Floats
    shares: Floats
    explanations: tuple[Explanation | PartsExplanation | None, ...]
    nearest: tuple[Array | None, ...]

    def named(self, ids: Any, label_names: tuple[str, ...] | None, index: Any = None) -> Self:
        """Return a copy with the ids and the index of the samples and the names of the labels."""
        named = tuple(e and e.named(ids, label_names, index) for e in self.explanations)
        return replace(self, ids=ids, explanations=named, index=index)

    def with_train_ids(self, train_ids: Sequence[str] | NDArray[np.str_]) -> Self:
        """Return a copy that names the nearest training samples by their ids.

        `train_ids` are the ids of the rows that the detector has learned from, in their order:
        `train.ids`, without rows of NaN or infinity.
        """
        largest = max(
            (rows.max(initial=-1) for rows in self.nearest if rows is not None), default=-1
        )
        if largest >= len(train_ids):
            raise InputError(
                f"the detector has learned from at least {largest + 1:,} samples, but there are "
                f"{len(train_ids):,} ids. Pass the ids of the training data."
            )
        ids = np.append(np.asarray(train_ids, dtype=object), "")  # -1 is no sample
        nearest = tuple(None if rows is None else ids[rows] for rows in self.nearest)
        inner = tuple(
            e.with_train_ids(train_ids) if isinstance(e, PartsExplanation) else e
            for e in self.explanations
        )
        return replace(self, nearest=nearest, explanations=inner)

    def __getitem__(self, row: int) -> Reason:
        parts = [
            PartReason(
                name,
                float(self.part_scores[row, part]),
                float(self.part_p_values[row, part]),
                float(self.shares[row, part]),
                None if explanation is None else explanation[row],
                () if near is None else tuple(n for n in near[row].tolist() if n not in (-1, "")),
            )
            for part, (name, explanation, near) in enumerate(
                zip(self.parts, self.explanations, self.nearest, strict=True)
            )
        ]
        parts.sort(key=lambda part: -np.nan_to_num(part.share))
        return self._reason(row, parts=tuple(parts))

    def columns(self) -> dict[str, Any]:
        """Return the share of each part: one row per sample, one column per part."""
        return self._table(dict(zip(self.parts, self.shares.T, strict=True)))
