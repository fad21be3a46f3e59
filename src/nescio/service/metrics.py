"""Metrics for Prometheus: requests, latency, scores, the share flagged, predicted labels."""

from __future__ import annotations

import functools
import threading
from collections.abc import Iterator

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
from nescio.service.engine import BatchResult, Engine
from nescio.service.limits import Room
from nescio.service.logs import n_dropped
from nescio.service.traffic import Traffic

_SECONDS = (0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0)
_SCORE_BUCKETS = 16
_ROWS_AT_ONCE = 8 * 255


class Metrics:
    """The counters of one service."""

    def __init__(self, room: Room) -> None:
        self._room = room
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
        in_progress = self._room.n_requests
        n_bytes = self._room.n_bytes + self._room.n_held
        yield CounterMetricFamily(
            "nescio_log_lines_dropped", "Lines of the log not written.", n_dropped()
        )
        yield GaugeMetricFamily("nescio_requests_in_progress", "Requests in progress.", in_progress)
        yield GaugeMetricFamily(
            "nescio_requests_limit", "Most requests in progress: --max-requests.", self._room.limit
        )
        yield GaugeMetricFamily(
            "nescio_waiting_bytes", "Bytes of their bodies, inputs and answers.", n_bytes
        )

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


class ScoreMetrics:
    """Counts of scores, verdicts and predicted labels of one engine, and its monitor.

    The bounds of the histogram of scores are quantiles of the calibration scores.
    """

    def __init__(self, engine: Engine, traffic: Traffic) -> None:
        self._traffic = traffic
        # One for all groups: the largest share that a calibrated detector flags of its own data.
        self._allowed = 1 - min(found.tpr for found in engine.calibration.thresholds.values())
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
        up_to = [int(np.count_nonzero(row)) for row in scores <= self._bounds[:, None]]
        finite = scores if np.isfinite(scores).all() else scores[np.isfinite(scores)]
        n_inside = np.count_nonzero(result.assessment.in_distribution)
        fired = count_positive(result.outputs.logits) if self._names else 0
        with self._lock:
            self._counts += np.array([*up_to, len(scores)])
            self._sum += float(finite.sum())
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
