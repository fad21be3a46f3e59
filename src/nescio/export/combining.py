"""`Combined._score` as a torch module: the parts' p-values, and the rule."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import torch
from torch import Tensor, nn

from nescio.calibration.continuous import tail_scale
from nescio.detectors import Arrays, Detector
from nescio.detectors.combined import Combined, reference_limits, reference_scores
from nescio.errors import ExportError
from nescio.export.search import count_passed, search_table

_RULES: dict[str, Callable[[Tensor], Tensor]] = {
    "fisher": torch.log,
    "cauchy": lambda p: -torch.cos(math.pi * p) / torch.sin(math.pi * p),
    "harmonic": lambda p: -1 / p,
    "bonferroni": torch.log,
}


class CombinedScore(nn.Module):
    """The combination of scores that other modules compute, one for each part."""

    def __init__(self, detector: Detector, scorers: Sequence[nn.Module]) -> None:
        super().__init__()
        assert isinstance(detector, Combined)
        if detector.rule not in _RULES:
            raise ExportError(
                f"combined cannot be exported with rule={detector.rule}: it needs the quantiles of "
                "the normal distribution, which a graph does not have. Choose another rule, such "
                "as fisher."
            )
        self.rule = detector.rule
        self.scorers = nn.ModuleList(scorers)
        references = [reference_scores(part) for part in detector.detectors_]
        limits = [reference_limits(part) for part in detector.detectors_]
        table, starts, self.n_steps = search_table(references)
        self.register_buffer("table", table)
        self.register_buffer("limits", search_table(limits)[0])
        self.register_buffer("starts", starts)
        self.sizes = [len(reference) for reference in references]
        self.scales = [tail_scale(reference) for reference in references]
        self.register_buffer("weights", torch.from_numpy(detector.normalised_weights()))

    def forward(self, arrays: Arrays) -> Tensor:
        """Return one score per row."""
        columns = [
            self._p_values(at, score(arrays).double()) for at, score in enumerate(self.scorers)
        ]
        terms = _RULES[self.rule](torch.stack(columns, 1))  # (n_samples, n_parts)
        weights = self.get_buffer("weights")
        if self.rule == "bonferroni":
            return (terms - weights.log()).amin(1)
        return (weights * terms).sum(1)

    def _p_values(self, part: int, scores: Tensor) -> Tensor:
        """Return the p-values of a part's scores, as `continuous_p_values` does."""
        table, n = self.get_buffer("table"), self.sizes[part]
        start = self.get_buffer("starts")[part]

        def reference(rank: Tensor) -> Tensor:  # counted from 1
            return table.index_select(0, start + rank.clamp(1, n))

        first, last = table[start + 1], table[start + n]
        scores = torch.minimum(scores, last)
        below = count_passed(self.get_buffer("limits"), start, self.n_steps, scores)
        lower, upper = reference(below), reference(below + 1)
        between = (scores - lower).clamp(min=0.0) / torch.where(upper > lower, upper - lower, 1.0)
        gaps = (first - scores).clamp(min=0.0) / self.scales[part]
        return torch.where(below == 0, 1 / (1 + gaps), below + between) / (n + 1)
