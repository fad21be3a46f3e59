"""Scores as torch modules: what a detector's `_score` computes, in a form that can be exported.

A detector whose `_score` accepts torch tensors declares it (`traceable`) and needs nothing here.
Any other detector needs a module in `SCORERS`.
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
from nescio.calibration.thresholds import tail_scale
from nescio.detectors import Arrays, Detector, NotCalibratedError
from nescio.detectors.combined import Combined, reference_limits, reference_scores
from nescio.detectors.mahalanobis import Gaussians
from nescio.errors import ExportError

_LARGEST_BANK = 256 * 2**20  # bytes
_PRECISIONS = {32: torch.float32, 64: torch.float64}
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
_RULES: dict[str, Callable[[Tensor], Tensor]] = {
    "fisher": torch.log,
    "cauchy": lambda p: -torch.cos(math.pi * p) / torch.sin(math.pi * p),
    "harmonic": lambda p: -1 / p,
    "bonferroni": torch.log,
}


class TracedScore(nn.Module):
    """A detector's own `_score` on tensors; the arrays that it has learned become tensors too."""

    def __init__(self, detector: Detector) -> None:
        super().__init__()
        self.detector = copy.copy(detector)
        arrays = {name: getattr(detector, name) for name in detector.learned}
        self.learned = [name for name, array in arrays.items() if getattr(array, "ndim", 0) > 0]
        for name in self.learned:
            # A copy: the arrays of a loaded detector are not writable.
            self.register_buffer(name, torch.from_numpy(np.array(arrays[name])))

    def forward(self, arrays: Arrays) -> Tensor:
        """Return one score per row."""
        for name in self.learned:
            setattr(self.detector, name, self.get_buffer(name))
        scores: Tensor = self.detector._score(arrays)  # type: ignore[assignment]
        return scores


# --- detectors that learn from features -----------------------------------------------------------


class _Affine(nn.Module):
    """(inputs - center) @ matrix, in the precision of the inputs; the result is float64."""

    def __init__(self, center: Any, matrix: Any) -> None:
        super().__init__()
        wide, matrix = _tensor(center), _tensor(matrix)
        # In both precisions, so that a graph holds only what it needs.
        for bits, dtype in _PRECISIONS.items():
            coarse = wide.to(dtype)
            self.register_buffer(f"coarse{bits}", coarse)
            self.register_buffer(f"fine{bits}", (wide - coarse).to(dtype))
            self.register_buffer(f"matrix{bits}", matrix.to(dtype))

    def forward(self, inputs: Tensor) -> Tensor:
        bits = 64 if inputs.dtype == torch.float64 else 32
        coarse, fine, matrix = (
            self.get_buffer(f"{name}{bits}") for name in ("coarse", "fine", "matrix")
        )
        return ((inputs - coarse - fine) @ matrix).double()


class _MinusDistances(nn.Module):
    """`minus_distances` of rows to Gaussians: to the nearest, or summed over all."""

    def __init__(self, gaussians: Gaussians, *, nearest: bool = True) -> None:
        super().__init__()
        self.whitened = _Affine(gaussians.center, gaussians.whitening)
        means = _tensor(gaussians.means)
        self.register_buffer("means", means if nearest else means.sum(0)[None])
        self.register_buffer("mean_norms", (means * means).sum(1))
        self.n_means = len(means)
        self.nearest = nearest

    def forward(self, inputs: Tensor) -> Tensor:
        z: Tensor = self.whitened(inputs)  # (n_samples, rank)
        norms = (z * z).sum(1)
        mean_norms = self.get_buffer("mean_norms")
        cross = z @ self.get_buffer("means").T  # (n_samples, n_labels), or one column for the sum
        if self.nearest:
            return -(norms + (mean_norms - 2 * cross).amin(1)).clamp(min=0.0)
        return 2 * cross[:, 0] - self.n_means * norms - mean_norms.sum()


