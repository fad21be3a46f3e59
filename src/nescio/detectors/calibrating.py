"""Calibration on data that is read in blocks of rows, and may be larger than memory.

The detector is the same as after `calibrate` on the whole data, as long as there are at most
`nescio.calibration.sampling.MAX_SAMPLES` rows. Of more, a random sample sets the threshold.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import TYPE_CHECKING, Protocol

import numpy as np
from numpy.typing import NDArray

from nescio._validation import Array
from nescio.calibration import Calibration, Firing, ScoreSample
from nescio.detectors import plausibility, steps
from nescio.detectors.arrays import Given
from nescio.detectors.profile import Profile
from nescio.errors import ParameterError, about
from nescio.explain.terms import MedianRows, Medians, Terms
from nescio.outputs import Outputs
from nescio.outputs.streams import where

if TYPE_CHECKING:
    from nescio.detectors.base import Detector


_ENOUGH_TO_TELL = 50  # values; fewer are never called implausible


class Rows(Protocol):
    """Outputs of consecutive samples, some of them."""

    @property
    def start(self) -> int:
        """The number of rows before these."""

    @property
    def outputs(self) -> Outputs:
        """The rows."""


class Stream(Protocol):
    """Outputs that can be read again and again in blocks, such as an `OutputsStream`."""

    @property
    def address(self) -> str:
        """The address, as the user gave it."""

    @property
    def n_rows(self) -> int:
        """The number of rows in all blocks."""

    def blocks(self) -> Iterable[Rows]:
        """Give the blocks in order."""


def calibrate_stream(
    detector: Detector,
    stream: Stream,
    *,
    confidence: float | None = None,
    by_label_count: bool = False,
    n_learned: int | None = None,
    sample: ScoreSample | None = None,
    on_rows: Callable[[int], object] = lambda n: None,
) -> ScoreSample:
    """Calibrate a detector on held-out data that is read in blocks; return the scores used.

    Parameters
    ----------
    detector : Detector
        One that does not learn from held-out data. If it learns, it has learned already.
    stream : OutputsStream
        Held-out in-distribution data.
    confidence : float, optional
        As for `Detector.calibrate`.
    by_label_count : bool
        Whether to use one threshold per number of predicted labels.
    n_learned : int, optional
        The number of rows that the detector has learned from. If the held-out data has as many, it
        is an error if it is the same data. A warning is given if they have many rows in common.
    sample : ScoreSample, optional
        An empty one, to keep another number of scores.
    on_rows : callable
        Called with the number of rows of each block.
    """
    if detector.learns_from_held_out:
        raise ParameterError(
            f"{detector.name} learns from held-out data, so it cannot be calibrated block by "
            "block: call calibrate(held_out)."
        )
    scored = sample or ScoreSample()
    with steps.unchanged_on_error(detector):
        detector._check_params()
        seen = _Seen(detector, stream, scored, n_learned)
        once = OncePerStream()
        for block in stream.blocks():
            with _about(stream, block), once.block(block.outputs):
                seen.add(_given(detector, stream, block), with_counts=by_label_count)
            on_rows(len(block.outputs))
        once.warn()
        with about(stream.address):
            seen.check_held_out()
            calibration = _calibration(detector, scored, confidence, by_label_count)
        detector.calibration_ = calibration
        detector.offset_ = next(iter(calibration.thresholds.values())).value
        detector.profile_ = Profile(seen.firing, _medians(detector, stream, seen))
    return scored


def _about(stream: Stream, block: Rows) -> AbstractContextManager[None]:
    return about(where(stream.address, block.start, len(block.outputs), stream.n_rows))


def _given(detector: Detector, stream: Stream, block: Rows) -> Given:
    """Read a block as `calibrate` reads held-out data; the first one sets columns and labels."""
    first = not block.start
    names = steps.read_in_calibration(detector)
    reset = first and not detector.learns_from
    given = steps.read(detector, block.outputs, names, reset=reset, remember=first)
    if first:
        plausibility.warn_of_large_k(detector, given)
        if len(block.outputs) == stream.n_rows:
            plausibility.warn_of_transposed(given)
    return given


def _calibration(
    detector: Detector, scored: ScoreSample, confidence: float | None, by_label_count: bool
) -> Calibration:
    if not by_label_count:
        return Calibration.from_scores(scored.scores, tpr=detector.tpr, confidence=confidence)
    counts = scored.label_counts
    return Calibration.by_label_count(
        scored.scores, counts, tpr=detector.tpr, confidence=confidence
    )


class _Seen:
    """What is known about the blocks so far."""

    def __init__(
        self, detector: Detector, stream: Stream, sample: ScoreSample, n_learned: int | None
    ) -> None:
        self.firing: Firing | None = None
        self.label_names: tuple[str, ...] | None = None
        self.n_usable: dict[int, int] = {}  # by the number of predicted labels
        self._detector = detector
        self._sample = sample
        self._constant = plausibility.ConstantLabels()
        # Usually all rows are usable: then these are the rows to choose.
        self._rows = MedianRows({"": stream.n_rows})
        same = n_learned == stream.n_rows
        self._learned = {
            name: plausibility.LearnedRows(detector, name, learned, compare_all=same)
            for name, learned in getattr(detector, "_learned_from", {}).items()
        }

    def add(self, given: Given, *, with_counts: bool) -> None:
        """Score a block and count it."""
        scores = steps.score_given(self._detector, given)
        counts = given.label_counts()
        self._sample.add(scores, counts if with_counts else None)
        for name, learned in self._learned.items():
            matrix = given.arrays.get(name)
            matrix = given.data.get(name) if matrix is None else matrix
            if matrix is not None:
                learned.add(matrix)
        if given.logits is None or counts is None:
            return
        self.label_names = given.label_names
        self._constant.add(given.logits)
        fired = Firing.from_logits(given.logits)
        self.firing = fired if self.firing is None else self.firing.joined(fired)
        usable = ~np.isneginf(scores)
        self._rows.add(given.logits, usable)
        found, sizes = np.unique(counts[usable], return_counts=True)
        for count, size in zip(found.tolist(), sizes.tolist(), strict=True):
            self.n_usable[count] = self.n_usable.get(count, 0) + size

    def check_held_out(self) -> None:
        """Warn of implausible data; raise if the detector has learned from it."""
        self._constant.warn(self.label_names)
        any(learned.finish() for learned in self._learned.values())

    def medians(self, terms: Terms) -> Medians | None:
        """Return the medians without groups; None if some rows are not usable."""
        as_expected = self._rows.sizes == {"": sum(self.n_usable.values())}
        return self._rows.medians(terms) if as_expected else None


def _medians(detector: Detector, stream: Stream, seen: _Seen) -> Medians | None:
    """Return the medians of the terms.

    Within groups, or if some rows are not usable, the rows to choose are known only now: the data
    is read once more.
    """
    terms, calibration = detector.label_terms(), detector.calibration_
    if terms is None or seen.firing is None:
        return None
    found = seen.medians(terms) if calibration.by is None else None
    if found is not None:
        return found

    def names_of(counts: Array) -> NDArray[np.str_] | None:
        if calibration.by is None:
            return None
        return calibration.group_names(len(counts), label_counts=counts)

    sizes = dict.fromkeys([""] if calibration.by is None else sorted(calibration.thresholds), 0)
    for count, size in seen.n_usable.items():
        names = names_of(np.array([count]))
        sizes["" if names is None else str(names[0])] += size
    rows, once = MedianRows(sizes), OncePerStream()
    for block in stream.blocks():
        with _about(stream, block), once.block(block.outputs):  # these warnings have been given
            given = steps.read(detector, block.outputs, steps.read_in_calibration(detector))
            usable = ~np.isneginf(steps.score_given(detector, given))
            names = names_of((given.data.logits > 0).sum(1))
        rows.add(given.data.logits, usable, names)
    return rows.medians(terms)


class OncePerStream:
    """Warnings that every block gives are given once, at the end; others only concern some rows."""

    def __init__(self) -> None:
        self._first: list[warnings.WarningMessage] | None = None

    @contextmanager
    def block(self, outputs: Outputs) -> Iterator[None]:
        """Keep the warnings of a block back."""
        with warnings.catch_warnings(record=True) as given:
            warnings.simplefilter("always")
            yield
        if self._first is None:
            self._first = given
        elif outputs.logits.size >= _ENOUGH_TO_TELL:  # the last block may be a single row
            kinds = {one.category for one in given}
            self._first = [one for one in self._first if one.category in kinds]

    def warn(self) -> None:
        """Give the warnings."""
        for one in self._first or ():
            warnings.warn(one.message, one.category, stacklevel=2)
