"""What the service knows about its traffic: metrics, recent p-values, the monitor and charts.

The charts are SVG for the page, whose CSS classes colour them.
"""

from __future__ import annotations

import functools
import logging
import os
import threading
import time
from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
from msgspec import UNSET, UnsetType
from prometheus_client import CollectorRegistry, Counter, Histogram
from prometheus_client.core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    HistogramMetricFamily,
    Metric,
)

from nescio._charts.svg import Chart, Scale, short
from nescio.detectors import Assessment, Detector
from nescio.errors import InputError
from nescio.monitor import Monitor
from nescio.monitor.monitor import resume
from nescio.monitor.report import Figure, monitor_figures
from nescio.outputs import Outputs
from nescio.service.openapi import ChartOf, MonitorReport, TrafficReport
from nescio.service.requests import RequestLimits

logger = logging.getLogger("nescio.service")

_SECONDS = (0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0)
_SCORE_BUCKETS = 16

_RECENT = 2_000
# The monitor takes more time per row than scoring. On a busy stream it therefore sees only some
# rows. They are chosen by position, independently of their scores, so its guarantee still holds.
# A request may fill half of the free places, so that some are left for the next request.
_MOST_FREE = 4_096
_FREED = 1_024  # places by each look of the monitor, four times per second


class Metrics:
    """The counters of one service, whatever detector it uses."""

    def __init__(self, limits: RequestLimits) -> None:
        self._limits = limits
        self.registry = CollectorRegistry()
        self.registry.register(self)
        new = functools.partial(Counter, registry=self.registry)
        self.samples = new("nescio_samples", "Inputs scored.")
        self.flagged = new("nescio_flagged", "Inputs flagged.")
        self.watched = new("nescio_watched", "Inputs that the monitor has seen.")
        self._requests = new("nescio_requests", "Requests answered.", ("path", "status"))
        self._seconds = Histogram(
            "nescio_request_seconds",
            "Time from the headers of a request to the end of its answer.",
            ("path",),
            buckets=_SECONDS,
            registry=self.registry,
        )
        self._rejected = new("nescio_rejected", "Requests rejected with 503.")
        self.reloads = new("nescio_reloads", "Reloads of the detector.", ("result",))
        # From 0: Prometheus sees no increase if a counter appears together with its first event.
        for result in ("done", "failed"):
            self.reloads.labels(result)
        for path in ("/v1/score", "/v1/predict"):
            self._requests.labels(path, "500")

    def collect(self) -> Iterator[Metric]:
        """Return the metrics of the moment; prometheus_client calls this."""
        limits = self._limits
        n_dropped = sum(getattr(handler, "n_dropped", 0) for handler in logger.handlers)
        yield CounterMetricFamily("nescio_log_lines_dropped", "Lines not written.", n_dropped)
        for name, meaning, value in (
            ("nescio_requests_in_progress", "Requests in progress.", limits.n_requests),
            ("nescio_requests_limit", "Value of --max-requests.", limits.max_requests),
            ("nescio_waiting_bytes", "Their bodies and answers.", limits.n_bytes + limits.n_held),
        ):
            yield GaugeMetricFamily(name, meaning, value)

    def count(self, path: str, status: int, seconds: float) -> None:
        """Count a request that was answered."""
        self._requests.labels(path, str(status)).inc()
        self._seconds.labels(path).observe(seconds)
        if status == 503:
            self._rejected.inc()


