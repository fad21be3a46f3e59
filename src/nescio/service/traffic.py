"""Recent traffic: the latest scores for the page, and the monitor."""

from __future__ import annotations

import os
import threading
import time
from collections import deque
from collections.abc import Sequence
from contextlib import AbstractContextManager
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from nescio._io.locks import locked
from nescio._validation import FloatArray
from nescio.detectors import Detector
from nescio.detectors.assessment import Assessment
from nescio.errors import FileError, InputError, ParameterError
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
    logits: FloatArray


class Traffic:
    """The latest scores, and the monitor that compares the stream with the calibration data."""

    def __init__(self, monitor: Monitor, state: Path | None) -> None:
        self.monitor = monitor
        self.n_watched = 0
        self._state = state
        self._noting = threading.Lock()
        self._noted: list[_Noted] = []
        self._n_noted = 0
        self._watching = threading.Lock()
        self._recent: deque[tuple[float, float, bool]] = deque(maxlen=_RECENT)

    def record(self, result: BatchResult) -> None:
        """Keep the rows of an answer until the next call of `watch`."""
        n_rows = min(len(result.outputs), (_AT_ONCE - self._n_noted) // 2)
        if n_rows <= 0:
            return
        rows = np.arange(n_rows) * len(result.outputs) // n_rows
        # Of ids and kept columns, other requests may have none: they could not be joined.
        assessment = replace(result.assessment, ids=None, kept={})[rows]
        with self._noting:
            self._noted.append(_Noted(time.time(), assessment, result.outputs.logits[rows]))
            self._n_noted += n_rows

    def watch(self) -> None:
        """Show the kept rows to the monitor, and store their scores for the page."""
        with self._watching:
            with self._noting:
                noted, self._noted, self._n_noted = self._noted, [], 0
            if not noted:
                return
            assessment = Assessment.concat([note.assessment for note in noted])
            logits = None
            if self.monitor.watches_labels:
                logits = np.concatenate([note.logits for note in noted])
            times = [note.time for note in noted for _ in range(len(note.assessment))]
            written = {at: time.strftime("%Y-%m-%d %H:%M:%S UTC", time.gmtime(at)) for at in times}
            self.monitor.update(assessment, logits, times=[written[at] for at in times])
            self.n_watched += len(assessment)
            scores, inside = assessment.scores.tolist(), assessment.in_distribution.tolist()
            self._recent.extend(zip(times, scores, inside, strict=True))

    def snapshot(self) -> dict[str, Any]:
        """Return recent scores, the share flagged with its band, and the report of the monitor."""
        self.watch()
        with self._watching:
            times = [at for at, _, _ in self._recent]
            inside = [is_in for _, _, is_in in self._recent]
            return {
                "n_watched": self.n_watched,
                "recent": {
                    "time": times,
                    "score": [s if np.isfinite(s) else None for _, s, _ in self._recent],
                    "in_distribution": inside,
                },
                "flagged": self._shares(times, inside),
                "monitor": self.monitor.report().as_dict(),
            }

    def _shares(self, times: Sequence[float], inside: Sequence[bool]) -> dict[str, Any]:
        size = max(_SMALLEST_CHUNK, -(-len(inside) // _CHUNKS))
        parts = [slice(start, start + size) for start in range(0, len(inside), size)]
        chunks = [{"time": times[part][-1], **self._share(inside[part])} for part in parts]
        return {"all": self._share(inside) if inside else None, "chunks": chunks}

    def _share(self, inside: Sequence[bool]) -> dict[str, Any]:
        low, high = self.monitor.flagged_band(len(inside))
        share = inside.count(False) / len(inside)
        return {"n": len(inside), "share": share, "low": float(low), "high": float(high)}

    def save(self) -> None:
        """Save the state of the monitor, if the settings name a file for it."""
        if self._state is not None:
            with self._watching:
                self.monitor.save(self._state, force=True)


def locked_state(path: Path) -> AbstractContextManager[None]:
    """Lock a state; raise if another process uses it: each would lose the samples of the other."""

    def refuse() -> AbstractContextManager[object]:
        raise FileError(
            f"{path} is in use by another nescio serve or nescio monitor. Pass another file."
        )

    return locked(Path(os.path.realpath(path)), refuse)


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
