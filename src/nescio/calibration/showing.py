"""A calibration as a notebook shows it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from nescio._charts.cards import card, short_table
from nescio._charts.histogram import Batch, Histogram, HistogramChart
from nescio._charts.svg import Markup

if TYPE_CHECKING:
    from nescio.calibration.calibration import Calibration


def histogram_chart(calibration: Calibration, batch: Batch | None = None) -> Markup:
    """Draw the calibration scores and the thresholds, and the scores of a batch on them."""
    thresholds = list(calibration.threshold_values.values())
    others = [] if batch is None else [batch.scores]
    what = "score: calibration, cut at the threshold" if len(thresholds) == 1 else "score"
    chart = HistogramChart(
        Histogram.of(calibration.scores, thresholds, others),
        thresholds,
        name="Histogram of the calibration scores, with the threshold",
        batch=batch,
        x_label=what if batch is None else "score: calibration (filled), these samples (lines)",
    )
    return chart.draw()


def calibration_card(calibration: Calibration) -> str:
    """Return the thresholds, the guarantee and the calibration scores."""
    single = calibration.by is None
    rows = [
        (name, f"{one.value:.5g}", f"{one.n_samples:,}", "{:.4f} to {:.4f}".format(*interval))
        for name, one in calibration.thresholds.items()
        for interval in [one.tpr_interval()]
    ]
    titles = ("group", "threshold", "samples", "true TPR, 99 %")
    return card(
        f"Calibration: {calibration.summary()}",
        calibration.statement() if single else short_table(titles, rows),
        histogram_chart(calibration),
    )
