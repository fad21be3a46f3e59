"""Why an input was flagged: the term of each label in the score, next to the usual values.

A score that is a sum over labels can be split into the terms of the labels, which are compared
with medians over the calibration data. The score of a combination is split into its parts, and
these, if possible, into labels. The part `out_of_range` compares the columns of a table, or
features, with their usual ranges.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple, Self

import numpy as np
from numpy.typing import NDArray

from nescio._charts.results import Result, View, by_name, joined, label_columns, shown_rows, word
from nescio._charts.svg import CARD_BARS, BarRow, Markup, cut, end_of
from nescio._io.files import finite
from nescio._validation import Array, BoolArray, FloatArray

Floats = NDArray[np.float64]
Shown = Callable[["RangesExplanation"], dict[str, Any]]
"""Given the ends of the ranges of features: fields of a `RangesExplanation`, for a reader."""

__all__ = [
    "ColumnRange",
    "ExplainedVerdicts",
    "Explanation",
    "LabelTerm",
    "PartReason",
    "PartsExplanation",
    "RangesExplanation",
    "Reason",
    "Terms",
]

_SHOWN_LABELS = 8
_SHOWN_COLUMNS, _NAMED_COLUMNS = 5, 3
_SHOWN_TEXTS = 3
_TELLING = 0.2  # the share of the evidence from which on a part has a chart
_SMALLEST_SHARE = 0.01  # a part with less is not shown
_SMALLEST_EXCESS = 1e-9  # less is rounding, or a label that was always masked
_DISTANCE = "distance to the mean"
_LONGEST_NAME = 36


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
        return dict(finite(self._asdict() | {"difference": self.difference}))

    def cells(self) -> tuple[str, str, str, str]:
        """Write the term, the share, the median and the rank median."""
        share = f"{self.share:.1%}" if self.share else "-"  # a label that does not count has none
        share = "" if math.isnan(self.share) else share
        return _number(self.term), share, _number(self.median), _number(self.rank_median)


def _number(value: float) -> str:
    """Write a number with three decimals, or as a power of ten if it is tiny."""
    return f"{value:.1e}" if 0 < abs(value) < 0.0005 else f"{value:.3f}"


class ColumnRange(NamedTuple):
    """The value of one column of an input, next to its usual range.

    Attributes
    ----------
    column : str
        Name of the column, or of the feature or label. "distance to the mean" is that of all
        columns together, in ranges.
    value : float or str
        In the unit of the column; a word, or "missing".
    low, high : float
        The ends of the usual range. NaN for a word, which is then rare or new.
    excess : float
        How far the value is outside of the range, in tails: how far the most extreme 1 % of the
        known values reach; 0 within it. The distance to the mean is compared by its logarithm.

    Examples
    --------
    >>> ColumnRange("age", 640.0, 18.0, 90.0, 7.6).text()
    'age = 640 (usually 18 to 90)'
    """

    column: str
    value: float | str
    low: float
    high: float
    excess: float

    def as_dict(self) -> dict[str, Any]:
        """Return a dict for JSON, with None in place of infinity and NaN."""
        return dict(finite(self._asdict()))

    def cells(self) -> tuple[str, str, str]:
        """Write the value, the usual range and the excess."""
        value, usual = self.value, "rare or new"
        if not isinstance(value, str):
            value, usual = f"{value:.5g}", f"{self.low:.4g} to {self.high:.4g}"
        return value, usual, f"{self.excess:.3g}"

    def text(self) -> str:
        """Write one line, such as "age = 640 (usually 18 to 90)"."""
        value, usual, _ = self.cells()
        usually = "" if isinstance(self.value, str) else "usually "
        return f"{cut(self.column, 24)} = {cut(value, 24)} ({usually}{usual})"


def _listed(columns: Sequence[ColumnRange]) -> str:
    more = len(columns) - _NAMED_COLUMNS
    text = "; ".join(column.text() for column in columns[:_NAMED_COLUMNS])
    return f"{text}; and {more:,} more" if more > 0 else text


@dataclass(frozen=True)
class PartReason:
    """What one part of a combination says about one input.

    Attributes
    ----------
    detector : str
        The part, with its parameters.
    score, p_value : float
        Its score, and how often calibration samples score as low: with n of them, at least
        1 / (n + 1). NaN if the input has values that cannot be used.
    share : float
        Its share of the evidence against the input: of the sum of weight / p-value over the parts,
        where the p-value falls further below all calibration samples. NaN like the score.
    reason : Reason or None
        The score of the part label by label, if it is made of labels, or column by column; for a
        part that is a combination, its parts.
    nearest : tuple
        The nearest training samples, if the part knows them: their rows in the training data,
        without rows of NaN or infinity.
    """

    detector: str
    score: float
    p_value: float
    share: float
    reason: Reason | None
    nearest: tuple[int, ...]

    def notes(self) -> list[str]:
        """Return what else is known about the part: nearest samples, and its largest term."""
        texts = []
        if self.nearest:
            nearest = ", ".join(map(str, self.nearest))
            texts.append(f"{self.detector}: nearest training samples {nearest}")
        # A guard without names has nothing to say of usual values: the table has its p-value.
        is_usual = bool(self.reason and [c.excess for c in self.reason.ranges] == [0])
        if self.reason is not None and not is_usual:
            texts.append(f"{self.detector}: {self.reason.summary()}")
        return texts

    def cells(self) -> tuple[str, str, str]:
        """Write the score, the p-value and the share."""
        share = "" if math.isnan(self.share) else f"{self.share:.1%}"
        return f"{self.score:.5g}", f"{self.p_value:.2g}", share

    def as_dict(self) -> dict[str, Any]:
        """Return a dict for JSON, with None in place of infinity and NaN."""
        reason = None if self.reason is None else self.reason.as_dict()
        return dict(finite(vars(self) | {"reason": reason}))


@dataclass(frozen=True, repr=False)
class Reason(Result):
    """The verdict on one input, and its score by labels, by columns, or by parts of a combination.

    Attributes
    ----------
    detector : str
        Name of the detector.
    id, group : str or None
        Id and group of the input, if known.
    score, threshold, p_value : float
    in_distribution : bool
        The verdict; of a part, that on the combination.
    term : str
        Name of the terms of the labels, such as "energy"; empty for a combination.
    labels : tuple of LabelTerm
        The largest term first; empty for a combination.
    parts : tuple of PartReason
        The parts of a combination, the largest share of the evidence first.
    ranges : tuple of ColumnRange
        Of `out_of_range`: the columns outside of their usual range, the largest excess first, and
        then the distance of the whole row to the mean, if that is outside. If no column is, also
        the few that are furthest from their mean, if they have names.
    part_of : str
        The combination, whose verdict counts, if this is the reason of one of its parts.
    """

    detector: str
    id: str | None
    group: str | None
    score: float
    threshold: float
    p_value: float
    in_distribution: bool
    term: str = ""
    labels: tuple[LabelTerm, ...] = ()
    parts: tuple[PartReason, ...] = ()
    ranges: tuple[ColumnRange, ...] = ()
    part_of: str = ""

    @property
    def index_column(self) -> str:  # type: ignore[override]
        """The column that names the rows of the table."""
        return "part" if self.parts else "column" if self.ranges else "label"

    def headline(self) -> str:
        """Return one line with the verdict, the score and the threshold; no verdict of a part."""
        if self.part_of:
            return f"{self.detector}, a part of {self.part_of}: score {self.score:.5g}."
        verdict = "in-distribution" if self.in_distribution else "OUT"
        against = "at least" if self.in_distribution else "below"
        group = "" if self.group is None else f", group {self.group}"
        return (
            f"{verdict}. {self.detector} {self.score:.5g} is {against} the threshold "
            f"{self.threshold:.5g} (p-value {self.p_value:.4f}{group})."
        )

    def summary(self) -> str:
        """Return one line: the largest term next to the usual one, or the most telling part."""
        if self.ranges:
            return self._ranges_summary()
        if bad := self.unusable():
            return f"NaN or infinity in {', '.join(bad[:_SHOWN_LABELS])}."
        if self.parts:
            first = self.parts[0]
            return (
                f"{first.detector} has {first.share:.0%} of the evidence against it: "
                f"{100 * first.p_value:.2g}% of ordinary inputs, or fewer, score as low."
            )
        top = self.labels[0]
        return (
            f"Its strongest label is {top.label}: {self.term} {top.term:.3g}, "
            f"usual is {top.rank_median:.3g}."
        )

    def unusable(self) -> list[str]:
        """Return the labels or columns whose values, NaN or infinity, leave it without a score."""
        if self.parts and not math.isnan(self.parts[0].p_value):
            return []
        bad = [label.label for label in self.labels if math.isnan(label.term)]
        bad += [column.column for column in self.ranges if column.excess == math.inf]
        inner = [part.reason.unusable() for part in self.parts if part.reason]
        return bad or next(filter(None, inner), ["its values"] if self.parts else [])

    def _ranges_summary(self) -> str:
        first = self.ranges[0]
        enough = " This is not enough to flag it." if self.in_distribution else ""
        # The distance of the whole row, if it is here, is a mean over the columns.
        columns = [column for column in self.ranges if column.column != _DISTANCE]
        furthest = f" Furthest from the mean: {_listed(columns)}." if columns else ""
        if not first.excess:
            return f"All values are in their usual ranges.{furthest}"
        if first.column != _DISTANCE:
            return f"Out of the usual range: {_listed(columns)}.{enough}"
        is_far = float(first.value) > first.high
        where = "further from" if is_far else "closer to"
        return (
            f"No single value is unusual. Together, they are {where} the mean than usual: "
            f"{first.text()}.{furthest * is_far}{enough}"
        )

    def by_label(self) -> Reason | None:
        """Return the score label by label: this one, or that of the first part that has labels."""
        return self._first_with("labels")

    def by_column(self) -> Reason | None:
        """Return the values next to their usual ranges: as `by_label`, for `out_of_range`."""
        return self._first_with("ranges")

    def _first_with(self, pieces: str) -> Reason | None:
        if getattr(self, pieces):
            return self
        reasons = (part.reason._first_with(pieces) for part in self.parts if part.reason)
        return next((reason for reason in reasons if reason is not None), None)

    def most_telling(self, n_labels: int) -> tuple[LabelTerm, ...]:
        """Return the labels with the largest term or median, largest term first."""

        def height(label: LabelTerm) -> float:
            return math.inf if math.isnan(label.term) else max(label.term, label.median)

        order = sorted(self.labels, key=height, reverse=True)
        return tuple(sorted(order[:n_labels], key=lambda label: label.rank))

    def largest(self) -> str:
        """Return the largest three labels, the largest part, or what is furthest out of range."""
        if self.parts:
            return f"{cut(self.parts[0].detector, 30)} {self.parts[0].cells()[2]}".strip()
        if self.ranges:
            first = self.ranges[0]
            return f"{cut(first.column, 24)} = {first.cells()[0]}" if first.excess else ""
        return ", ".join(f"{cut(label.label, 24)} {label.term:.3g}" for label in self.labels[:3])

    def left_out(self, shown: tuple[LabelTerm, ...]) -> str:
        """Return the number and the share of the labels that are not shown; empty if none."""
        left = [label for label in self.labels if label not in shown]
        if not left:
            return ""
        share = sum(label.share for label in left)
        what = f"{len(left):,} other label{'s' if len(left) > 1 else ''}"
        return what if math.isnan(share) else f"{what}: {share:.1%}"

    def as_dict(self) -> dict[str, Any]:
        """Return a dict for JSON, with None in place of infinity and NaN."""
        values = dict(vars(self))
        for name in ("labels", "parts", "ranges"):
            pieces = values.pop(name)
            values |= {name: [piece.as_dict() for piece in pieces]} if pieces else {}
        if values.pop("part_of"):
            del values["in_distribution"]  # of the combination
        if self.parts:
            del values["term"]
        return dict(finite(values))

    def columns(self) -> dict[str, Any]:
        """Return one row per label, part or column.

        Of a label: label, term, share, median, rank and rank_median. Of a part: part, score,
        p_value and share. Of a column: column, value, low, high and excess.
        """
        parts = [
            {"part": p.detector, "score": p.score, "p_value": p.p_value, "share": p.share}
            for p in self.parts
        ]
        return by_name(parts or [piece._asdict() for piece in self.labels or self.ranges])

    def _view(self) -> View:
        rows: list[tuple[str, ...]]
        if self.parts:
            titles = ["part", "score", "p_value", "share"]
            parts = [part for part in self.parts if not part.share < _SMALLEST_SHARE]
            rows = [(cut(part.detector, _LONGEST_NAME), *part.cells()) for part in parts]
            parts.sort(key=lambda part: not (part.reason and part.reason.ranges))
            notes = [text for part in parts for text in part.notes()][:_SHOWN_TEXTS]
        elif self.ranges:
            titles = ["column", "value", "usual", "excess"]
            rows = [(cut(column.column, 24), *column.cells()) for column in self.ranges]
            notes = []
        else:
            shown = self.most_telling(_SHOWN_LABELS)
            titles = ["label", self.term, "share", "median", "rank median"]
            rows = [(cut(label.label, 24), *label.cells()) for label in shown]
            notes = [self.left_out(shown)]
        return View(
            ("" if self.id is None else f"{cut(self.id, 40)}: ") + self.headline(),
            self.summary(),
            dict(zip(titles, zip(*rows, strict=True), strict=True)),
            n_rows=len(self.parts) or None,
            charts=self._charts,
            notes=notes,
        )

    def _charts(self) -> list[Markup]:
        """Draw the labels; of a combination, those of the parts that decided."""
        if self.parts:
            telling = (part.reason for part in self.parts if part.share >= _TELLING)
            return [chart for reason in telling if reason for chart in reason._charts()]
        name = f"The {self.term} of each label; the mark is its usual value"
        rows = [
            BarRow(
                label.label,
                label.term,
                f"{label.term:.3g}",
                f"{label.label}: {label.term:.3g}, usual is {label.median:.3g}",
                "in" if self.in_distribution else "out",
                max(label.median, 0.0),
            )
            for label in self.most_telling(_SHOWN_LABELS)
        ]
        # Negative terms and infinity have no bars.
        if not rows or not all(0 <= row.value < math.inf for row in rows):
            return []
        return [CARD_BARS.draw(rows, name=name), Markup(f"<p class=text>{name}.</p>")]


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

    def with_columns(self, shown: Shown, layer: str = "features") -> Self:
        """Return a copy that shows features, or another layer, as a reader knows them."""
        return self

    def __iter__(self) -> Iterator[Reason]:
        return (self[row] for row in range(len(self)))

    @property
    def in_distribution(self) -> BoolArray:
        """The verdicts."""
        return np.asarray(self.scores >= self.thresholds)

    def _reason(self, row: int, **pieces: Any) -> Reason:
        """Return the reason of one sample, with its labels or parts."""
        verdict = (self.scores, self.thresholds, self.p_values, self.in_distribution)
        columns: tuple[Array | None, ...] = (self.ids, self.groups, *verdict)
        values: list[Any] = [None if c is None else c[row].item() for c in columns]
        return Reason(self.detector, *values, **pieces)

    def summary(self) -> str:
        """Return one line: how many samples were explained, and how many of them are flagged."""
        return f"{len(self):,} explained, {np.count_nonzero(~self.in_distribution):,} flagged"

    def as_dict(self) -> dict[str, Any]:
        """Return a dict for JSON: the detector, and the reason of each input."""
        return {"detector": self.detector, "samples": [reason.as_dict() for reason in self]}

    def _table(self, pieces: dict[str, Any]) -> dict[str, Any]:
        """Return one column per label or part, after the ids if they are known."""
        return joined({} if self.ids is None else {"id": self.ids}, pieces)

    def _view(self) -> View:
        if len(self) == 1:
            return self[0]._view()
        rows = shown_rows(self.in_distribution)
        reasons = [self[row] for row in rows]
        piece = reasons[0].term or "share of the evidence"
        by_column = [reason.by_column() for reason in reasons if reason.parts]
        unusual = [reason.largest() for reason in by_column if reason is not None]
        return View(
            self.summary(),
            table={
                "sample": [
                    end_of(str(row) if reason.id is None else reason.id, 24)
                    for row, reason in zip(rows, reasons, strict=True)
                ],
                "score": [f"{reason.score:.5g}" for reason in reasons],
                "threshold": [f"{reason.threshold:.5g}" for reason in reasons],
                "verdict": [
                    word("in", "in") if reason.in_distribution else word("OUT", "out")
                    for reason in reasons
                ],
                f"largest {piece}": [reason.largest() for reason in reasons],
                **({"unusual": unusual} if unusual else {}),
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
    explanations : tuple of ExplainedVerdicts or None
        For each part, its own explanation, if it has one.
    nearest : tuple of array or None
        For each part, the nearest training samples of each sample, if the part knows them.
    """

    parts: tuple[str, ...]
    part_scores: Floats
    part_p_values: Floats
    shares: Floats
    explanations: tuple[ExplainedVerdicts | None, ...]
    nearest: tuple[Array | None, ...]

    def with_columns(self, shown: Shown, layer: str = "features") -> Self:
        """Return a copy that shows features, or another layer, as a reader knows them."""
        inner = tuple(e and e.with_columns(shown, layer) for e in self.explanations)
        return replace(self, explanations=inner)

    def __getitem__(self, row: int) -> Reason:
        numbers = np.stack([self.part_scores, self.part_p_values, self.shares])[:, row]
        inside = bool(self.in_distribution[row])
        whole: dict[str, Any] = {"part_of": self.detector, "in_distribution": inside}
        parts = [
            PartReason(
                name,
                score,
                p_value,
                share,
                None if own is None else replace(own[row], p_value=p_value, **whole),
                () if near is None else tuple(n for n in near[row].tolist() if n >= 0),
            )
            for name, own, near, (score, p_value, share) in zip(
                self.parts, self.explanations, self.nearest, numbers.T.tolist(), strict=True
            )
        ]
        parts.sort(key=lambda part: -np.nan_to_num(part.share))
        return self._reason(row, parts=tuple(parts))

    def columns(self) -> dict[str, Any]:
        """Return the share of each part: one row per sample, one column per part.

        If `out_of_range` is one of them, there is also its `unusual`.
        """
        shares = dict(zip(self.parts, self.shares.T, strict=True))
        ranges = [e for e in self.explanations if isinstance(e, RangesExplanation)][:1]
        return self._table(joined(shares, *({"unusual": e.columns()["unusual"]} for e in ranges)))


