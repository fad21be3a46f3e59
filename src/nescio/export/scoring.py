"""Scores as torch modules: what a detector's `_score` computes, in a form that can be exported.

A detector whose `_score` accepts torch tensors declares it (`traceable`) and needs nothing here.
Any other detector needs a module in `SCORERS`.
"""

from __future__ import annotations

import copy
from collections.abc import Callable

import numpy as np
import torch
from torch import Tensor, nn

from nescio.detectors import Arrays, Detector, NotCalibratedError
from nescio.errors import ExportError
from nescio.export import distances
from nescio.export.combining import CombinedScore

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
    "mixed": "it scores crops, which the graph would have to cut out of its input. Calibrate the "
    "detector that it has for crops and export that, or serve it from Python: nescio serve.",
    "lof": f"it searches the training data for neighbours. {_INSTEAD}",
    "head_joint_energy": "it searches the labels. Calibrate top_k_joint_energy on the logits and "
    "export that.",
    "isolation_forest": f"it walks through trees. {_INSTEAD}",
}
_NOT_TRACEABLE = (
    "its _score takes NumPy arrays. If it uses only nescio.scores and operators that torch tensors "
    "have too, set traceable = True in its class."
)


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
    "mahalanobis": distances.MahalanobisScore,
    "relative_mahalanobis": distances.RelativeMahalanobisScore,
    "knn": distances.NearestNeighboursScore,
    "label_neighbours": distances.LabelNeighboursScore,
    "linear_probe": distances.LinearProbeScore,
    "nnguide": distances.NNGuideScore,
    "vim": distances.ViMScore,
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