class Traffic:
    """What one detector has scored: its scores, the latest p-values, and the monitor.

    `names` are the label names, or their positions; empty if the number of labels is not known.
    """

    def __init__(
        self,
        detector: Detector,
        names: Sequence[str],
        monitor: Monitor,
        state: Path | None,
        metrics: Metrics,
    ) -> None:
        self.monitor = monitor
        self.n_watched = 0
        self.has_new_alarm = False  # that is not saved yet
        self._metrics = metrics
        self._state = state
        self._names = names
        # One for all groups: the largest share that a calibrated detector flags of its own data.
        self._allowed = 1 - min(group.tpr for group in detector.calibration_.thresholds.values())
        scores = detector.calibration_.scores
        shares = np.linspace(0, 1, _SCORE_BUCKETS + 1)
        self._bounds = np.unique(np.quantile(scores[np.isfinite(scores)], shares))
        self._counting = threading.Lock()  # for everything that `record` changes
        self._counts = np.zeros(len(self._bounds) + 1, dtype=np.int64)
        self._sum = 0.0
        self._fired = np.zeros(len(names), dtype=np.int64)
        self._noted: list[tuple[float, Assessment]] = []  # with the times of the answers
        self._n_free = _MOST_FREE
        self._watching = threading.Lock()
        self._recent: deque[tuple[float, float, bool]] = deque(maxlen=_RECENT)

    def record(self, outputs: Outputs, assessment: Assessment) -> None:
        """Count all rows of an answer, and keep some for the next call of `watch`."""
        scores, logits, n_rows = assessment.scores, outputs.logits, len(outputs)
        up_to = np.searchsorted(np.sort(scores), self._bounds, side="right")  # NaN comes last
        total = float(scores.sum(where=np.isfinite(scores)))
        self._metrics.samples.inc(n_rows)
        self._metrics.flagged.inc(n_rows - int(assessment.in_distribution.sum()))
        # A product takes a third of the time of a sum. It is exact: a request has fewer rows than
        # the 2**24 whole numbers that float32 can hold.
        fired = np.ones(n_rows, np.float32) @ (logits > 0).astype(np.float32)
        with self._counting:
            self._counts[:-1] += up_to
            self._counts[-1] += n_rows
            self._sum += total
            if self._names:
                self._fired += fired.astype(np.int64)
            n_kept = min(n_rows, self._n_free // 2)
            if n_kept > 0:
                rows = np.arange(n_kept) * n_rows // n_kept
                # Other requests may have no kept columns or ids: they could not be joined.
                kept = replace(assessment, kept={})[rows]
                ids = np.full(n_kept, "") if kept.ids is None else kept.ids.astype("U100")
                self._noted.append((time.time(), replace(kept, ids=ids)))  # long ids are cut
                self._n_free -= n_kept

    def watch(self) -> None:
        """Show the kept rows to the monitor, and store their p-values for the page."""
        with self._watching:
            with self._counting:
                noted, self._noted = self._noted, []
                self._n_free = min(_MOST_FREE, self._n_free + _FREED)
            if not noted:
                return
            assessment = Assessment.concat([part for _, part in noted])
            times, texts = [], []
            for seconds, part in noted:
                text = time.strftime("%Y-%m-%d %H:%M:%S UTC", time.gmtime(seconds))
                times += [seconds] * len(part)
                texts += [text] * len(part)
            was_alarmed = self.monitor.alarm
            self.monitor.update(assessment, times=texts)
            if self.monitor.alarm and not was_alarmed:
                self.has_new_alarm = True
                logger.warning("alarm", extra={"reason": self.monitor.summary().partition("\n")[0]})
            self.n_watched += len(assessment)
            self._metrics.watched.inc(len(assessment))
            p_values, inside = assessment.p_values.tolist(), assessment.in_distribution.tolist()
            self._recent.extend(zip(times, p_values, inside, strict=True))

    def report(self, stopping: bool, width: int | UnsetType = UNSET) -> TrafficReport:
        """Return what the monitor says, with charts if their width is set; none without traffic."""
        n_scored = int(self._counts[-1])
        self.watch()
        with self._watching:
            monitor = msgspec.convert(self.monitor.as_dict(), MonitorReport)
            if self.n_watched < n_scored:
                line = f"\n{self.n_watched:,} of {n_scored:,} inputs were watched.\n"
                monitor.summary = monitor.summary.replace("\n", line, 1)
            report = TrafficReport(self.n_watched, monitor, stopping)
            if width is not UNSET:
                recent = [self._recent_p_values(width)] if self._recent else []
                figures = monitor_figures(self.monitor, width) if self.monitor.n_samples else []
                report.charts = [ChartOf(*map(str, figure)) for figure in recent + figures]
            return report

    def acknowledge(self, note: str) -> dict[str, Any]:
        """Record the change as dealt with, and let the monitor start again."""
        self.watch()
        with self._watching:
            record = self.monitor.acknowledge(note)
            self._recent.clear()  # the charts start again as well
            return record

    def _recent_p_values(self, width: int) -> Figure:
        """Draw one dot per input in the order of arrival, and a cross if it was flagged."""
        times, p_values, inside = map(np.array, zip(*self._recent, strict=True))
        n, n_flagged = len(times), int(np.count_nonzero(~inside))
        marked = n - 1 - n // 12, n // 2, n // 12
        ticks = {time.strftime("%H:%M:%S", time.gmtime(times[row])): row for row in marked}
        chart = Chart(
            Scale(-0.5 - n / 100, n - 0.5 + n / 100),
            Scale(1 / (1 + self.monitor.calibration.n_samples) / 1.5, 1.5, log=True),
            name=f"p-values of the latest {n} inputs, {n_flagged} of them flagged.",
            width=width,
            height=240,
            y_label="p-value",
            x_ticks=[(row, text) for text, row in ticks.items()],  # no time twice
        )
        for kind, shape in (("dots in", "h0"), ("crosses out", "m-3 -3l6 6m0 -6l-6 6")):
            rows = np.flatnonzero(inside if kind == "dots in" else ~inside)
            chart.scatter(rows, p_values[rows], kind, shape)
        chart.rule(y=self._allowed)
        text = f"flagged below {short(self._allowed)} (dashed)"  # above the frame, over no cross
        chart.notes.append(f'<text x="{chart.width}" y="-4" text-anchor="end">{text}</text>')
        text = f"of the latest {n:,} of {self.n_watched:,} inputs, oldest first; times in UTC"
        return "p-values", text, chart.draw()

    def collect(self) -> Iterator[Metric]:
        """Return the metrics; prometheus_client calls this."""
        with self._counting:
            counts, total, fired = self._counts.tolist(), self._sum, self._fired.tolist()
        evidence, alarm = self.monitor.log10_martingale, self.monitor.alarm
        for name, meaning, value in (
            ("nescio_flagged_share_allowed", "Expected share flagged: 1 - TPR.", self._allowed),
            ("nescio_monitor_log10_evidence", "Evidence of a change, power of ten.", evidence),
            ("nescio_monitor_alarm", "1 once the monitor has raised the alarm.", float(alarm)),
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
        for name, n_fired in zip(self._names, fired, strict=True):
            firing.add_metric([name], n_fired)
        yield firing

    def save(self) -> None:
        """Save the state of the monitor, if the settings name a file for it."""
        self.has_new_alarm = False
        if self._state is not None:
            with self._watching:
                self.monitor.save(self._state, force=True)

    def follow(self, old: Traffic) -> None:
        """Go on from the traffic of another detector, whose monitor is closed and set aside."""
        old.watch()
        with self._watching, old._watching:
            if self._names == old._names:
                self._fired = old._fired
            _log_new_monitor(self._state)
            if self._state is not None:  # first: closing the alarm forgets its evidence
                old.monitor.save(_aside(self._state), force=True)
            if old.monitor.changed:
                old.monitor.acknowledge("closed by a reload: another detector")
            self.monitor.acknowledged = old.monitor.acknowledged
            if self._state is not None:
                self.monitor.save(self._state, force=True)


def stored_monitor(detector: Detector, alpha: float, state: Path | None) -> Monitor:
    """Return the monitor saved in `state`, or a new one if there is none.

    The state of a monitor for another detector is set aside.
    """
    try:
        monitor = resume(detector, state, alpha=alpha)
        if state is not None and state.exists():
            logger.info("state loaded", extra={"inputs": monitor.n_samples, "alarm": monitor.alarm})
        return monitor
    except InputError:
        assert state is not None
        os.replace(os.path.realpath(state), _aside(state))
        _log_new_monitor(state)
        return Monitor(detector, alpha=alpha)


def _aside(state: Path) -> str:
    """Return where the state of a monitor for another detector is kept."""
    return f"{os.path.realpath(state)}.old"


def _log_new_monitor(state: Path | None) -> None:
    facts = {"reason": "another detector", "old_state": None if state is None else _aside(state)}
    logger.warning("the monitor starts anew", extra=facts)
