"""What the calibration data looked like: how often labels fire, and the usual terms of a score."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Self

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
        kept: dict[str, Any] = {}
        if self.firing is not None:
            kept |= {f"firing.{name}": array for name, array in self.firing.arrays().items()}
        if self.medians is not None:
            kept |= {f"medians.{name}": array for name, array in self.medians.arrays().items()}
        return kept

    @classmethod
    def from_arrays(cls, arrays: Mapping[str, Array], groups: tuple[str, ...] | None) -> Self:
        """Read what a file keeps; raise a `ValueError` if it makes no sense."""
        kept: dict[str, dict[str, Array]] = {"firing": {}, "medians": {}}
        for name, array in arrays.items():
            kind, _, rest = name.partition(".")
            kept[kind][rest] = array
        return cls(
            Firing.from_arrays(kept["firing"]) if kept["firing"] else None,
            Medians.from_arrays(kept["medians"], groups) if kept["medians"] else None,
        )
