"""Scores as torch modules: what a detector's `_score` computes, in a form that can be exported.

A detector whose `_score` accepts torch tensors declares it (`traceable`) and needs nothing here.
Any other detector needs a function in `SCORES`.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from nescio import scores
from nescio.calibration import Scores
from nescio.detectors import Arrays, Detector
from nescio.detectors.base import require_calibration
from nescio.detectors.combined import Combined, reference_limits, reference_scores, tail_scale
from nescio.detectors.features import SMALLEST_LENGTH
from nescio.errors import ExportError

_LARGEST_BANK = 256 * 2**20  # bytes
_DECIDE_SHAPES = ("starts_",)  # learned arrays that a graph needs as plain numbers
_NEEDS_GRADIENT = (
    "it scores an input that was perturbed along the network's gradient, which a graph of one "
    "forward pass cannot compute"
)
_INSTEAD = (
    "Fit mahalanobis on the same features, or calibrate joint_energy on the logits, and export "
    "that; or serve it from Python: nescio serve."
)
_WHY_NOT = {
    "odin": f"{_NEEDS_GRADIENT}. Calibrate joint_energy on the same outputs and export that.",
    "mahalanobis_perturbed": f"{_NEEDS_GRADIENT}. Fit mahalanobis, without the perturbation, and "
    "export that.",
    "lof": f"it searches the training data for neighbours. {_INSTEAD}",
    "isolation_forest": f"it walks through trees. {_INSTEAD}",
}
_NOT_TRACEABLE = (
    "its _score takes NumPy arrays. If it uses only nescio.scores and operators that torch tensors "
    "have too, set traceable = True in its class."
)


class Score(nn.Module):
    """The score of a detector on tensors, by its own `_score` or by a function of `SCORES`.

    Arrays that the detector has learned become tensors, which move with the module.
    """

    def __init__(
        self, detector: Detector, compute: Callable[[Any, Arrays], Tensor] | None = None
    ) -> None:
        super().__init__()
        self.detector = copy.copy(detector)
        self.compute: Any = type(detector)._score if compute is None else compute
        arrays = {name: getattr(detector, name) for name in detector.learned}
        self.learned = [
            name
            for name, array in arrays.items()
            if getattr(array, "ndim", 0) > 0 and name not in _DECIDE_SHAPES
        ]
        for name in self.learned:
            # A copy: the arrays of a loaded detector are not writable.
            self.register_buffer(name, torch.from_numpy(np.array(arrays[name])))

    def forward(self, arrays: Arrays) -> Tensor:
        """Return one score per row."""
        for name in self.learned:
            setattr(self.detector, name, self.get_buffer(name))
        scores: Tensor = self.compute(self.detector, arrays)
        return scores


# --- detectors that learn from features -----------------------------------------------------------


def _mahalanobis(detector: Any, arrays: Arrays) -> Tensor:
    """Whiten in the precision of the input, and compute distances in float64."""
    rows = _normalised(arrays[detector.layer], detector)
    parts = (detector.center_, detector.whitening_, detector.means_)
    return _minus_distances(rows, *parts, nearest=detector.aggregate == "max")


def _relative_mahalanobis(detector: Any, arrays: Arrays) -> Tensor:
    """Compute all in float64: a small difference of two large distances."""
    rows = _normalised(arrays[detector.layer].double(), detector)
    scores = _minus_distances(rows, detector.center_, detector.whitening_, detector.means_)
    if not detector.overall_whitening_.numel():  # without labels, nothing is subtracted
        return scores
    whitened = _affine(rows, detector.overall_center_, detector.overall_whitening_)
    return scores + (whitened * whitened).sum(1)


def _minus_distances(
    rows: Tensor, center: Tensor, whitening: Tensor, means: Tensor, *, nearest: bool = True
) -> Tensor:
    """Return minus the squared distances of rows to means: to the nearest, or summed over all."""
    whitened = _affine(rows, center, whitening)  # (n_samples, rank)
    norms = (whitened * whitened).sum(1)
    mean_norms = (means * means).sum(1)
    if nearest:
        cross = whitened @ means.T  # (n_samples, n_labels)
        return -(norms + (mean_norms - 2 * cross).amin(1)).clamp(min=0.0)
    cross = whitened @ means.sum(0)  # (n_samples,)
    return 2 * cross - len(means) * norms - mean_norms.sum()


def _nearest_neighbours(detector: Any, arrays: Arrays) -> Tensor:
    unit = _unit_rows(arrays[detector.layer])
    kth = _similarities(unit, detector.bank_).topk(detector.k, dim=1).indices[:, -1]
    # Of the transposed bank, as in the product: the graph holds it once.
    difference = unit.double() - detector.bank_.T.index_select(1, kth).T.double()
    distances = (difference * difference).sum(1).sqrt()
    directed = (unit != 0).any(1)
    return -torch.where(directed, distances, math.sqrt(2))


def _label_neighbours(detector: Any, arrays: Arrays) -> Tensor:
    sizes = np.diff(detector.starts_)
    learned = np.flatnonzero(sizes).tolist()  # the labels with training samples
    similarities = _similarities(_unit_rows(arrays[detector.layer]), detector.bank_)
    nearest = [
        similarities.index_select(1, members).topk(min(detector.k, len(members)), dim=1).values
        for members in torch.split(detector.members_, sizes[learned].tolist())
    ]
    means = torch.stack([values.double().mean(1) for values in nearest], 1)
    weights = scores.label_energy(arrays.logits.double())[:, learned]
    total = weights.sum(1, keepdim=True)
    weights = torch.where(total > 0, weights / _or_one(total[:, 0]), 1 / len(learned))
    return (weights * means).sum(1)


def _nnguide(detector: Any, arrays: Arrays) -> Tensor:
    similarities = _similarities(_unit_rows(arrays[detector.layer]), detector.bank_)
    guidance = similarities.topk(detector.k, dim=1).values.double().mean(1)
    energies: Tensor = scores.joint_energy(arrays.logits)
    return guidance * energies.double()


def _linear_probe(detector: Any, arrays: Arrays) -> Tensor:
    unit = _unit_rows(arrays[detector.layer])
    outputs: Tensor = _affine(unit, detector.center_, detector.weights_) + detector.shares_
    positive = outputs.clamp(min=0.0)
    return (positive * positive).sum(1) + outputs.amax(1).clamp(max=0.0)


def _out_of_range(detector: Any, arrays: Arrays) -> Tensor:
    def moved_of(rows: Tensor) -> Tensor:
        moved: Tensor = (rows - detector.mean_) / detector.scale_
        return moved

    rows: Tensor = arrays[detector.layer].double()
    moved = torch.where(torch.isneginf(rows), 0.0, moved_of(rows))
    lengths = ((moved * moved).mean(1).sqrt() + SMALLEST_LENGTH).log()
    low, high = detector.lengths_
    beyond = (lengths - lengths.clamp(low, high)) / (high - low)
    outside = moved - moved.clamp(moved_of(detector.low_), moved_of(detector.high_))
    squares: Tensor = (outside * outside).mean(1) + beyond * beyond
    return 0.0 - 100 * squares.sqrt()


def _vim(detector: Any, arrays: Arrays) -> Tensor:
    left = _affine(arrays[detector.layer], detector.center_, detector.outside_)
    energies: Tensor = scores.joint_energy(arrays.logits)
    return energies.double() - float(detector.scale_) * (left * left).sum(1).sqrt()


def _affine(rows: Tensor, center: Tensor, matrix: Tensor) -> Tensor:
    """Return (rows - center) @ matrix, in the precision of the rows; the result is float64."""
    coarse = center.to(rows.dtype)
    fine = (center - coarse).to(rows.dtype)
    return ((rows - coarse - fine) @ matrix.to(rows.dtype)).double()


def _similarities(unit: Tensor, bank: Tensor) -> Tensor:
    """Return the cosine similarities of rows to the training samples: (n_samples, n_bank)."""
    return unit.to(bank.dtype) @ bank.T


def _normalised(rows: Tensor, detector: Any) -> Tensor:
    return _unit_rows(rows) if detector.normalise else rows


def _unit_rows(rows: Tensor) -> Tensor:
    """Scale rows to length 1, as `nescio.detectors.features.unit_rows` does."""
    wide = rows.double()
    wide = wide / _or_one(wide.abs().amax(1))
    wide = wide / _or_one((wide * wide).sum(1).sqrt())
    return wide.to(rows.dtype)


def _or_one(divisors: Tensor) -> Tensor:
    return torch.where(divisors > 0, divisors, 1.0)[:, None]


# --- a combination of detectors -------------------------------------------------------------------


class CombinedScore(nn.Module):
    """The combination of the scores of other modules, one for each part."""

    def __init__(self, detector: Combined) -> None:
        super().__init__()
        require_calibration(detector)
        try:
            self.scorers = nn.ModuleList(map(scorer_of, detector.detectors_))
        except ExportError as error:
            raise ExportError(
                f"combined cannot be exported with one of its parts: {error}"
            ) from error
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
            self._p_values(part, score(arrays).double()) for part, score in enumerate(self.scorers)
        ]
        p_values = torch.stack(columns, 1)  # (n_samples, n_parts)
        return -(self.get_buffer("weights") / p_values).sum(1)

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


# --- a search among ascending numbers, in a form that can be exported -----------------------------


def search_table(rows: Sequence[Scores]) -> tuple[Tensor, Tensor, int]:
    """Return a table for `count_passed`, the place where each row starts, and the steps to take.

    A row holds its numbers from its second place on, then +inf.
    """
    n_steps = max(map(len, rows)).bit_length()
    table = np.full((len(rows), 2**n_steps), np.inf)
    for row, numbers in zip(table, rows, strict=True):
        row[1 : 1 + len(numbers)] = numbers
    return torch.from_numpy(table.reshape(-1)), torch.arange(len(rows)) * 2**n_steps, n_steps


def count_passed(table: Tensor, start: Tensor, n_steps: int, scores: Tensor) -> Tensor:
    """Return how many numbers of a row of the table are at or below each score.

    A binary search with a fixed number of steps, one lookup per score in each. Memory grows with
    the scores, not with the scores times the numbers. A score of +inf passes every +inf too.
    """
    place = start + torch.zeros_like(scores, dtype=torch.int64)  # of the last number passed
    for step in reversed(range(n_steps)):
        further = place + 2**step
        place = torch.where(table.index_select(0, further) <= scores, further, place)
    return place - start


# --- by detector ----------------------------------------------------------------------------------


SCORES: dict[str, Callable[[Any, Arrays], Tensor]] = {
    "mahalanobis": _mahalanobis,
    "relative_mahalanobis": _relative_mahalanobis,
    "knn": _nearest_neighbours,
    "label_neighbours": _label_neighbours,
    "linear_probe": _linear_probe,
    "out_of_range": _out_of_range,
    "nnguide": _nnguide,
    "vim": _vim,
}
"""By detector name: its score, from a detector whose arrays are tensors and what it reads."""


def scorer_of(detector: Detector) -> nn.Module:
    """Return the module that computes a detector's scores; raise with the reason if none can."""
    if isinstance(detector, Combined):
        return CombinedScore(detector)
    if detector.name not in SCORES and not detector.traceable:
        raise ExportError(
            f"{detector.name or type(detector).__name__} cannot be exported: "
            f"{_WHY_NOT.get(detector.name, _NOT_TRACEABLE)}"
        )
    bank: Any = getattr(detector, "bank_", None)
    if bank is not None and bank.nbytes > _LARGEST_BANK:
        raise ExportError(
            f"{detector.name} cannot be exported: its {len(bank):,} training samples would be "
            f"{bank.nbytes / 2**20:,.0f} MB of the graph, and {_LARGEST_BANK // 2**20} MB is the "
            f"limit. Fit it with bank={_LARGEST_BANK // bank[0].nbytes} or less."
        )
    return Score(detector, SCORES.get(detector.name))
