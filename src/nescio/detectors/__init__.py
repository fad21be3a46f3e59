"""Detectors: a score, what it learns, a threshold and what can be promised about it.

A higher score means more in-distribution. `predict` gives +1 for in-distribution and -1 for out;
an input is in if its score is at least the threshold tau.
"""

from __future__ import annotations

from pathlib import Path

from nescio.detectors.artifact import Artifact
from nescio.detectors.base import Detector, NotCalibratedError
from nescio.detectors.isolation_forest import IsolationForest
from nescio.detectors.local_outlier_factor import LocalOutlierFactor
from nescio.detectors.logit import (
    MSP,
    JointEnergy,
    MaxEnergy,
    MaxLogit,
    MaxProb,
    SumLogit,
    SumProb,
)
from nescio.detectors.mahalanobis import Mahalanobis, PerturbedMahalanobis
from nescio.detectors.odin import ODIN
from nescio.detectors.top_k import TopKJointEnergy, TopKLogit, TopKProb
from nescio.errors import FileFormatError

__all__ = [
    "DETECTORS",
    "MSP",
    "ODIN",
    "Detector",
    "IsolationForest",
    "JointEnergy",
    "LocalOutlierFactor",
    "Mahalanobis",
    "MaxEnergy",
    "MaxLogit",
    "MaxProb",
    "NotCalibratedError",
    "PerturbedMahalanobis",
    "SumLogit",
    "SumProb",
    "TopKJointEnergy",
    "TopKLogit",
    "TopKProb",
    "load",
]

DETECTORS: dict[str, type[Detector]] = {
    detector.name: detector
    for detector in (
        JointEnergy,
        TopKJointEnergy,
        MaxEnergy,
        MaxLogit,
        SumLogit,
        TopKLogit,
        MaxProb,
        SumProb,
        TopKProb,
        MSP,
        ODIN,
        Mahalanobis,
        PerturbedMahalanobis,
        LocalOutlierFactor,
        IsolationForest,
    )
}


def load(path: str | Path) -> Detector:
    """Read a detector that was saved with `save`.

    A detector of your own class is read with its class's `load`: nothing in a file can say what
    code to run.
    """
    artifact = Artifact.read(path)
    if artifact.detector not in DETECTORS:
        raise FileFormatError(
            f"{path} holds a detector {artifact.detector!r}, which is not one of nescio's. "
            "Read it with its own class: YourDetector.load(path)."
        )
    return DETECTORS[artifact.detector].from_artifact(artifact, path)
