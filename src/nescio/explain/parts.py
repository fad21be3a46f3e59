"""Why a combination of detectors flagged an input: which part did, and why."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from nescio._charts.text import cut
from nescio._io.tabular import by_name, joined
from nescio._validation import Array
from nescio.errors import InputError
from nescio.explain.explanation import Explanation, Reason
from nescio.explain.judged import Judged, JudgedRows, plain
from nescio.explain.terms import Floats

__all__ = ["PartReason", "PartsExplanation", "PartsReason"]

_DECISIVE = "largest share of the evidence"
_SHOWN_PARTS, _SHOWN_TEXTS = 5, 3
_LONGEST_NAME = 36


# --- one input --------------------------------------------------------------------------------


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
    reason : Reason, PartsReason or None
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
    reason: Reason | PartsReason | None
    nearest: tuple[int | str, ...]

    def nearest_text(self) -> str:
        """Return the nearest training samples as text; empty if they are not known."""
        return ", ".join(map(str, self.nearest))

    def more(self) -> list[str]:
        """Return what else is known about the part: nearest samples, and its largest term."""
        near = f"{self.detector}: nearest training samples {self.nearest_text()}"
        own = "" if self.reason is None else f"{self.detector} alone: {self.reason.summary()}"
        return ([near] if self.nearest else []) + ([own] if own else [])

    def cells(self) -> tuple[str, str, str]:
        """Write the score, the p-value and the share."""
        share = "" if math.isnan(self.share) else f"{self.share:.1%}"
        return f"{self.score:.5g}", f"{self.p_value:.2g}", share

    def as_dict(self) -> dict[str, Any]:
        """Return a dict for JSON, with None in place of infinity and NaN."""
        reason = None if self.reason is None else self.reason.as_dict()
        return plain(vars(self)) | {"reason": reason, "nearest": list(self.nearest)}


@dataclass(frozen=True, repr=False)
class PartsReason(Judged):
    """The score of one input, part by part.

    Attributes
    ----------
    parts : tuple of PartReason
        The largest share of the evidence first.
    """

    index_column = "part"

    parts: tuple[PartReason, ...]

    def summary(self) -> str:
        """Return one line with the part that says most against the input."""
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
        """Return the score label by label of the part with the largest share that has labels."""
        found = (part.reason.by_label() for part in self.parts if part.reason is not None)
        return next((reason for reason in found if reason is not None), None)

    def as_dict(self) -> dict[str, Any]:
        """Return a dict for JSON, with None in place of infinity and NaN."""
        return plain(vars(self)) | {"parts": [part.as_dict() for part in self.parts]}

    def rows(self) -> list[tuple[str, ...]]:
        """Return the table of the parts, the titles first."""
        titles = ("part", "score", "p-value", "share")
        return [titles, *((part.detector, *part.cells()) for part in self.parts)]

    def columns(self) -> dict[str, Any]:
        """Return one row per part: part, score, p_value and share."""
        return by_name(
            [
                {"part": one.detector, "score": one.score, "p_value": one.p_value}
                | {"share": one.share}
                for one in self.parts
            ]
        )

    def _repr_html_(self) -> str:
        from nescio.explain.showing import parts_card

        return parts_card(self)

    def plot(self, ax: Any = None, **options: Any) -> Any:
        """Draw the shares of the parts; see `ExplanationDisplay`."""
        from nescio.displays import ExplanationDisplay

        return ExplanationDisplay.from_reason(self, ax=ax, **options)

    def __repr__(self) -> str:
        rows = self.rows()[: 1 + _SHOWN_PARTS]
        width = min(_LONGEST_NAME, max(len(row[0]) for row in rows))
        lines = [self.short_headline(), cut(self.summary(), 120)]
        for name, *cells in rows:
            lines.append(f"{cut(name, width):<{width}} " + " ".join(f"{c:>11}" for c in cells))
        hidden = len(self.parts) - _SHOWN_PARTS
        lines += [f"and {hidden} more parts"] if hidden > 0 else []
        found = [text for part in self.parts for text in part.more()]
        return "\n".join([*lines, *(cut(text, 120) for text in found[:_SHOWN_TEXTS])])


# --- a batch ----------------------------------------------------------------------------------


@dataclass(frozen=True, eq=False, repr=False)
class PartsExplanation(JudgedRows):
    """What the parts of a combination say about some samples; `explanation[i]` is one of them.

    Attributes
    ----------
    detector : str
        Name of the combination.
    parts : tuple of str
        The parts, with their parameters.
    part_scores, part_p_values, shares : array of shape (n_samples, n_parts)
        As in `PartReason`.
    explanations : tuple of Explanation, PartsExplanation or None
        For each part, its own explanation, if it has one.
    nearest : tuple of array or None
        For each part, the nearest training samples of each sample, if the part knows them.
    scores, thresholds, p_values : array of shape (n_samples,)
        Of the combination.
    groups, ids : array of str of shape (n_samples,) or None
        Groups and ids of the samples, if any.
    index : pandas index or None
        The index of the pandas frame that the samples came from, for `to_pandas`.
    """

    detector: str
    parts: tuple[str, ...]
    part_scores: Floats
    part_p_values: Floats
    shares: Floats
    explanations: tuple[Explanation | PartsExplanation | None, ...]
    nearest: tuple[Array | None, ...]
    scores: Floats
    thresholds: Floats
    p_values: Floats
    groups: NDArray[np.str_] | None = None
    ids: NDArray[np.str_] | None = None
    index: Any = None

    def named(self, ids: Any, label_names: tuple[str, ...] | None, index: Any = None) -> Self:
        """Return a copy with the ids and the index of the samples and the names of the labels."""
        named = tuple(one and one.named(ids, label_names, index) for one in self.explanations)
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
            one.with_train_ids(train_ids) if isinstance(one, PartsExplanation) else one
            for one in self.explanations
        )
        return replace(self, nearest=nearest, explanations=inner)

    def __getitem__(self, row: int) -> PartsReason:
        parts = [
            PartReason(
                self.parts[at],
                float(self.part_scores[row, at]),
                float(self.part_p_values[row, at]),
                float(self.shares[row, at]),
                None if explanation is None else explanation[row],
                ()
                if near is None
                else tuple(one for one in near[row].tolist() if one not in (-1, "")),
            )
            for at, (explanation, near) in enumerate(
                zip(self.explanations, self.nearest, strict=True)
            )
        ]
        parts.sort(key=lambda part: -np.nan_to_num(part.share))
        return PartsReason(**self.verdict_at(row), parts=tuple(parts))

    def __iter__(self) -> Iterator[PartsReason]:
        return (self[row] for row in range(len(self)))

    def as_dict(self) -> dict[str, Any]:
        """Return a dict for JSON: the detector, and the reason of each input."""
        return {"detector": self.detector, "samples": [reason.as_dict() for reason in self]}

    def __repr__(self) -> str:
        return self.table(_DECISIVE, self._first)

    def _repr_html_(self) -> str:
        return self[0]._repr_html_() if len(self) == 1 else self.card(_DECISIVE, self._first)

    def _first(self, row: int) -> str:
        first = self[row].parts[0]
        return f"{cut(first.detector, 30)} {first.cells()[2]}".strip()

    def columns(self) -> dict[str, Any]:
        """Return the share of each part: one row per sample, one column per part."""
        shares = zip(self.parts, self.shares.T, strict=True)
        return joined(self._ids(), *({name: share} for name, share in shares))

    def plot(self, ax: Any = None, *, row: int = 0, **options: Any) -> Any:
        """Draw the shares of the parts for one sample; see `ExplanationDisplay`."""
        return self[row].plot(ax, **options)