class MahalanobisScore(nn.Module):
    """`Mahalanobis._score`: whitening in the precision of the input, distances in float64."""

    def __init__(self, detector: Any) -> None:
        super().__init__()
        gaussians = Gaussians(detector.center_, detector.whitening_, detector.means_)
        self.minus_distances = _MinusDistances(gaussians, nearest=detector.aggregate == "max")
        self.layer, self.normalise = detector.layer, detector.normalise

    def forward(self, arrays: Arrays) -> Tensor:
        """Return one score per row of features."""
        inputs: Tensor = arrays[self.layer]
        found: Tensor = self.minus_distances(_unit_rows(inputs) if self.normalise else inputs)
        return found


class RelativeMahalanobisScore(nn.Module):
    """`RelativeMahalanobis._score`, in float64."""

    def __init__(self, detector: Any) -> None:
        super().__init__()
        labels, overall = detector._gaussians()
        self.labels = _MinusDistances(labels)
        # Without labels, nothing was subtracted.
        self.overall = _MinusDistances(overall) if overall.whitening.size else None
        self.layer, self.normalise = detector.layer, detector.normalise

    def forward(self, arrays: Arrays) -> Tensor:
        """Return one score per row of features."""
        inputs: Tensor = arrays[self.layer].double()
        inputs = _unit_rows(inputs) if self.normalise else inputs
        found: Tensor = self.labels(inputs)
        return found if self.overall is None else found - self.overall(inputs)


class NearestNeighboursScore(nn.Module):
    """`NearestNeighbours._score`: the training samples are a constant of the graph."""

    def __init__(self, detector: Any) -> None:
        super().__init__()
        self.register_buffer("bank", _bank_of(detector))
        self.layer, self.k = detector.layer, detector.k

    def forward(self, arrays: Arrays) -> Tensor:
        """Return one score per row of features."""
        unit, bank = _unit_rows(arrays[self.layer]), self.get_buffer("bank")
        products = unit.to(bank.dtype) @ bank.T  # (n_samples, n_bank)
        kth = products.topk(self.k, dim=1).indices[:, -1]
        difference = unit.double() - bank.index_select(0, kth).double()
        distances = (difference * difference).sum(1).sqrt()
        directed = (unit != 0).any(1)
        return -torch.where(directed, distances, math.sqrt(2))


class LabelNeighboursScore(nn.Module):
    """`LabelNeighbours._score`: the training samples are a constant of the graph."""

    def __init__(self, detector: Any) -> None:
        super().__init__()
        self.register_buffer("bank", _bank_of(detector))
        self.layer, self.k = detector.layer, detector.k
        sizes = np.diff(detector.starts_)
        self.known = np.flatnonzero(sizes).tolist()
        self.sizes = sizes[self.known].tolist()
        self.register_buffer("members", torch.from_numpy(detector.members_.copy()))

    def forward(self, arrays: Arrays) -> Tensor:
        """Return one score per row of features and logits."""
        bank = self.get_buffer("bank")
        products = _unit_rows(arrays[self.layer]).to(bank.dtype) @ bank.T  # (n_samples, n_bank)
        similarities = [
            products.index_select(1, members).topk(min(self.k, len(members)), dim=1).values
            for members in torch.split(self.get_buffer("members"), self.sizes)
        ]
        means = torch.stack([nearest.double().mean(1) for nearest in similarities], 1)
        weights = scores.label_energy(arrays.logits.double())[:, self.known]
        total = weights.sum(1, keepdim=True)
        weights = torch.where(total > 0, weights / _or_one(total[:, 0]), 1 / len(self.known))
        return (weights * means).sum(1)


class LinearProbeScore(nn.Module):
    """`LinearProbe._score`: the product in the precision of the input, its squares in float64."""

    def __init__(self, detector: Any) -> None:
        super().__init__()
        self.outputs = _Affine(detector.center_, detector.weights_)
        self.register_buffer("shares", _tensor(detector.shares_))
        self.layer = detector.layer

    def forward(self, arrays: Arrays) -> Tensor:
        """Return one score per row of features."""
        found: Tensor = self.outputs(_unit_rows(arrays[self.layer])) + self.get_buffer("shares")
        positive = found.clamp(min=0.0)
        return (positive * positive).sum(1) + found.amax(1).clamp(max=0.0)


