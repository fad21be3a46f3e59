"""The charts that the service draws for the page."""

import re
import xml.etree.ElementTree as ElementTree
from pathlib import Path

import numpy as np
import pytest

import nescio as ns
from nescio.service import Settings
from nescio.service.openapi import RecentInputs, TrafficReport
from nescio.service.service import Engine
from nescio.service.traffic import score_chart, traffic_charts

SVG = "{http://www.w3.org/2000/svg}"


@pytest.fixture
def engine(detector_file):
    def make(**calibration):
        return Engine(Settings(detector_file(**calibration)))

    return make


@pytest.fixture
def engine_of(tmp_path):
    """Make an engine with these calibration scores."""

    def make(scores):
        detector = ns.MaxLogit().calibrate(np.asarray(scores)[:, None])
        detector.save(Path(tmp_path / "scores.nescio"), force=True)
        return Engine(Settings(tmp_path / "scores.nescio"))

    return make


def marked_x(chart):
    """The x of the marker, and the direction in which the score lies beyond the histogram."""
    (marker,) = (group for group in chart.iter(f"{SVG}g") if group.get("data-mark") == "score")
    path = marker.find(f"{SVG}path").get("d")
    return float(re.match(r"M(\S+) ", path)[1]), marker.get("data-beyond")


def test_the_score_is_marked_on_either_side_of_the_threshold(engine):
    served = engine()
    (threshold,) = served.calibration.threshold_values.values()
    for score, verdict in ((threshold - 0.01, "out"), (threshold, "in"), (threshold + 1, "in")):
        text = score_chart(served, score, "all", 500)
        chart = ElementTree.fromstring(text)
        assert chart.get("viewBox").startswith("0 0 500 ")
        assert f'class="marker {verdict}"' in text
        assert {"area out", "area in"} <= {path.get("class") for path in chart.iter(f"{SVG}path")}
    for score, x, beyond in ((-1e300, 0.0, "left"), (1e300, 500.0 - 2 * 14, "right")):
        chart = ElementTree.fromstring(score_chart(served, score, "all", 500))
        assert marked_x(chart) == (x, beyond)


def test_outliers_of_the_calibration_do_not_flatten_the_histogram(engine_of, rng):
    scores = rng.normal(size=1000)
    scores[:20] *= 1e4  # 2 %, as Mahalanobis scores have them
    served = engine_of(scores)
    histogram = served.histograms[None]
    assert histogram.lower + histogram.higher == 20
    assert sum(histogram.counts) == 1000
    assert max(histogram.counts) < 120
    text = score_chart(served, 0.0, "all", 600)
    assert f"◀ {histogram.lower} lower" in text
    assert f"{histogram.higher} higher ▶" in text


def test_a_threshold_among_outliers_is_drawn_at_the_edge(engine_of, rng):
    scores = rng.normal(size=1000)
    scores[:100] -= 1e4
    served = engine_of(scores)
    (threshold,) = served.calibration.threshold_values.values()
    assert threshold < served.histograms[None].edges[0]
    text = score_chart(served, 0.0, "all", 600)
    ElementTree.fromstring(text)
    assert "nan" not in text
    assert "threshold" in text
    (recent, *_) = drawn(served, [0.1, 0.2, -5e3], [True, True, False])
    ElementTree.fromstring(recent.svg)


def test_a_group_has_its_own_histogram_and_threshold(engine):
    served = engine(groups="label_count")
    names = list(served.calibration.threshold_values)
    charts = {score_chart(served, 3.0, name, 500) for name in names}
    assert len(charts) == len(names) > 1


def drawn(served, scores, inside):
    """Return the charts of recent traffic."""
    recent = RecentInputs(list(range(len(scores))), scores, inside)
    return traffic_charts(served, TrafficReport(len(scores), recent, {}, False), 600)


def test_every_input_is_drawn_once_even_without_a_score(engine):
    scores = [*np.linspace(0, 9, 30).tolist(), np.nan, -np.inf, 1e9]
    inside = [score > 4 for score in scores]
    charts = drawn(engine(), scores, inside)
    assert [chart.title for chart in charts] == ["Scores", "Evidence of a change"]
    svg = ElementTree.fromstring(charts[0].svg)
    paths = {path.get("class"): path.get("d") for path in svg.iter("path")}
    assert paths["dots in few"].count("M") == sum(inside)
    assert paths["crosses out"].count("M") == len(inside) - sum(inside)
    assert "nan" not in charts[0].svg
    assert drawn(engine(), [], []) == []
