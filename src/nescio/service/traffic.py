"""What the service knows about its traffic: metrics for Prometheus, recent scores, the monitor."""

from __future__ import annotations

import functools
import threading
import time
from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from prometheus_client import CollectorRegistry, Counter, Histogram, generate_latest
from prometheus_client.core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    HistogramMetricFamily,
    Metric,
)

from nescio._validation import FloatArray
from nescio.detectors import Detector
from nescio.detectors.assessment import Assessment
from nescio.errors import InputError, ParameterError
from nescio.monitor import Monitor
from nescio.service.engine import BatchResult, Engine
from nescio.service.logs import logger, n_dropped
from nescio.service.requests import RequestLimits

_SECONDS = (0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0)
_SCORE_BUCKETS = 16
_ROWS_AT_ONCE = 8 * 255

_RECENT = 2_000
# The monitor takes more time per row than scoring. On a busy stream it therefore sees only some
# rows. They are chosen by position, independently of their scores, so its guarantee still holds.
# A request may fill half of the free places, so that some are left for the next request.
_MOST_FREE = 4_096
_FREED = 1_024  # places by each look of the monitor, four times per second
_CHUNKS = 40
_SMALLEST_CHUNK = 25


class Metrics:
    """The counters of one service."""

    def __init__(self, limits: RequestLimits) -> None:
        self._limits = limits
        self.registry = CollectorRegistry()
        self.registry.register(self)
        self.requests = Counter(
            "nescio_requests", "Requests answered.", ("path", "status"), registry=self.registry
        )
        self.seconds = Histogram(
            "nescio_request_seconds",
            "Time from the headers of a request to the end of its answer.",
            ("path",),
            buckets=_SECONDS,
            registry=self.registry,
        )
        self.rejected = Counter(
            "nescio_rejected", "Requests rejected with 503.", registry=self.registry
        )
        self.reloads = Counter(
            "nescio_reloads", "Reloads of the detector.", ("result",), registry=self.registry
        )
        # From 0: Prometheus sees no increase if a counter appears together with its first event.
        for result in ("done", "failed"):
            self.reloads.labels(result)
        for path in ("/v1/score", "/v1/predict"):
            self.requests.labels(path, "500")

    def collect(self) -> Iterator[Metric]:
        """Return the metrics of the moment; prometheus_client calls this."""
        limits = self._limits
        yield CounterMetricFamily(
            "nescio_log_lines_dropped", "Lines of the log not written.", n_dropped()
        )
        for name, meaning, value in (
            ("nescio_requests_in_progress", "Requests in progress.", limits.n_requests),
            (
                "nescio_requests_limit",
                "Most requests in progress: --max-requests.",
                limits.settings.max_requests,
            ),
            (
                "nescio_waiting_bytes",
                "Bytes of their bodies, inputs and answers.",
                limits.n_bytes + limits.n_held,
            ),
        ):
            yield GaugeMetricFamily(name, meaning, value)

    def answered(self, path: str, status: int, seconds: float) -> None:
        """Count a request."""
        counted, timed = self._of(path, status)
        counted.inc()
        timed.observe(seconds)
        if status == 503:
            self.rejected.inc()

    @functools.cache  # noqa: B019  # for the few paths and statuses of the one service
    def _of(self, path: str, status: int) -> tuple[Counter, Histogram]:
        return self.requests.labels(path, str(status)), self.seconds.labels(path)

    def text(self) -> bytes:
        """Return all metrics in the text format of Prometheus."""
        return generate_latest(self.registry)