class NNGuideScore(nn.Module):
    """`NNGuide._score`: the training samples are a constant of the graph."""

    def __init__(self, detector: Any) -> None:
        super().__init__()
        self.register_buffer("bank", _bank_of(detector))
        self.layer, self.k = detector.layer, detector.k

    def forward(self, arrays: Arrays) -> Tensor:
        """Return one score per row of features and logits."""
        bank = self.get_buffer("bank")
        products = _unit_rows(arrays[self.layer]).to(bank.dtype) @ bank.T  # (n_samples, n_bank)
        guidance = products.topk(self.k, dim=1).values.double().mean(1)
        energies: Tensor = scores.joint_energy(arrays.logits)
        return guidance * energies.double()


class ViMScore(nn.Module):
    """`ViM._score`: the residual in the precision of the input, its length in float64."""

    def __init__(self, detector: Any) -> None:
        super().__init__()
        self.left = _Affine(detector.center_, detector.outside_)
        self.register_buffer("scale", _tensor(detector.scale_))
        self.layer = detector.layer

    def forward(self, arrays: Arrays) -> Tensor:
        """Return one score per row of features and logits."""
        left: Tensor = self.left(arrays[self.layer])  # (n_samples, n_outside)
        energies: Tensor = scores.joint_energy(arrays.logits)
        return energies.double() - self.get_buffer("scale") * (left * left).sum(1).sqrt()


def _tensor(array: Any) -> Tensor:
    # A copy: the arrays of a loaded detector are not writable.
    return torch.from_numpy(np.array(array, dtype=np.float64))


def _bank_of(detector: Any) -> Tensor:
    """Return a detector's training samples; raise if they are too large for a graph."""
    bank = detector.bank_
    if bank.nbytes > _LARGEST_BANK:
        raise ExportError(
            f"{detector.name} cannot be exported: its {len(bank):,} training samples would be "
            f"{bank.nbytes / 2**20:,.0f} MB of the graph, and {_LARGEST_BANK // 2**20} MB is the "
            f"limit. Fit it with bank={_LARGEST_BANK // bank[0].nbytes} or less."
        )
    return torch.from_numpy(np.array(bank))


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
    at = start + torch.zeros_like(scores, dtype=torch.int64)  # the place of the last one passed
    for step in reversed(range(n_steps)):
        further = at + 2**step
        at = torch.where(table.index_select(0, further) <= scores, further, at)
    return at - start


# --- by detector ----------------------------------------------------------------------------------


def _combined(detector: Detector) -> nn.Module:
    if not hasattr(detector, "calibration_"):
        raise NotCalibratedError("combined is not calibrated: call calibrate(held_out) first.")
    try:
        scorers = [scorer_of(part) for part in detector.detectors_]
    except ExportError as error:
        raise ExportError(f"combined cannot be exported with one of its parts: {error}") from error
    return CombinedScore(detector, scorers)


SCORERS: dict[str, Callable[[Detector], nn.Module]] = {
    "combined": _combined,
    "mahalanobis": MahalanobisScore,
    "relative_mahalanobis": RelativeMahalanobisScore,
    "knn": NearestNeighboursScore,
    "label_neighbours": LabelNeighboursScore,
    "linear_probe": LinearProbeScore,
    "nnguide": NNGuideScore,
    "vim": ViMScore,
}
"""By detector name: makes the module that scores the arrays that the detector reads."""


def scorer_of(detector: Detector) -> nn.Module:
    """Return the module that computes a detector's scores; raise with the reason if none can."""
    if detector.name in SCORERS:
        return SCORERS[detector.name](detector)
    if detector.traceable:
        return TracedScore(detector)
    raise ExportError(
        f"{detector.name or type(detector).__name__} cannot be exported: "
        f"{_WHY_NOT.get(detector.name, _NOT_TRACEABLE)}"
    )
