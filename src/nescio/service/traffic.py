"""Recent traffic: the latest scores for the page, and the monitor."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from nescio._validation import FloatArray
from nescio.detectors import Detector
from nescio.detectors.assessment import Assessment
from nescio.errors import InputError, ParameterError
from nescio.monitor import Monitor
from nescio.service.engine import BatchResult
from nescio.service.logs import logger

_RECENT = 2_000

# The monitor takes more time per row than scoring. On a busy stream it therefore sees only some
# rows. They are chosen by position, independently of their scores, so its guarantee still holds.
# A request may fill half of the free places, so that some are left for the next request.
_AT_ONCE = 4_096

_CHUNKS = 40
_SMALLEST_CHUNK = 25


class _Noted(NamedTuple):
    time: float
    assessment: Assessment
    logits: FloatArray | None


class Traffic:
    """The latest scores, and the monitor that compares the stream with the calibration data.

    Parameters
    ----------
    monitor : Monitor
    n_labels : int or None
        The number of labels; if it is None, the labels are not monitored.
    state : Path, optional
        The file that the monitor is saved to.
    on_watched : callable
        Called with the rows that the monitor sees.
    """

    def __init__(
        self,
        monitor: Monitor,
        n_labels: int | None,
        state: Path | None,
        on_watched: Callable[[Assessment, FloatArray | None], object],
    ) -> None:
        self._monitor = monitor
        self._n_labels = n_labels
        self._on_watched = on_watched
        self._noting = threading.Lock()
        self._noted: list[_Noted] = []
        self._n_noted = 0
        self._watching = threading.Lock()
        self._times = np.zeros(_RECENT)
        self._scores = np.zeros(_RECENT)
        self._inside = np.ones(_RECENT, dtype=np.bool_)
        self._n = 0  # rows written so far; the arrays are ring buffers
        self._state = state

    def record(self, result: BatchResult) -> None:
        """Keep the rows of an answer until the next call of `watch`."""
        assessment = replace(result.assessment, ids=None)
        logits = None if self._n_labels is None else result.outputs.logits
        n_rows = min(len(assessment), (_AT_ONCE - self._n_noted) // 2)
        if n_rows <= 0:
            return
        if n_rows < len(assessment):
            rows = np.arange(n_rows) * len(assessment) // n_rows
            assessment, logits = assessment[rows], None if logits is None else logits[rows]
        with self._noting:
            self._noted.append(_Noted(time.time(), assessment, logits))
            self._n_noted += n_rows

    def watch(self) -> None:
        """Show the kept rows to the monitor, and store their scores for the page."""
        with self._watching:
            with self._noting:
                noted, self._noted, self._n_noted = self._noted, [], 0
            if noted:
                self._see(Assessment.concat([note.assessment for note in noted]), noted)

    def _see(self, assessment: Assessment, noted: list[_Noted]) -> None:
        logits = None
        if self._n_labels is not None:
            logits = np.concatenate([note.logits for note in noted if note.logits is not None])
        self._on_watched(assessment, logits)
        self._monitor.update(assessment, logits=logits)
        times = np.repeat([note.time for note in noted], [len(note.assessment) for note in noted])
        latest = slice(-_RECENT, None)
        at = (self._n + np.arange(len(times))[latest]) % _RECENT
        self._times[at] = times[latest]
        self._scores[at] = assessment.scores[latest]
        self._inside[at] = assessment.in_distribution[latest]
        self._n += len(times)

    @property
    def evidence(self) -> tuple[float, bool]:
        """The base-10 logarithm of the martingale, and whether the alarm was raised."""
        return self._monitor.log10_martingale, self._monitor.alarm

    def snapshot(self) -> dict[str, Any]:
        """Return recent scores, the share flagged with its band, and the report of the monitor."""
        self.watch()
        with self._watching:
            n = min(self._n, _RECENT)
            at = (self._n - n + np.arange(n)) % _RECENT
            times, scores, inside = self._times[at], self._scores[at], self._inside[at]
            return {
                "n_watched": self._n,
                "recent": {
                    "time": times.tolist(),
                    "score": [s if np.isfinite(s) else None for s in scores.tolist()],
                    "in_distribution": inside.tolist(),
                },
                "flagged": self._shares(times, inside),
                "monitor": self._monitor.report().as_dict(),
            }

    def _shares(self, times: NDArray[np.float64], inside: NDArray[np.bool_]) -> dict[str, Any]:
        size = max(_SMALLEST_CHUNK, -(-len(inside) // _CHUNKS))
        chunks = []
        for start in range(0, len(inside), size):
            part = slice(start, start + size)
            chunks.append(
                {"time": float(times[part][-1]), **self._share(len(inside[part]), inside[part])}
            )
        whole = self._share(len(inside), inside) if len(inside) else None
        return {"all": whole, "chunks": chunks}

    def _share(self, n: int, inside: NDArray[np.bool_]) -> dict[str, Any]:
        low, high = self._monitor.flagged_band(n)
        return {"n": n, "share": float(1 - inside.mean()), "low": float(low), "high": float(high)}

    def save(self) -> None:
        """Save the state of the monitor, if the settings name a file for it."""
        if self._state is not None:
            self.watch()
            with self._watching:
                self._monitor.save(self._state, force=True)


def stored_monitor(
    detector: Detector, alpha: float, state: Path | None, again: bool = False
) -> Monitor:
    """Return the monitor saved in `state`, or a new one if there is none.

    The state of a different detector is an error, except in a reload (`again`): the monitor then
    starts from the beginning.
    """
    if state is None or not state.exists():
        return Monitor(detector, alpha=alpha)
    try:
        stored = Monitor.load(state, detector)
    except InputError as error:
        if not again:
            raise InputError(f"{error} Remove the file, or pass another one.") from error
        logger.warning("the monitor starts from the beginning", extra={"reason": str(error)})
        return Monitor(detector, alpha=alpha)
    if stored.alpha != alpha:
        raise ParameterError(
            f"{state} was started with alpha {stored.alpha:g}, got {alpha:g}. Pass --alpha "
            f"{stored.alpha:g}, or another file."
        )
    return stored
