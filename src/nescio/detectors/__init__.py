"""Detectors: a score, what it learns, a threshold and what can be promised about it.

A higher score means more in-distribution. `predict` gives +1 for in-distribution and -1 for out;
a sample is in if its score is at least the threshold.

Every module of this package is searched for detectors, so that a new one needs no other line. All
of them are attributes of this package, and of `nescio`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from nescio.detectors.arrays import Arrays
from nescio.detectors.assessment import Assessment
from nescio.detectors.base import Detector
from nescio.detectors.naming import as_detector, build_detector, parse_detector
from nescio.detectors.profile import Profile
from nescio.detectors.registry import DETECTORS, find_own, register
from nescio.detectors.saving import load
from nescio.detectors.steps import NotCalibratedError

if TYPE_CHECKING:  # for type checkers and editors, which do not see the search below
    from nescio.detectors.ash import ASH as ASH
    from nescio.detectors.calibrated_max import CalibratedMax as CalibratedMax
    from nescio.detectors.co_occurrence import CoOccurrence as CoOccurrence
    from nescio.detectors.combined import Combined as Combined
    from nescio.detectors.dice import DICE as DICE
    from nescio.detectors.entropy import Entropy as Entropy
    from nescio.detectors.gen import GEN as GEN
    from nescio.detectors.gradnorm import GradNorm as GradNorm
    from nescio.detectors.head_joint_energy import HeadJointEnergy as HeadJointEnergy
    from nescio.detectors.isolation_forest import IsolationForest as IsolationForest
    from nescio.detectors.label_gap import LabelGap as LabelGap
    from nescio.detectors.label_neighbours import LabelNeighbours as LabelNeighbours
    from nescio.detectors.label_scores import (
        MSP as MSP,
        JointEnergy as JointEnergy,
        MaxEnergy as MaxEnergy,
        MaxLogit as MaxLogit,
        MaxProb as MaxProb,
        SumLogit as SumLogit,
        SumProb as SumProb,
        TopKJointEnergy as TopKJointEnergy,
        TopKLogit as TopKLogit,
        TopKProb as TopKProb,
    )
    from nescio.detectors.linear_probe import LinearProbe as LinearProbe
    from nescio.detectors.local_outlier_factor import LocalOutlierFactor as LocalOutlierFactor
    from nescio.detectors.mahalanobis import (
        Mahalanobis as Mahalanobis,
        PerturbedMahalanobis as PerturbedMahalanobis,
    )
    from nescio.detectors.mixed import Mixed as Mixed
    from nescio.detectors.nearest_neighbours import NearestNeighbours as NearestNeighbours
    from nescio.detectors.nnguide import NNGuide as NNGuide
    from nescio.detectors.odin import ODIN as ODIN
    from nescio.detectors.react import ReAct as ReAct
    from nescio.detectors.relative_mahalanobis import RelativeMahalanobis as RelativeMahalanobis
    from nescio.detectors.scale import Scale as Scale
    from nescio.detectors.vim import ViM as ViM

find_own()
globals().update({kind.__name__: kind for kind in DETECTORS.values()})

__all__ = [
    "DETECTORS",
    "Arrays",
    "Assessment",
    "Detector",
    "NotCalibratedError",
    "Profile",
    "as_detector",
    "build_detector",
    "load",
    "parse_detector",
    "register",
]
