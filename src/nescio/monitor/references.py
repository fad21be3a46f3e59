"""What a stream is compared with: the calibration scores of each group, and tau among them."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from nescio._validation import BoolArray, checked_whole
from nescio.errors import InputError, MissingInputError, ParameterError, ShapeError
from nescio.monitor.chart import Part

if TYPE_CHECKING:
    from nescio.calibration import Firing
    from nescio.detectors import Detector
    from nescio.detectors.assessment import Assessment

Floats = NDArray[np.float64]
Groups = NDArray[np.str_] | None

ALL = "all"
_CLOSE = 1e-6  # of p * (n + 1) to a whole number


@dataclass(frozen=True, eq=False)
class Reference:
    """The calibration scores of one group.

    Attributes
    ----------
    scores : array of shape (n_samples,)
        Ascending.
    rank : int
        tau is the rank-th smallest.
    """

    scores: Floats
    rank: int

    @property
    def tau(self) -> float:
        """Flagged if the score is below this."""
        return float(self.scores[self.rank - 1])

    def part(self, n: int) -> Part:
        """What to expect of n inputs."""
        tied = np.flatnonzero(self.scores == self.tau)
        # Of scores that tie with tau none is flagged. The share flagged has no exact distribution
        # then; it lies between those of two ranks.
        low = self.rank if len(tied) == 1 else int(tied[0])
        return Part(n, low, self.rank, len(self.scores))


class References:
    """The calibration of all groups.

    Parameters
    ----------
    by_group : mapping of str to Reference
    grouped : bool
        False where inputs are not grouped.
    by_p_value : bool
        Whether the scores are only numbers 1 to n, as p-values alone can tell them.
    """

    def __init__(
        self, by_group: Mapping[str, Reference], *, grouped: bool, by_p_value: bool = False
    ) -> None:
        self.by_group, self.grouped, self.by_p_value = dict(by_group), grouped, by_p_value

    @classmethod
    def of(cls, detector: Detector) -> References:
        """Those of a calibrated detector."""
        calibration = detector.calibration_
        thresholds = calibration.thresholds.items()
        return cls(
            {name: Reference(t.scores, t.rank) for name, t in thresholds},
            grouped=calibration.by is not None,
        )

    @classmethod
    def of_sizes(
        cls, n_calibration: int | Mapping[str, int], rank: int | Mapping[str, int]
    ) -> References:
        """Where only the number of calibration scores and the rank of tau are known."""
        grouped = isinstance(n_calibration, Mapping)
        sizes = dict(n_calibration) if isinstance(n_calibration, Mapping) else {ALL: n_calibration}
        ranks = dict(rank) if isinstance(rank, Mapping) else dict.fromkeys(sizes, rank)
        if sizes.keys() != ranks.keys() or not sizes:
            raise ParameterError("n_calibration and rank must be of the same groups.")
        found = {}
        for name, size in sizes.items():
            n = checked_whole("n_calibration", size, minimum=1)
            if checked_whole("rank", ranks[name], minimum=1) > n:
                raise ParameterError(f"rank must be at most {n}, as n_calibration, got {rank!r}.")
            found[name] = Reference(np.arange(1.0, n + 1.0), ranks[name])
        return cls(found, grouped=grouped, by_p_value=True)

    def members(self, groups: Groups, n_samples: int) -> list[tuple[str, slice | BoolArray]]:
        """The rows of each group that has some."""
        if groups is None:
            return [(ALL, slice(0, n_samples))] if n_samples else []
        found = ((name, groups == name) for name in self.by_group)
        return [(name, rows) for name, rows in found if rows.any()]

    def checked(self, assessment: Assessment) -> tuple[Floats, Groups]:
        """The scores of an assessment that fits the calibration, and the groups, if any."""
        p_values = np.asarray(assessment.p_values, np.float64)
        scores = np.asarray(assessment.scores, np.float64)
        if p_values.ndim != 1 or scores.shape != p_values.shape:
            raise ShapeError(
                "scores and p_values must have the same shape (n_samples,), got "
                f"{scores.shape} and {p_values.shape}."
            )
        groups = self._checked_groups(assessment.groups, len(scores))
        ranked = np.empty(len(scores))
        for name, rows in self.members(groups, len(scores)):
            ranked[rows] = self._checked_scores(name, scores[rows], p_values[rows])
        return ranked, groups

    def _checked_groups(self, groups: Any, n_samples: int) -> Groups:
        if not self.grouped:
            return None
        if groups is None:
            raise MissingInputError(
                "the calibration is by group: the assessment must hold each input's group."
            )
        names = np.asarray(groups).astype(np.str_)
        if names.shape != (n_samples,):
            raise ShapeError(f"groups must have shape ({n_samples},), got {names.shape}.")
        known = np.zeros(n_samples, np.bool_)
        for _, rows in self.members(names, n_samples):
            known[rows] = True
        if not known.all():
            strange = str(names[~known][0])
            raise InputError(f"no calibration of group {strange!r}, only of {[*self.by_group]}.")
        return names

    def _checked_scores(self, name: str, scores: Floats, p_values: Floats) -> Floats:
        """The scores to rank, after a look whether the p-values are of this calibration."""
        reference = self.by_group[name].scores
        steps = p_values * (len(reference) + 1) - 1  # calibration scores at or below
        if self.by_p_value:
            below = np.rint(steps)
            within = (below >= 0) & (below <= len(reference))
            fits = within & (np.abs(steps - below) < _CLOSE)
            scores = below + 0.5  # between two numbers of calibration scores
        else:
            # NaN would come last, and has p = 1 then.
            fits = np.abs(steps - np.searchsorted(reference, scores, side="right")) < _CLOSE
            fits &= ~np.isnan(scores)
        if not fits.all():
            p = float(p_values[~fits][0])
            raise InputError(
                f"a p-value of {p:g} does not fit these {len(reference):,} calibration scores. Is "
                "the assessment by another detector, or were its numbers rounded?"
            )
        return scores


def fingerprint(detector: Detector) -> str:
    """A hash of what the detector's stream is compared with."""
    digest = hashlib.sha256(repr((detector.name, detector.label_names_)).encode())
    for name, threshold in detector.calibration_.thresholds.items():
        digest.update(f"{name}:{threshold.rank}:{threshold.n_samples};".encode())
        digest.update(np.ascontiguousarray(threshold.scores, np.float64).data)
    firing: Firing | None = detector.profile_.firing
    if firing is not None:
        digest.update(f"{firing.n_samples};".encode())
        digest.update(np.ascontiguousarray(firing.counts).data)
    return digest.hexdigest()
