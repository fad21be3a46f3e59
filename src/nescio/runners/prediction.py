"""What a wrapped model says of each input: labels, probabilities and verdict."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from nescio._validation import BoolArray, FloatArray, checked_share
from nescio.detectors.assessment import Assessment, Verdict
from nescio.outputs import Outputs
from nescio.scores import label_prob

_SHOWN_ROWS = 10
_SHOWN_LABELS = 3

LabelList = tuple[str, ...] | tuple[int, ...]


class PredictedRow(NamedTuple):
    """One input's labels (names, or positions where there are none), probabilities and verdict."""

    labels: LabelList
    probs: FloatArray  # (n_labels,)
    verdict: Verdict


@dataclass(frozen=True, eq=False, repr=False)
class Prediction:
    """Labels, probabilities and verdicts, one row a sample. Iterating gives a row at a time.

    Attributes
    ----------
    outputs : Outputs
        The model's logits and, where named, features.
    assessment : Assessment
        Scores, p-values and verdicts.
    threshold : float
        A label is predicted if its probability is above this.
    """

    outputs: Outputs
    assessment: Assessment
    threshold: float = 0.5

    def __post_init__(self) -> None:
        checked_share("threshold", self.threshold)

    @property
    def probs(self) -> FloatArray:
        """Each label's probability, of shape (n_samples, n_labels)."""
        return label_prob(self.outputs.logits)

    @property
    def labels(self) -> BoolArray:
        """Whether each label is predicted, of shape (n_samples, n_labels)."""
        # On the logits, where nothing is lost to rounding: 0 for a threshold of 0.5.
        return np.asarray(self.outputs.logits > np.log(self.threshold / (1 - self.threshold)))

    @property
    def in_distribution(self) -> BoolArray:
        """The verdict on each sample."""
        return self.assessment.in_distribution

    @property
    def flagged(self) -> NDArray[np.intp]:
        """The rows that should not be trusted."""
        return self.assessment.flagged

    def label_lists(self) -> list[LabelList]:
        """The predicted labels of each sample: their names, or positions where there are none."""
        return [self._named(row) for row in self.labels]

    def _named(self, row: BoolArray) -> LabelList:
        names, found = self.outputs.label_names, np.flatnonzero(row).tolist()
        return tuple(found) if names is None else tuple(names[at] for at in found)

    def __len__(self) -> int:
        return len(self.outputs)

    def __getitem__(self, row: int) -> PredictedRow:
        return PredictedRow(
            self._named(self.labels[row]), self.probs[row], self.assessment[int(row)]
        )

    def __iter__(self) -> Iterator[PredictedRow]:
        probs = self.probs
        for labels, row, verdict in zip(self.label_lists(), probs, self.assessment, strict=True):
            yield PredictedRow(labels, row, verdict)

    def columns(self) -> dict[str, Any]:
        """The table as columns: those of the assessment, then labels (a tuple a row)."""
        return {**self.assessment.columns(), "labels": self.label_lists()}

    def __repr__(self) -> str:
        lines = [f"{len(self):,} predicted, {len(self.flagged):,} flagged"]
        lines.append(f"{'':>8} {'score':>12} {'p_value':>9}  verdict  labels")
        ids = self.outputs.ids
        for row in range(min(_SHOWN_ROWS, len(self))):
            verdict = self.assessment[row]
            name = str(row) if ids is None else str(ids[row])
            word = "in" if verdict.in_distribution else "OUT"
            lines.append(
                f"{name:>8.8} {verdict.score:>12.5g} {verdict.p_value:>9.4f}  {word:<7}  "
                f"{self._likeliest(row)}"
            )
        if len(self) > _SHOWN_ROWS:
            lines.append(f"{'...':>8}")
        return "\n".join(lines)

    def _likeliest(self, row: int) -> str:
        """The predicted labels with their probabilities, the likeliest first."""
        logits, names = self.outputs.logits[row], self.outputs.label_names
        predicted = [at for at in np.argsort(-logits, kind="stable") if self.labels[row, at]]
        shown = predicted[:_SHOWN_LABELS]
        probs = label_prob(logits)
        told = [f"{at if names is None else names[at]} {probs[at]:.2f}" for at in shown]
        more = len(predicted) - len(shown)
        return ", ".join([*told, f"and {more} more"] if more else told) or "none"
