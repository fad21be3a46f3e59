"""Metrics for Prometheus: requests, latency, scores, the share flagged, predicted labels.

All inputs and flagged inputs are counted. The histogram of scores and the counts of predicted
labels cover the inputs that the monitor sees: all of them, unless the stream is very busy.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator

import numpy as np
from numpy.typing import NDArray
from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest
from prometheus_client.core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    HistogramMetricFamily,
    Metric,
)

from nescio._validation import FloatArray
from nescio.detectors.assessment import Assessment
from nescio.service.engine import Engine

_SECONDS = (0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0)
_SCORE_BUCKETS = 16


class Metrics:
    """The counters of one service."""

    def __init__(self) -> None:
        self._registry = CollectorRegistry()
        self.requests = Counter(
            "nescio_requests", "Requests answered.", ("path", "status"), registry=self._registry
        )
        self.seconds = Histogram(
            "nescio_request_seconds",
            "Time from the headers of a request to the end of its answer.",
            ("path",),
            buckets=_SECONDS,
            registry=self._registry,
        )
        self.rejected = Counter(
            "nescio_rejected", "Requests rejected with 503.", registry=self._registry
        )
        self.reloads = Counter(
            "nescio_reloads", "Reloads of the detector.", ("result",), registry=self._registry
        )

    def gauge(self, name: str, description: str, value: Callable[[], float]) -> None:
        """Add a gauge whose value is computed when Prometheus asks for it."""
        Gauge(name, description, registry=self._registry).set_function(value)

    def add(self, scores: ScoreMetrics) -> None:
        """Add the metrics of an engine."""
        self._registry.register(scores)

    def remove(self, scores: ScoreMetrics) -> None:
        """Remove the metrics of an engine."""
        self._registry.unregister(scores)

    def answered(self, path: str, status: int, seconds: float) -> None:
        """Count a request."""
        self.requests.labels(path, str(status)).inc()
        self.seconds.labels(path).observe(seconds)
        if status == 503:
            self.rejected.inc()

    def text(self) -> bytes:
        """Return all metrics in the text format of Prometheus."""
        return generate_latest(self._registry)


class ScoreMetrics:
    """Counts of scores, verdicts and predicted labels of one engine.

    Parameters
    ----------
    engine : Engine
        Quantiles of its calibration scores are the bounds of the histogram.
    """

    def __init__(self, engine: Engine) -> None:
        taken = [threshold.scores for threshold in engine.calibration.thresholds.values()]
        scores = np.concatenate(taken)
        shares = np.linspace(0, 1, _SCORE_BUCKETS + 1)
        self._bounds = np.unique(np.quantile(scores[np.isfinite(scores)], shares))
        self._lock = threading.Lock()
        self._counts = np.zeros(len(self._bounds) + 1, dtype=np.int64)
        self._sum = 0.0
        self._samples = self._flagged = 0
        self._names = engine.label_names
        self._fired: NDArray[np.int64] | None = None

    def count(self, assessment: Assessment) -> None:
        """Count all rows of an answer."""
        flagged = len(assessment) - int(np.count_nonzero(assessment.in_distribution))
        with self._lock:
            self._samples += len(assessment)
            self._flagged += flagged

    def watched(self, assessment: Assessment, logits: FloatArray | None) -> None:
        """Count the rows that the monitor sees."""
        at = np.searchsorted(self._bounds, assessment.scores, side="left")
        counts = np.bincount(at, minlength=len(self._counts))
        fired = None if logits is None else (logits > 0).sum(0, dtype=np.int64)
        with self._lock:
            self._counts += counts
            self._sum += float(assessment.scores.sum(where=np.isfinite(assessment.scores)))
            if fired is not None:
                self._fired = fired if self._fired is None else self._fired + fired

    def collect(self) -> Iterator[Metric]:
        """Return the metrics; prometheus_client calls this."""
        with self._lock:
            counts, total = self._counts.cumsum().tolist(), self._sum
            samples, flagged = self._samples, self._flagged
            fired = [] if self._fired is None else self._fired.tolist()
        bounds = [*(f"{bound:.9g}" for bound in self._bounds), "+Inf"]
        yield CounterMetricFamily("nescio_samples", "Inputs scored.", samples)
        yield CounterMetricFamily("nescio_flagged", "Inputs flagged.", flagged)
        share = flagged / samples if samples else 0.0
        yield GaugeMetricFamily("nescio_flagged_share", "Share of all inputs flagged.", share)
        yield CounterMetricFamily("nescio_watched", "Inputs that the monitor has seen.", counts[-1])
        yield HistogramMetricFamily(
            "nescio_score",
            "Scores of these inputs; higher means more in-distribution.",
            buckets=list(zip(bounds, counts, strict=True)),
            sum_value=total,
        )
        firing = CounterMetricFamily(
            "nescio_label_fired",
            "How many of these inputs have a label predicted.",
            labels=["label"],
        )
        for at, count in enumerate(fired):
            firing.add_metric([str(at) if self._names is None else self._names[at]], count)
        yield firing
