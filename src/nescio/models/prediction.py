"""The prediction of a wrapped model: labels, probabilities and verdict of each sample."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple, overload

import numpy as np
from numpy.typing import NDArray

from nescio._charts.results import Result, View, joined, shown_rows
from nescio._charts.svg import cut
from nescio._validation import BoolArray, FloatArray, checked_share
from nescio.detectors.verdicts import Assessment, Verdict
from nescio.errors import counted
from nescio.outputs import Outputs
from nescio.scores import label_prob

_SHOWN_LABELS = 3

LabelList = tuple[str, ...] | tuple[int, ...]


class PredictedRow(NamedTuple):
    """The predicted labels (names, or positions without names), probabilities and verdict."""

    predicted: LabelList
    probs: FloatArray  # (n_labels,)
    verdict: Verdict


@dataclass(frozen=True, eq=False, repr=False)
class Prediction(Result):
    """Predicted labels, probabilities and verdicts, with one row per sample.

    It holds the `outputs` of the model and the `assessment` of the detector. A label is predicted
    if its probability is above `label_threshold`. Iterating gives one `PredictedRow` at a time.
    """

    index_column = "id"

    outputs: Outputs
    assessment: Assessment
    label_threshold: float = 0.5

    def __post_init__(self) -> None:
        checked_share("label_threshold", self.label_threshold)

    @property
    def ids(self) -> NDArray[np.str_] | None:
        """The ids of the samples, if they have any."""
        return self.outputs.ids

    @property
    def index(self) -> Any:
        """The index of the pandas frame or column that the samples came from, if they did."""
        return self.outputs.index

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
    def scores(self) -> NDArray[np.float64]:
        """The score of each sample; higher means more in-distribution."""
        return self.assessment.scores

    @property
    def p_values(self) -> NDArray[np.float64]:
        """The p-value of each sample; small means suspicious."""
        return self.assessment.p_values

    @property
    def in_distribution(self) -> BoolArray:
        """The verdict on each sample."""
        return self.assessment.in_distribution

    @property
    def flagged(self) -> NDArray[np.intp]:
        """The positions of the samples that are out-of-distribution, from 0: for `.iloc`."""
        return self.assessment.flagged

    def label_lists(self) -> list[LabelList]:
        """Return the predicted labels of each sample: their names, or positions without names."""
        return [self._named(row) for row in self.predicted]

    def _named(self, row: BoolArray) -> LabelList:
        names, labels = self.outputs.label_names, np.flatnonzero(row).tolist()
        return tuple(labels) if names is None else tuple(names[label] for label in labels)

    def __len__(self) -> int:
        return len(self.outputs)

    @overload
    def __getitem__(self, row: int) -> PredictedRow: ...
    @overload
    def __getitem__(self, row: slice | Sequence[int] | NDArray[Any]) -> Prediction: ...
    def __getitem__(self, row: Any) -> PredictedRow | Prediction:
        """Return one row, or the prediction of several samples (slice, indices or mask)."""
        if not isinstance(row, int | np.integer):
            return replace(self, outputs=self.outputs[row], assessment=self.assessment[row])
        return PredictedRow(
            self._named(self.predicted[row]), self.probs[row], self.assessment[int(row)]
        )

    def __iter__(self) -> Iterator[PredictedRow]:
        return itertools.starmap(
            PredictedRow, zip(self.label_lists(), self.probs, self.assessment, strict=True)
        )

    def columns(self) -> dict[str, Any]:
        """Return a table as columns: those of the assessment, then predicted (tuples of labels).

        For the probabilities, one column per label, make a table of their own:
        `pandas.DataFrame(prediction.probs, columns=prediction.outputs.label_names)`.
        """
        return joined(self.assessment.columns(), {"predicted": self.label_lists()})

    def summary(self) -> str:
        """Return one line: how many samples there are, and how many are flagged."""
        return f"{counted(len(self), 'sample')}, {len(self.flagged):,} flagged"

    def _view(self) -> View:
        view = self.assessment._view()
        shown = self[shown_rows(self.in_distribution)]
        predicted = [cut(shown._likeliest(row), 44) for row in range(len(shown))]
        return replace(view, title=self.summary(), table={**view.table, "predicted": predicted})

    def _likeliest(self, row: int) -> str:
        """Return the predicted labels with their probabilities, the likeliest first."""
        logits, names = self.outputs.logits[row], self.outputs.label_names
        n_predicted = np.count_nonzero(self.predicted[row])
        shown = np.argsort(-logits, kind="stable")[: min(n_predicted, _SHOWN_LABELS)]
        probs = label_prob(logits)
        named = [
            f"{label if names is None else cut(names[label], 24)} {probs[label]:.2f}"
            for label in shown
        ]
        more = n_predicted - len(shown)
        return ", ".join([*named, f"and {more} more"] if more else named) or "none"
