"""From scores to p-values and verdicts, as a torch module."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor, nn

from nescio.calibration import CUSTOM, LABEL_COUNT, Calibration
from nescio.errors import ExportError

__all__ = ["VerdictModule"]


class VerdictModule(nn.Module):
    """The p-values of scores, and whether they reach their threshold, as `Calibration` has them.

    A binary search with a fixed number of steps, one lookup per row in each, counts the calibration
    scores at or below a score. Memory grows with the batch, not with the batch times the
    calibration data.

    Parameters
    ----------
    calibration : Calibration
        With one threshold for all samples, or by label count.
    """

    def __init__(self, calibration: Calibration) -> None:
        super().__init__()
        if calibration.by == CUSTOM:
            raise ExportError(
                "the detector was calibrated by your own groups, which a graph cannot know. "
                "Calibrate it without groups, or with groups='label_count', and export that."
            )
        thresholds = list(calibration.thresholds.values())
        sizes = [threshold.n_samples for threshold in thresholds]
        self.by_count = calibration.by == LABEL_COUNT
        self.n_steps = max(sizes).bit_length()
        # One row per group: its scores from the second place on, ascending, then +inf.
        table = np.full((len(sizes), 2**self.n_steps), np.inf)
        for row, threshold in zip(table, thresholds, strict=True):
            row[1 : 1 + threshold.n_samples] = threshold.scores
        starts = torch.arange(len(sizes)) * 2**self.n_steps
        self.register_buffer("table", torch.from_numpy(table.reshape(-1)))
        self.register_buffer("starts", starts)
        self.register_buffer("sizes", torch.tensor(sizes))
        values = [threshold.value for threshold in thresholds]
        self.register_buffer("thresholds", torch.tensor(values, dtype=torch.float64))
        self.register_buffer("edges", torch.tensor(calibration.edges[1:], dtype=torch.int64))

    def forward(self, scores: Tensor, logits: Tensor | None) -> tuple[Tensor, Tensor]:
        """Return p-values and verdicts of float64 scores; by label count, pass the logits too."""
        # Of each row's group, or of the only group.
        start, size, threshold = (
            self.get_buffer(name) for name in ("starts", "sizes", "thresholds")
        )
        if self.by_count:
            assert logits is not None
            counts = (logits > 0).sum(1)  # (n_samples,)
            group = (counts[:, None] >= self.get_buffer("edges")).sum(1)
            start, size, threshold = (
                values.index_select(0, group) for values in (start, size, threshold)
            )
        table = self.get_buffer("table")
        at = start + torch.zeros_like(
            scores, dtype=torch.int64
        )  # the place of the last score passed
        for step in reversed(range(self.n_steps)):
            further = at + 2**step
            at = torch.where(table.index_select(0, further) <= scores, further, at)
        below = torch.minimum(at - start, size)  # a score of +inf has also passed every +inf
        return (below.double() + 1.0) / (size.double() + 1.0), scores >= threshold