class ScoreMetrics:
    """Counts of scores, verdicts and predicted labels of one engine, and its monitor.

    The bounds of the histogram of scores are quantiles of the calibration scores.
    """

    def __init__(self, engine: Engine, traffic: Traffic) -> None:
        self._traffic = traffic
        # One for all groups: the largest share that a calibrated detector flags of its own data.
        self._allowed = 1 - min(of.tpr for of in engine.calibration.thresholds.values())
        scores = engine.calibration.scores
        shares = np.linspace(0, 1, _SCORE_BUCKETS + 1)
        self._bounds = np.unique(np.quantile(scores[np.isfinite(scores)], shares))
        self._lock = threading.Lock()
        self._counts = np.zeros(len(self._bounds) + 1, dtype=np.int64)
        self._sum = 0.0
        self._flagged = 0
        self._names = engine.label_names or tuple(map(str, range(engine.n_labels or 0)))
        self._fired = np.zeros(len(self._names), dtype=np.int64)

    def count(self, result: BatchResult) -> None:
        """Count all rows of an answer."""
        scores = result.assessment.scores
        up_to = np.searchsorted(np.sort(scores), self._bounds, side="right")  # NaN comes last
        total = float(scores.sum())
        if not np.isfinite(total):
            total = float(scores[np.isfinite(scores)].sum())
        n_inside = np.count_nonzero(result.assessment.in_distribution)
        fired = count_positive(result.outputs.logits) if self._names else 0
        with self._lock:
            self._counts[:-1] += up_to
            self._counts[-1] += len(scores)
            self._sum += total
            self._flagged += len(scores) - int(n_inside)
            self._fired += fired

    def collect(self) -> Iterator[Metric]:
        """Return the metrics; prometheus_client calls this."""
        monitor = self._traffic.monitor
        with self._lock:
            counts, total, flagged = self._counts.tolist(), self._sum, self._flagged
            fired = self._fired.tolist()
        samples: float = counts[-1]
        for name, meaning, value in (
            ("nescio_samples", "Inputs scored.", samples),
            ("nescio_flagged", "Inputs flagged.", flagged),
            ("nescio_watched", "Inputs that the monitor has seen.", self._traffic.n_watched),
        ):
            yield CounterMetricFamily(name, meaning, value)
        for name, meaning, value in (
            ("nescio_flagged_share", "Share of all inputs flagged.", flagged / max(1, samples)),
            (
                "nescio_flagged_share_allowed",
                "Share of in-distribution inputs that the threshold may flag: 1 - TPR.",
                self._allowed,
            ),
            (
                "nescio_monitor_log10_evidence",
                "Evidence that the stream has changed, as a power of ten.",
                monitor.log10_martingale,
            ),
            (
                "nescio_monitor_alarm",
                "1 once the monitor has raised the alarm.",
                float(monitor.alarm),
            ),
        ):
            yield GaugeMetricFamily(name, meaning, value)
        bounds = [*(f"{bound:.9g}" for bound in self._bounds), "+Inf"]
        yield HistogramMetricFamily(
            "nescio_score",
            "Scores; higher means more in-distribution.",
            buckets=list(zip(bounds, counts, strict=True)),
            sum_value=total,
        )
        firing = CounterMetricFamily(
            "nescio_label_fired", "Inputs with a label predicted.", labels=["label"]
        )
        for name, count in zip(self._names, fired, strict=True):
            firing.add_metric([name], count)
        yield firing


def count_positive(matrix: FloatArray) -> NDArray[np.int64]:
    """Return how many values of each column are above 0.

    It adds rows of bytes, eight rows at a time: six times as fast as `np.count_nonzero` of bools.
    """
    n_rows, n_columns = matrix.shape
    total = np.zeros(n_columns, dtype=np.int64)
    for start in range(0, n_rows, _ROWS_AT_ONCE):
        above = (matrix[start : start + _ROWS_AT_ONCE] > 0).view(np.uint8)
        whole = len(above) // 8 * 8
        eight = above[:whole].reshape(-1, 8 * n_columns)  # at most 255 rows, so no byte overflows
        total += np.add.reduce(eight, axis=0, dtype=np.uint8).reshape(8, n_columns).sum(0, int)
        total += above[whole:].sum(0, int)
    return total


# --- the latest scores, and the monitor ---------------------------------------------------------


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
        self._n_free = _MOST_FREE
        self._watching = threading.Lock()
        self._recent: deque[tuple[float, float, bool]] = deque(maxlen=_RECENT)

    def record(self, result: BatchResult) -> None:
        """Keep the rows of an answer until the next call of `watch`."""
        n_rows = min(len(result.outputs), self._n_free // 2)
        if n_rows <= 0:
            return
        rows = np.arange(n_rows) * len(result.outputs) // n_rows
        # Of ids and kept columns, other requests may have none: they could not be joined.
        assessment = replace(result.assessment, ids=None, kept={})[rows]
        with self._noting:
            self._noted.append(_Noted(time.time(), assessment, result.outputs.logits[rows]))
            self._n_free -= n_rows

    def watch(self) -> None:
        """Show the kept rows to the monitor, and store their scores for the page."""
        with self._watching:
            with self._noting:
                noted, self._noted = self._noted, []
                self._n_free = min(_MOST_FREE, self._n_free + _FREED)
            if not noted:
                return
            assessment = Assessment.concat([note.assessment for note in noted])
            logits = None
            if self.monitor.watches_labels:
                logits = np.concatenate([note.logits for note in noted])
            times, texts = [], []
            for note in noted:
                text = time.strftime("%Y-%m-%d %H:%M:%S UTC", time.gmtime(note.time))
                times += [note.time] * len(note.assessment)
                texts += [text] * len(note.assessment)
            self.monitor.update(assessment, logits, times=texts)
            self.n_watched += len(assessment)
            scores, inside = assessment.scores.tolist(), assessment.in_distribution.tolist()
            self._recent.extend(zip(times, scores, inside, strict=True))

    def snapshot(self) -> dict[str, Any]:
        """Return recent scores, the share flagged with its band, and the report of the monitor."""
        self.watch()
        with self._watching:
            times = [arrived for arrived, _, _ in self._recent]
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
