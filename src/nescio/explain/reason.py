"""One explained input: its verdict, and its score label by label or part by part."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, NamedTuple

from nescio._charts.results import Result, View
from nescio._charts.style import cut
from nescio._charts.svg import CARD_BARS, BarRow, Markup
from nescio._io.results import by_name

_SHOWN_LABELS = 8
_SHOWN_TEXTS = 3
_LONGEST_NAME = 36


def plain(values: dict[str, Any]) -> dict[str, Any]:
    """Return the values for JSON, with None in place of infinity and NaN."""
    return {
        name: None if isinstance(value, float) and not math.isfinite(value) else value
        for name, value in values.items()
    }


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

    def cells(self) -> tuple[str, str, str, str]:
        """Write the term, the share, the median and the rank median."""
        share = f"{self.share:.1%}" if self.share else "-"  # a label that does not count has none
        share = "" if math.isnan(self.share) else share
        return _number(self.term), share, _number(self.median), _number(self.rank_median)


def _number(value: float) -> str:
    """Write a number with three decimals, or as a power of ten if it is tiny."""
    return f"{value:.1e}" if 0 < abs(value) < 0.0005 else f"{value:.3f}"


@dataclass(frozen=True)
class PartReason:
    """What one part of a combination says about one input.

    Attributes
    ----------
    detector : str
        The part, with its parameters.
    score, p_value : float
        Its score, and the p-value that enters the combined score. NaN if the input has values that
        cannot be used.
    share : float
        Its share of the evidence against the input. NaN if no part has any.
    reason : Reason or None
        The score of the part label by label, if it is made of labels; for a part that is a
        combination, its parts.
    nearest : tuple
        The nearest training samples, if the part knows them: their rows in the training data, or
        their ids (`PartsExplanation.with_train_ids`).
    """

    detector: str
    score: float
    p_value: float
    share: float
    reason: Reason | None
    nearest: tuple[int | str, ...]

    def notes(self) -> list[str]:
        """Return what else is known about the part: nearest samples, and its largest term."""
        texts = []
        if self.nearest:
            nearest = ", ".join(map(str, self.nearest))
            texts.append(f"{self.detector}: nearest training samples {nearest}")
        if self.reason is not None:
            texts.append(f"{self.detector} alone: {self.reason.summary()}")
        return texts

    def cells(self) -> tuple[str, str, str]:
        """Write the score, the p-value and the share."""
        share = "" if math.isnan(self.share) else f"{self.share:.1%}"
        return f"{self.score:.5g}", f"{self.p_value:.2g}", share

    def as_dict(self) -> dict[str, Any]:
        """Return a dict for JSON, with None in place of infinity and NaN."""
        reason = None if self.reason is None else self.reason.as_dict()
        return plain(vars(self)) | {"reason": reason, "nearest": list(self.nearest)}


@dataclass(frozen=True, repr=False)
class Reason(Result):
    """The verdict on one input, and its score label by label, or part by part of a combination.

    Attributes
    ----------
    detector : str
        Name of the detector.
    id, group : str or None
        Id and group of the input, if known.
    score, threshold, p_value : float
    in_distribution : bool
        The verdict.
    term : str
        Name of the terms of the labels, such as "energy"; empty for a combination.
    labels : tuple of LabelTerm
        The largest term first; empty for a combination.
    parts : tuple of PartReason
        The parts of a combination, the largest share of the evidence first.
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

    @property
    def index_column(self) -> str:  # type: ignore[override]
        """The column that names the rows of the table."""
        return "part" if self.parts else "label"

    def headline(self) -> str:
        """Return one line with the verdict, the score and the threshold."""
        verdict = "in-distribution" if self.in_distribution else "OUT"
        against = "at least" if self.in_distribution else "below"
        group = "" if self.group is None else f", group {self.group}"
        return (
            f"{verdict}. {self.detector} {self.score:.5g} is {against} the threshold "
            f"{self.threshold:.5g} (p-value {self.p_value:.4f}{group})."
        )

    def summary(self) -> str:
        """Return one line: the largest term next to the usual one, or the most telling part."""
        if self.parts:
            return self._parts_summary()
        bad = [label.label for label in self.labels if math.isnan(label.term)]
        if bad:
            return f"Its logits hold NaN or infinity: {', '.join(bad[:_SHOWN_LABELS])}."
        top = self.labels[0]
        return (
            f"Its largest {self.term} is {top.term:.3g} ({top.label}); "
            f"the median over in-distribution inputs is {top.rank_median:.3g}."
        )

    def _parts_summary(self) -> str:
        first = self.parts[0]
        if math.isnan(first.p_value):
            return "It has values that the detector cannot use: NaN or infinity."
        if math.isnan(first.share):
            return "No part has any evidence against it."
        return (
            f"{first.detector} has {first.share:.0%} of the evidence against it: its score of "
            f"{first.score:.5g} has the p-value {first.p_value:.2g}."
        )

    def by_label(self) -> Reason | None:
        """Return the score label by label: this one, or that of the first part that has labels."""
        if self.labels:
            return self
        reasons = (part.reason.by_label() for part in self.parts if part.reason is not None)
        return next((reason for reason in reasons if reason is not None), None)

    def most_telling(self, n_labels: int) -> tuple[LabelTerm, ...]:
        """Return the labels with the largest term or median, largest term first."""

        def height(label: LabelTerm) -> float:
            return math.inf if math.isnan(label.term) else max(label.term, label.median)

        order = sorted(self.labels, key=height, reverse=True)
        return tuple(sorted(order[:n_labels], key=lambda label: label.rank))

    @property
    def piece(self) -> str:
        """What the score was split into: the terms of labels, or shares of the evidence."""
        return self.term or "share of the evidence"

    def largest(self) -> str:
        """Return the three labels with the largest terms, or the part with the largest share."""
        if self.parts:
            return f"{cut(self.parts[0].detector, 30)} {self.parts[0].cells()[2]}".strip()
        return ", ".join(f"{cut(label.label, 24)} {label.term:.3g}" for label in self.labels[:3])

    def others(self, shown: tuple[LabelTerm, ...]) -> str:
        """Return the number and the share of the labels that are not shown; empty if none."""
        left = [label for label in self.labels if label not in shown]
        if not left:
            return ""
        share = sum(label.share for label in left)
        what = f"{len(left):,} other label{'s' if len(left) > 1 else ''}"
        return what if math.isnan(share) else f"{what}: {share:.1%}"

    def as_dict(self) -> dict[str, Any]:
        """Return a dict for JSON, with None in place of infinity and NaN."""
        values = plain(vars(self))
        if self.parts:
            del values["term"], values["labels"]
            return values | {"parts": [part.as_dict() for part in self.parts]}
        del values["parts"]
        return values | {"labels": [label.as_dict() for label in self.labels]}

    def columns(self) -> dict[str, Any]:
        """Return one row per label or part.

        Of a label: label, term, share, median, rank and rank_median. Of a part: part, score,
        p_value and share.
        """
        if self.parts:
            return by_name(
                [
                    {"part": p.detector, "score": p.score, "p_value": p.p_value, "share": p.share}
                    for p in self.parts
                ]
            )
        return by_name([label._asdict() for label in self.labels])

    def _view(self) -> View:
        rows: list[tuple[str, ...]]
        if self.parts:
            titles = ["part", "score", "p_value", "share"]
            rows = [(cut(part.detector, _LONGEST_NAME), *part.cells()) for part in self.parts]
            notes = [text for part in self.parts for text in part.notes()][:_SHOWN_TEXTS]
        else:
            shown = self.most_telling(_SHOWN_LABELS)
            titles = ["label", self.term, "share", "median", "rank median"]
            rows = [(cut(label.label, 24), *label.cells()) for label in shown]
            notes = [self.others(shown)]
        by_label = self.by_label()
        return View(
            ("" if self.id is None else f"{cut(self.id, 40)}: ") + self.headline(),
            self.summary(),
            dict(zip(titles, zip(*rows, strict=True), strict=True)),
            charts=lambda: [] if by_label is None else [_label_bars(by_label)],
            notes=notes,
        )

    def plot(self, ax: Any = None, **options: Any) -> Any:
        """Draw the terms of the most telling labels, or the parts; see `ExplanationDisplay`."""
        from nescio.displays import ExplanationDisplay

        return ExplanationDisplay.from_reason(self, ax=ax, **options)


def _label_bars(reason: Reason) -> Markup:
    """Draw a bar per label, with a mark at its median; nothing if a term is not positive."""
    shown = reason.most_telling(_SHOWN_LABELS)
    if not all(math.isfinite(label.term) and label.term >= 0 for label in shown):
        return Markup("")
    rows = [
        BarRow(
            label.label,
            label.term,
            f"{label.term:.3g}",
            f"{label.label}: {label.term:.3g}, in-distribution median {label.median:.3g}",
            "in" if reason.in_distribution else "out",
            max(label.median, 0.0),
        )
        for label in shown
    ]
    name = f"The {reason.term} of each label; the mark is its in-distribution median"
    return CARD_BARS.draw(rows, name=name)
