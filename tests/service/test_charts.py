"""The charts that the service draws for the page."""

import re
import xml.etree.ElementTree as ElementTree

import numpy as np
import pytest

import nescio as ns
from nescio.service.charts import score_chart, traffic_charts
from nescio.service.engine import Engine

SVG = "{http://www.w3.org/2000/svg}"


@pytest.fixture
def engine(detector_file):
    def make(**calibration):
        return Engine(ns.load(detector_file(**calibration)), None)

    return make


def marked_x(chart):
    """The x of the marker, and the direction in which the score lies beyond the histogram."""
    (marker,) = (group for group in chart.iter(f"{SVG}g") if group.get("data-mark") == "score")
    path = marker.find(f"{SVG}path").get("d")
    return float(re.match(r"M(\S+) ", path)[1]), marker.get("data-beyond")


def test_the_score_is_marked_on_either_side_of_the_threshold(engine):
    found = engine()
    (threshold,) = found.calibration.threshold_values.values()
    for score, verdict in ((threshold - 0.01, "out"), (threshold, "in"), (threshold + 1, "in")):
        text = score_chart(found, score, "all", 500)
        chart = ElementTree.fromstring(text)
        assert chart.get("viewBox").startswith("0 0 500 ")
        assert f'class="marker {verdict}"' in text
        assert {"area out", "area in"} <= {path.get("class") for path in chart.iter(f"{SVG}path")}


def test_a_score_beyond_the_histogram_is_marked_at_its_edge(engine):
    found = engine()
    width = float(500 - 2 * 14)
    for score, x, beyond in ((-1e300, 0.0, "left"), (1e300, width, "right")):
        chart = ElementTree.fromstring(score_chart(found, score, "all", 500))
        assert marked_x(chart) == (x, beyond)


def with_scores(scores, tpr=0.95):
    """Return an engine whose calibration scores are these, and its only label's logits."""
    detector = ns.MaxLogit(tpr=tpr).calibrate(np.asarray(scores)[:, None])
    return Engine(detector, None)


def test_outliers_of_the_calibration_do_not_flatten_the_histogram(rng):
    scores = rng.normal(size=1000)
    scores[:20] *= 1e4  # 2 %, as Mahalanobis scores have them
    found = with_scores(scores)
    histogram = found.histograms[None]
    assert histogram.lower + histogram.higher == 20
    assert sum(histogram.counts) == 1000
    assert max(histogram.counts) < 120
    text = score_chart(found, 0.0, "all", 600)
    assert f"◀ {histogram.lower} lower" in text
    assert f"{histogram.higher} higher ▶" in text
    quiet = with_scores(rng.normal(size=1000)).histograms[None]
    assert quiet.lower == quiet.higher == 0


def test_a_threshold_among_outliers_is_drawn_at_the_edge(rng):
    scores = rng.normal(size=1000)
    scores[:100] -= 1e4
    found = with_scores(scores)
    (threshold,) = found.calibration.threshold_values.values()
    histogram = found.histograms[None]
    assert threshold < histogram.edges[0]
    assert max(histogram.counts) < 150
    text = score_chart(found, 0.0, "all", 600)
    ElementTree.fromstring(text)
    assert "nan" not in text
    assert "threshold" in text
    chunk = {"n": 3, "share": 0.5, "low": 0.0, "high": 0.2}
    charts = traffic_charts(found, snapshot([0.1, 0.2, -5e3], [True, True, False], [chunk]), 600)
    ElementTree.fromstring(charts["scores"])


def test_scores_that_are_mostly_equal_have_a_histogram():
    scores = np.r_[np.full(80, 7.0), np.linspace(-3, 3, 20)]
    histogram = with_scores(scores).histograms[None]
    assert sum(histogram.counts) == len(scores)
    assert histogram.edges[0] < histogram.edges[-1]


def test_a_group_has_its_own_histogram_and_threshold(engine):
    found = engine(groups="label_count")
    names = list(found.calibration.threshold_values)
    charts = {score_chart(found, 3.0, name, 500) for name in names}
    assert len(charts) == len(names) > 1


def snapshot(scores, inside, chunks):
    times = list(range(len(scores)))
    recent = {"time": times, "score": scores, "in_distribution": inside}
    return {"recent": recent, "flagged": {"chunks": chunks}}


def test_every_input_is_drawn_once_even_without_a_score(engine):
    scores = [*np.linspace(0, 9, 30).tolist(), None, -1e9, 1e9]
    inside = [score is not None and score > 4 for score in scores]
    chunk = {"n": 33, "share": 0.5, "low": 0.0, "high": 0.2}
    charts = traffic_charts(engine(), snapshot(scores, inside, [chunk]), 600)
    drawn = ElementTree.fromstring(charts["scores"])
    paths = {path.get("class"): path.get("d") for path in drawn.iter("path")}
    assert paths["dots in few"].count("M") == sum(inside)
    assert paths["crosses out"].count("M") == len(inside) - sum(inside)
    assert "nan" not in charts["scores"]
    assert charts["flagged"].count("point out") == 1


def test_a_chunk_of_few_inputs_is_left_out(engine):
    full = {"n": 25, "share": 0.04, "low": 0.0, "high": 0.2}
    charts = traffic_charts(engine(), snapshot([5.0], [True], [full, full | {"n": 12}]), 600)
    assert charts["flagged"].count("point in") == 1


def test_without_traffic_there_is_nothing_to_draw(engine):
    assert traffic_charts(engine(), snapshot([], [], []), 600) == {}
