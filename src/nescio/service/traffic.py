"""What has gone through lately: recent scores for the page, and the monitor."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from nescio.arrays import FloatArray
from nescio.assessment import Assessment
from nescio.detectors import Detector
from nescio.errors import InputError
from nescio.monitor import Monitor
from nescio.service.engine import Scored

_RECENT = 2_000

# Watching a row costs more than scoring it. So of a busy stream only some rows are watched, chosen
# by their place alone: a choice that no score has a part in leaves the monitor's promise as it is.
_OF_A_BATCH = 256
_AT_ONCE = 2_048

_CHUNKS = 40
_SMALLEST_CHUNK = 25

_log = logging.getLogger("nescio.service")


class _Noted(NamedTuple):
    time: float
    assessment: Assessment
    logits: FloatArray


class Traffic:
    """The last scores, and whether the stream is still the one calibrated on.

    Parameters
    ----------
    detector : Detector
    alpha : float
        The probability of a false alarm.
    state : Path, optional
        Where the monitor goes on from, and is saved to.
    on_watched : callable
        Is given the same rows as the monitor.
    """

    def __init__(
        self,
        detector: Detector,
        alpha: float,
        state: Path | None = None,
        on_watched: Callable[[Assessment, FloatArray], object] = lambda assessment, logits: None,
    ) -> None:
        self._on_watched = on_watched
        self._noting = threading.Lock()
        self._noted: list[_Noted] = []
        self._n_noted = 0
        self._n_labels: int | None = None  # a detector of features may not know it
        self._watching = threading.Lock()
        self._times = np.zeros(_RECENT)
        self._scores = np.zeros(_RECENT)
        self._inside = np.ones(_RECENT, dtype=np.bool_)
        self._n = 0  # rows ever written; they go round
        self._state = state
        self._monitor = _monitor(detector, alpha, state)

    def record(self, scored: Scored) -> None:
        """Note what was answered, to be looked at later."""
        assessment, logits = scored.assessment, scored.outputs.logits
        n_rows = max(0, min(len(assessment), _OF_A_BATCH, _AT_ONCE - self._n_noted))
        self._n_labels = self._n_labels or logits.shape[1]
        if not n_rows or logits.shape[1] != self._n_labels:
            return
        if n_rows < len(assessment):
            rows = np.arange(n_rows) * len(assessment) // n_rows
            assessment, logits = assessment[rows], logits[rows]
        with self._noting:
            self._noted.append(_Noted(time.time(), assessment, logits))
            self._n_noted += n_rows

    def watch(self) -> None:
        """Look at what was noted: let the monitor see it, and keep it for the page."""
        with self._watching:
            with self._noting:
                noted, self._noted, self._n_noted = self._noted, [], 0
            if noted:
                self._see(_joined([note.assessment for note in noted]), noted)

    def _see(self, assessment: Assessment, noted: list[_Noted]) -> None:
        logits = np.concatenate([note.logits for note in noted])
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
        """The martingale's logarithm to base 10, and whether it has given the alarm."""
        self.watch()
        return self._monitor.log10_martingale, self._monitor.alarm

    def snapshot(self) -> dict[str, Any]:
        """For the page: scores over time, the share flagged with its band, the monitor's report."""
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
        """Keep the monitor's state, if it was asked for."""
        if self._state is not None:
            self.watch()
            with self._watching:
                self._monitor.save(self._state, force=True)


def _joined(parts: list[Assessment]) -> Assessment:
    groups = [part.groups for part in parts if part.groups is not None]
    return Assessment(
        np.concatenate([part.scores for part in parts]),
        np.concatenate([part.p_values for part in parts]),
        np.concatenate([part.in_distribution for part in parts]),
        np.concatenate(groups) if groups else None,
    )


def _monitor(detector: Detector, alpha: float, state: Path | None) -> Monitor:
    if state is not None and state.exists():
        try:
            kept = Monitor.load(state, detector)
            if kept.alpha != alpha:
                _log.warning("the monitor keeps its alpha", extra={"alpha": kept.alpha})
            return kept
        except InputError as error:  # of another detector; any other file is not to be replaced
            _log.warning("the monitor starts anew", extra={"reason": str(error)})
    return Monitor.for_detector(detector, alpha=alpha)
