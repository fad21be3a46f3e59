"""Scores that are made of the labels: each label's term, and what is usual in-distribution."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from nescio._validation import Array, BoolArray, FloatArray
from nescio.errors import ParameterError

__all__ = ["Terms", "Usual"]

Floats = NDArray[np.float64]

# A median of 5,000 values is within about 2 % of their standard deviation; sorting all rows of a
# large calibration set would take longer than calibrating.
_ROWS = 5_000
_ROWS_OF_A_GROUP = 500


@dataclass(frozen=True)
class Terms:
    """How a score is made of the labels: the sum of the largest of their terms.

    Attributes
    ----------
    name : str
        What a term is called: energy, logit, probability.
    of : callable
        Gives each label's term for logits of shape (n_samples, n_labels); grows with the logit.
    largest : int or None
        How many of the largest count: 1 for a maximum, k for a top-k, None for all.
    """

    name: str
    of: Callable[[Any], Any]
    largest: int | None = None


def checked_terms(terms: Terms | None, detector: str) -> Terms:
    """The terms of a detector that has any; raises if its score is not made of labels."""
    if terms is None:
        raise ParameterError(
            f"{detector} cannot be explained: its score is not a sum over labels. A sum, a maximum "
            "or a top-k of energies, logits or probabilities can: calibrate joint_energy on the "
            "same logits, and explain with it."
        )
    return terms


def terms_of(terms: Terms, inputs: FloatArray) -> Floats:
    """Each label's term in float64; NaN where the input cannot be used, which makes it out."""
    values = np.array(terms.of(inputs.astype(np.float64)), dtype=np.float64)
    values[np.isnan(inputs) | np.isposinf(inputs)] = np.nan
    return values


@dataclass(frozen=True, eq=False)
class Usual:
    """Medians over in-distribution data, a row for each group of inputs.

    Attributes
    ----------
    groups : tuple of str
        The groups' names; one that nobody asks for where inputs are not grouped.
    labels : array of shape (n_groups, n_labels)
        The median of each label's term.
    ranks : array of shape (n_groups, n_labels)
        The median of each input's largest term, second largest, and so on.
    """

    groups: tuple[str, ...]
    labels: Floats
    ranks: Floats

    @classmethod
    def from_inputs(
        cls,
        terms: Terms,
        inputs: FloatArray,
        usable: BoolArray,
        groups: NDArray[np.str_] | None = None,
        known: Iterable[str] = (),
    ) -> Self:
        """The medians of the usable rows; within each group, if there are some, by `known` names.

        Of many rows, 5,000 are drawn with a fixed seed; by group, as many together, but at least
        500 of each.
        """
        names = ("",) if groups is None else tuple(sorted(known))
        n_rows = max(_ROWS_OF_A_GROUP, _ROWS // len(names))
        found = []
        for name in names:
            rows = np.flatnonzero(usable if groups is None else usable & (groups == name))
            if len(rows) > n_rows:
                rows = np.sort(np.random.default_rng(0).choice(rows, n_rows, replace=False))
            found.append(_medians(terms, inputs[rows]))
        labels, ranks = (np.stack(column) for column in zip(*found, strict=True))
        return cls(names, labels, ranks)

    @classmethod
    def from_arrays(
        cls, arrays: Mapping[str, Array], groups: tuple[str, ...] | None, n_labels: int
    ) -> Self:
        """From a file; raises a `ValueError` if they do not fit the detector there."""
        names = ("",) if groups is None else tuple(sorted(groups))
        medians = {name: np.asarray(arrays[name], np.float64) for name in ("labels", "ranks")}
        for array in medians.values():
            if array.shape != (len(names), n_labels) or np.isnan(array).any():
                raise ValueError("its medians do not fit its labels and groups")
        return cls(names, **medians)

    def arrays(self) -> dict[str, Array]:
        """What a file keeps."""
        return {"labels": self.labels, "ranks": self.ranks}

    def medians_of(
        self, groups: NDArray[np.str_] | None, n_samples: int
    ) -> tuple[FloatArray, FloatArray]:
        """Of each sample's own group: label by label, and rank by rank."""
        if groups is None:
            shape = (n_samples, self.labels.shape[1])
            return np.broadcast_to(self.labels, shape), np.broadcast_to(self.ranks, shape)
        at = np.searchsorted(self.groups, groups)
        return self.labels[at], self.ranks[at]


def _medians(terms: Terms, inputs: FloatArray) -> tuple[Floats, Floats]:
    values = np.asarray(terms.of(inputs), dtype=np.float64)
    ascending = np.median(np.sort(values, axis=1), axis=0)
    return np.median(values, axis=0), ascending[::-1]
