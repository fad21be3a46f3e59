"""Figures on matplotlib: what they show, where they draw, and what they need."""

import subprocess
import sys

import numpy as np
import pytest

import nescio as ns
from nescio._charts.svg import palette
from nescio.errors import InputError, MissingDependencyError, ParameterError
from nescio.metrics import auroc

matplotlib = pytest.importorskip("matplotlib")
matplotlib.use("agg")
pyplot = pytest.importorskip("matplotlib.pyplot")


@pytest.fixture(autouse=True)
def _closed():
    yield
    pyplot.close("all")


@pytest.fixture(scope="module")
def data():
    rng = np.random.default_rng(0)
    return rng.normal(0, 3, (400, 6)), rng.normal(0, 3, (100, 6)), rng.normal(-4, 2, (100, 6))


@pytest.fixture(scope="module")
def detector(data):
    return ns.JointEnergy().calibrate(data[0])


def legend(display):
    return [text.get_text() for text in display.ax_.get_legend().get_texts()]


def drawn(data, detector):
    """Every display, by the result or the detector that it is made from."""
    _, new, far = data
    compared = ns.compare(new, far, ["joint_energy", "max_logit"], n_bootstrap=0)
    histogram = ns.ScoreHistogramDisplay
    return {
        "detector": lambda ax: histogram.from_detector(detector, new, ood=far, ax=ax),
        "few samples": lambda ax: histogram.from_detector(detector, far[:5], ax=ax),
        "calibration": lambda ax: histogram(detector.calibration_).plot(ax),
        "comparison": lambda ax: compared.plot(ax),
    }


def test_all_draw_where_they_are_told_to_and_name_their_axes(data, detector):
    for name, draw in drawn(data, detector).items():
        _, (_, ax) = pyplot.subplots(1, 2)
        display = draw(ax)
        assert display.ax_ is ax, name
        assert display.figure_ is ax.figure, name
        assert ax.get_xlabel(), name
        assert display.plot() is display, name
        assert display.ax_ is not ax, name
        pyplot.close("all")


def test_a_legend_covers_no_data(data, detector):
    displays = drawn(data, detector)
    for name in ("detector", "comparison"):
        display = displays[name](None)
        display.figure_.draw_without_rendering()
        legend_, axes = display.ax_.get_legend(), display.ax_
        assert legend_.get_window_extent().x0 >= axes.get_window_extent().x1, name
        assert legend_.get_window_extent().x1 <= display.figure_.bbox.x1, name


def test_a_histogram_shows_the_threshold_and_every_set(data, detector):
    _, new, far = data
    display = ns.ScoreHistogramDisplay.from_detector(detector, new, ood={"far away": far})
    threshold = f"threshold {detector.offset_:.4g}"
    assert legend(display) == ["calibration (400)", "new data (100)", "far away (100)", threshold]
    line = display.ax_.lines[0].get_xdata()
    assert line[0] == pytest.approx(detector.offset_)
    many = ns.JointEnergy().calibrate(data[0], groups=np.arange(400) % 3)
    assert legend(ns.ScoreHistogramDisplay.from_detector(many)) == [
        "calibration (400)",
        "4 thresholds",  # of each group, and of all
    ]


def test_scores_beyond_the_axis_are_counted(data, detector):
    scores = {"far": np.array([-np.inf, -1e9, 2.0] + [1.0] * 40)}
    display = ns.ScoreHistogramDisplay(detector.calibration_, scores).plot()
    below = np.count_nonzero(detector.calibration_.scores < display.ax_.get_xlim()[0])
    assert f"◀ {2 + below} off the axis" in [text.get_text() for text in display.ax_.texts]


def test_curves_have_the_area_of_the_metric(data, detector):
    _, new, far = data
    scores = detector.score_samples(new).round(), detector.score_samples(far).round()  # with ties
    display = ns.RocDisplay({"rounded": scores}).plot()
    name, area = legend(display)[0].split()
    assert name == "rounded"
    assert float(area.strip("()")) == pytest.approx(100 * auroc(*scores), abs=0.006)


def test_a_comparison_shows_the_best_on_the_set_that_is_named(data):
    _, new, far = data
    sets = {"far": far, "new": new[::-1] - 1}
    compared = ns.compare(new, sets, ["msp", "max_logit", "joint_energy"], n_bootstrap=0)
    drawn = list(compared.plot(ood="new").scores)
    assert drawn == compared.ranked("new") != list(compared.results["new"])
    assert compared.plot().ood_name == "far"
    with pytest.raises(ParameterError, match="no OOD set 'near'; the comparison has 'far', 'new'"):
        compared.plot(ood="near")


def test_the_colours_suit_the_background(detector):
    for face, dark in (("white", False), ("#101010", True)):
        _, ax = pyplot.subplots(facecolor=face)
        ax.set_facecolor(face)
        line = ns.ScoreHistogramDisplay.from_detector(detector, ax=ax).ax_.lines[0]
        assert line.get_color() == palette(dark=dark)["ink"]


def test_what_cannot_be_drawn_is_said():
    with pytest.raises(InputError, match="not calibrated"):
        ns.ScoreHistogramDisplay.from_detector(ns.JointEnergy())


def test_matplotlib_is_needed_only_to_draw(monkeypatch, detector):
    monkeypatch.setitem(sys.modules, "matplotlib.pyplot", None)
    with pytest.raises(MissingDependencyError, match=r"pip install '\.\[report\]'"):
        ns.ScoreHistogramDisplay.from_detector(detector)
    code = "import sys, nescio.displays; print('matplotlib' in sys.modules)"
    finished = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True
    )
    assert finished.stdout.strip() == "False"
