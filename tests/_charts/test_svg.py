"""Scales, ticks and marks of the charts."""

import re

import numpy as np
import pytest
from hypothesis import given, strategies as st

from nescio._charts.svg import Chart, Scale, percent, short

_ends = st.floats(-1e6, 1e6, allow_nan=False)


def _chart(**options):
    return Chart(Scale(0, 10), Scale(0, 1), name="a chart", width=200, height=100, **options)


@given(_ends, st.floats(1e-6, 1e6))
def test_ticks_are_few_and_within_the_scale(low, span):
    scale = Scale(low, low + span)
    ticks = [value for value, _ in scale.ticks()]
    assert len(ticks) <= 12
    slack = 1e-6 * span
    assert all(scale.low - slack <= value <= scale.high + slack for value in ticks)


def test_ticks_are_round_numbers():
    assert [text for _, text in Scale(-0.3, 1.1).ticks()] == ["0", "0.5", "1"]
    assert [text for _, text in Scale(-12, 30).ticks()] == ["−10", "0", "10", "20", "30"]
    assert [text for _, text in Scale(0.7, 1.0, write=percent).ticks(3)] == [
        "70",
        "80",
        "90",
        "100",
    ]


def test_log_ticks_are_powers_of_ten():
    ticks = Scale(2e-6, 30, log=True).ticks(8)
    assert [text for _, text in ticks] == ["10⁻⁵", "10⁻⁴", "0.001", "0.01", "0.1", "1", "10"]
    ticks = Scale(500, 20_000, log=True).ticks()
    assert [text for _, text in ticks] == ["1000", "10⁴"]  # five digits would reach the label
    np.testing.assert_allclose(Scale(0.1, 10, log=True).place([0.1, 1, 10], 50), [0, 25, 50])


def test_a_scale_without_width_still_places():
    assert Scale(3, 3).place([3.0], 100).tolist() == [0]
    assert Scale(3, 3).ticks() == [(3, "3")]


def test_what_has_no_number_gets_a_place():
    placed = Scale(0, 1).place([np.nan, -np.inf, np.inf, 1e300, -1e300], 10)
    assert np.isfinite(placed).all()
    assert placed[1] < 0 < 10 < placed[2]


@pytest.mark.parametrize(
    ("value", "text"), [(-0.92551, "−0.9255"), (0.0, "0"), (-np.inf, "−∞"), (np.inf, "∞")]
)
def test_scores_are_written_short(value, text):
    assert short(value) == text


def test_lines_are_thinned_and_keyed():
    chart = _chart()
    chart.line([0, 0, 10], [0, 0, 1], "c1", curve=4, tip="<one>")
    drawn = chart.draw()
    path = re.search(r'<path class="line c1" data-curve="4" d="M([^"]*)">', drawn)[1]
    assert len(path.split()) == 4  # the repeated point is gone
    assert "<title>&lt;one&gt;</title>" in drawn


def test_names_and_labels_are_escaped():
    drawn = _chart(x_label="<x>", x_ticks=[(0, "<t>\n<u>")]).draw()
    assert "<x>" not in drawn
    assert "&lt;t&gt;" in drawn
    assert "&lt;u&gt;" in drawn
    assert 'role="img"' in drawn
    assert 'aria-label="a chart"' in drawn


def test_a_band_is_closed_around_what_lies_between_two_lines():
    chart = _chart()
    chart.band([0, 5, 10], [0.2, 0.2, 0.2], [0.6, 0.8, 0.6], "expected")
    [path] = re.findall(r'<path class="area expected" d="(M[^"]+)Z"/>', chart.draw())
    points = path.removeprefix("M").split()
    assert len(points) == 2 * 6
    assert points[1] == points[5] != points[3]
    assert points[7] == points[9] == points[11]