@dataclass(frozen=True, eq=False, repr=False, kw_only=True)
class RangesExplanation(ExplainedVerdicts):
    """Features, or the columns of a table, next to their usual ranges.

    It also has the attributes of `ExplainedVerdicts`.

    Attributes
    ----------
    layer : str
        What is compared: "features", "logits", or another array.
    features : array of shape (n_samples, n_columns)
        Its values.
    compare : callable
        Returns for rows of them the distances to the mean, in ranges, and to the range, in tails,
        of shape (n_samples, n_columns), and then of the whole rows, of shape (n_samples,).
    whole_range : array of shape (2,)
        The usual distance of a whole row to the mean: the smallest and the largest.
    low, high : array of shape (n_columns,)
        The ends of the usual ranges.
    names : sequence of str or None
        The names of the columns, if known.
    values : array of shape (n_samples, n_columns) or None
        What is shown in place of the features: other units, or words. None is not shown.

    Examples
    --------
    >>> from nescio import OutOfRange
    >>> held_out = np.random.default_rng(0).normal(5, 1, (400, 8))
    >>> guard = OutOfRange(tpr=0.99, held_out=True).calibrate(held_out)
    >>> print(guard.explain([[5, 4, 6, 500.0, 4, 6, 5, 7]])[0].ranges[0].text())
    feature 3 = 500 (usually 1.803 to 7.487)
    """

    layer: str
    features: FloatArray
    compare: Callable[[FloatArray], tuple[Floats, Floats, Floats, Floats]]
    whole_range: Floats
    low: Floats
    high: Floats
    names: Sequence[str] | None = None
    values: Array | None = None

    def with_columns(self, shown: Shown, layer: str = "features") -> Self:
        """Return a copy that shows features, or another layer, as a reader knows them."""
        return replace(self, **shown(self)) if self.layer == layer else self

    def __getitem__(self, row: int) -> Reason:
        distances, excess, length, beyond = (
            np.abs(part[0]) for part in self.compare(self.features[[row]])
        )
        excess = np.where(np.isnan(excess), np.inf, excess * (excess > _SMALLEST_EXCESS))
        values = (self.features if self.values is None else self.values)[row]
        order = [c for c in np.lexsort((-distances, -excess)) if values[c] is not None]
        outside = [c for c in order if excess[c] > 0]
        kind = {"logits": "label", "input": "input"}.get(self.layer, "feature")
        ranges = [
            ColumnRange(
                self.names[c] if self.names else f"{kind} {c}",
                # By its text, or 0.1 in float32 would become 0.10000000149.
                values[c] if isinstance(values[c], str) else float(str(values[c])),
                *_plain_ends(float(self.low[c]), float(self.high[c])),
                float(excess[c]),
            )
            for c in outside or order[: _SHOWN_COLUMNS if self.names else 0]
        ]
        if beyond > 0 or not ranges:
            ends = _plain_ends(*map(float, self.whole_range))
            whole = ColumnRange(_DISTANCE, float(length), *ends, float(beyond))
            ranges.insert(len(outside), whole)  # a column that is out of range says more
        return self._reason(row, term="excess", ranges=tuple(ranges))

    def columns(self) -> dict[str, Any]:
        """Return `unusual`: for each sample what is furthest out of its range; empty if nothing."""
        return self._table({"unusual": [reason.largest() for reason in self]})


def _plain_ends(low: float, high: float) -> tuple[float, float]:
    """Return the ends of a range without the room for rounding that it has."""
    unit = max(high - low, abs(high) * 1e-6) or 1.0
    ends = [round(end / unit, 5) * unit + 0.0 for end in (low, high)]  # NaN of a word
    low, high = (float(f"{end:.{3 + len(f'{abs(end) / unit:.0f}')}g}") for end in ends)
    return low, high
