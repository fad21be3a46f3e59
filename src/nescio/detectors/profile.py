"""What the calibration data looked like: how often labels fire, and the usual terms of a score."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Self

import numpy as np
from numpy.typing import NDArray

from nescio._validation import Array, BoolArray
from nescio.calibration import Firing
from nescio.explain import Medians, Terms


@dataclass(frozen=True, eq=False)
class Profile:
    """What the calibration data looked like.

    Attributes
    ----------
    firing : Firing or None
        How often each label fired, which `nescio.monitor` compares with. None without logits.
    medians : Medians or None
        The medians of the score's terms, which `explain` compares with. None if the score is not
        made of labels.
    """

    firing: Firing | None = None
    medians: Medians | None = None

    @classmethod
    def from_logits(
        cls,
        logits: Array | None,
        terms: Terms | None,
        usable: BoolArray,
        groups: NDArray[np.str_] | None = None,
    ) -> Self:
        """Summarise the logits of the calibration data, within groups if there are any."""
        if logits is None:
            return cls()
        medians = None if terms is None else Medians.from_logits(terms, logits, usable, groups)
        return cls(Firing.from_logits(logits), medians)

    def arrays(self) -> dict[str, Array]:
        """Return what a file keeps."""
        kept: dict[str, Array] = {}
        if self.firing is not None:
            kept["firing.counts"] = self.firing.counts
            kept["firing.n_samples"] = np.array([self.firing.n_samples], np.int64)
        if self.medians is not None:
            kept["medians.labels"] = self.medians.labels
            kept["medians.ranks"] = self.medians.ranks
        return kept

    @classmethod
    def from_arrays(
        cls, arrays: Mapping[str, Array], groups: tuple[str, ...] | None, n_labels: int | None
    ) -> Self:
        """Read what a file keeps; raise a `ValueError` if it makes no sense."""
        firing = medians = None
        if "firing.counts" in arrays:
            firing = Firing.from_arrays(arrays["firing.counts"], arrays["firing.n_samples"])
        if "medians.labels" in arrays:
            names = ("",) if groups is None else tuple(sorted(groups))
            medians = Medians(names, arrays["medians.labels"], arrays["medians.ranks"])
            medians.check(n_labels)
        return cls(firing, medians)
