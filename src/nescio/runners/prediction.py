"""The prediction of a wrapped model: labels, probabilities and verdict of each sample."""

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
    """The predicted labels (names, or positions without names), probabilities and verdict."""

    predicted: LabelList
    probs: FloatArray  # (n_labels,)
    verdict: Verdict


@dataclass(frozen=True, eq=False, repr=False)
class Prediction:
    """Predicted labels, probabilities and verdicts, with one row per sample.

    Iterating gives one `PredictedRow` at a time.

    Attributes
    ----------
    outputs : Outputs
        The model's logits and, if chosen, features.
    assessment : Assessment
        Scores, p-values and verdicts.
    label_threshold : float
        A label is predicted if its probability is above this.
    """

    outputs: Outputs
    assessment: Assessment
    label_threshold: float = 0.5

    def __post_init__(self) -> None:
        checked_share("label_threshold", self.label_threshold)

    @property
    def probs(self) -> FloatArray:
        """Each label's probability, of shape (n_samples, n_labels)."""
        return label_prob(self.outputs.logits)

    @property
    def predicted(self) -> BoolArray:
        """Whether each label is predicted, of shape (n_samples, n_labels)."""
        # On the logits, where nothing is lost to rounding: 0 for a label threshold of 0.5. In
        # float32, so that a logit at the threshold is not above it however it was stored.
        odds = self.label_threshold / (1 - self.label_threshold)
        return np.asarray(self.outputs.logits.astype(np.float32) > np.float32(np.log(odds)))

    @property
    def in_distribution(self) -> BoolArray:
        """The verdict on each sample."""
        return self.assessment.in_distribution

    @property
    def flagged(self) -> NDArray[np.intp]:
        """The rows that are out-of-distribution."""
        return self.assessment.flagged

    def label_lists(self) -> list[LabelList]:
        """Return the predicted labels of each sample: their names, or positions without names."""
        return [self._named(row) for row in self.predicted]

    def _named(self, row: BoolArray) -> LabelList:
        names, found = self.outputs.label_names, np.flatnonzero(row).tolist()
        return tuple(found) if names is None else tuple(names[at] for at in found)

    def __len__(self) -> int:
        return len(self.outputs)

    def __getitem__(self, row: int) -> PredictedRow:
        return PredictedRow(
            self._named(self.predicted[row]), self.probs[row], self.assessment[int(row)]
        )

    def __iter__(self) -> Iterator[PredictedRow]:
        probs = self.probs
        for found, row, verdict in zip(self.label_lists(), probs, self.assessment, strict=True):
            yield PredictedRow(found, row, verdict)

    def columns(self) -> dict[str, Any]:
        """Return a table as columns: those of the assessment, then predicted (tuples of labels)."""
        return {**self.assessment.columns(), "predicted": self.label_lists()}

    def __repr__(self) -> str:
        lines = [f"{len(self):,} samples, {len(self.flagged):,} flagged"]
        lines.append(f"{'':>8} {'score':>12} {'p_value':>9}  verdict  predicted")
        ids, words = self.outputs.ids, self.assessment.verdicts
        for row in range(min(_SHOWN_ROWS, len(self))):
            verdict = self.assessment[row]
            name = str(row) if ids is None else str(ids[row])
            lines.append(
                f"{name:>8.8} {verdict.score:>12.5g} {verdict.p_value:>9.4f}  {words[row]:<7}  "
                f"{self._likeliest(row)}"
            )
        if len(self) > _SHOWN_ROWS:
            lines.append(f"{'...':>8}")
        return "\n".join(lines)

    def _likeliest(self, row: int) -> str:
        """Return the predicted labels with their probabilities, the likeliest first."""
        logits, names = self.outputs.logits[row], self.outputs.label_names
        predicted = [at for at in np.argsort(-logits, kind="stable") if self.predicted[row, at]]
        shown = predicted[:_SHOWN_LABELS]
        probs = label_prob(logits)
        named = [f"{at if names is None else names[at]} {probs[at]:.2f}" for at in shown]
        more = len(predicted) - len(shown)
        return ", ".join([*named, f"and {more} more"] if more else named) or "none"
