"""The scores of the detectors that learn from features as torch modules."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from nescio import scores
from nescio.detectors import Arrays
from nescio.detectors.gaussians import Gaussians
from nescio.errors import ExportError

_LARGEST_BANK = 256 * 2**20  # bytes
_PRECISIONS = {32: torch.float32, 64: torch.float64}


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
        if 0 < detector.cells != detector.probes:
            raise ExportError(
                f"{detector.name} cannot be exported with an index: a graph compares with all "
                f"training samples, and it searches {detector.probes} of {detector.cells} cells. "
                "Fit it with cells=0."
            )
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
