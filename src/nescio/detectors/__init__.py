"""Detectors: a score, what it learns, a threshold and what can be promised about it.

Every module of this package is searched for detectors, so that a new one needs no other line. All
of them are attributes of this package, and of `nescio`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from nescio.detectors.base import Detector, NotCalibratedError
from nescio.detectors.inputs import Arrays
from nescio.detectors.registry import (
    DETECTORS,
    as_detector,
    build_detector,
    find_own,
    parse_detector,
    register,
)
from nescio.detectors.saving import load
from nescio.detectors.verdicts import Assessment

if TYPE_CHECKING:  # for type checkers and editors, which do not see the search below
    from nescio.detectors.activations import *  # noqa: F403
    from nescio.detectors.combined import *  # noqa: F403
    from nescio.detectors.features import *  # noqa: F403
    from nescio.detectors.label_scores import *  # noqa: F403
    from nescio.detectors.mahalanobis import *  # noqa: F403
    from nescio.detectors.neighbours import *  # noqa: F403
    from nescio.detectors.outliers import *  # noqa: F403

find_own()
globals().update({kind.__name__: kind for kind in DETECTORS.values()})

__all__ = [
    "DETECTORS",
    "Arrays",
    "Assessment",
    "Detector",
    "NotCalibratedError",
    "as_detector",
    "build_detector",
    "load",
    "parse_detector",
    "register",
]
