"""The page of a monitor."""

import re

import pytest

import nescio as ns
from fixtures.streams import fed, logits_of
from nescio.errors import FileError, ParameterError
from nescio.lab.report import draw_monitor
from nescio.monitor import Monitor


def test_a_plot_without_inputs(tmp_path, rng):
    detector = ns.JointEnergy().calibrate(logits_of(rng, 100))
    draw_monitor(Monitor(detector), tmp_path / "a.html")
    assert "nan" not in (tmp_path / "a.html").read_text("utf-8").lower()


def test_the_plot_shows_the_incomplete_window_and_the_start_of_a_change(tmp_path, rng):
    detector = ns.JointEnergy().calibrate(logits_of(rng, 1500))
    monitor = fed(Monitor(detector), detector, logits_of(rng, 500))
    fed(monitor, detector, logits_of(rng, 120, shift=-2.0))
    draw_monitor(monitor, tmp_path / "plot.html")
    text = (tmp_path / "plot.html").read_text("utf-8")
    assert text.count('class="dot ') == 2
    assert "inputs 501 to 620" in text
    assert "(window incomplete)" in text
    assert "The last window is incomplete: it has 120 inputs." in text
    assert f"changed at about input {monitor.change.since.number:,}" in text


def test_the_plot_shows_alarm_and_windows(tmp_path, rng):
    detector = ns.JointEnergy().calibrate(logits_of(rng, 1500))
    monitor, ids = Monitor(detector), ["<script>alert(1)</script>"] * 1500
    monitor.update(detector.assess(ns.Outputs(logits_of(rng, 1500, shift=-1.5), ids=ids)))
    draw_monitor(monitor, tmp_path / "plot.html")
    text = (tmp_path / "plot.html").read_text("utf-8")
    assert "<script" not in text
    assert "&lt;script" in text
    assert text.count('class="dot out"') == 3
    assert f"alarm after {monitor.alarm_at:,} inputs" in text
    [summary] = re.findall("<pre>(.*?)</pre>", text, re.DOTALL)
    assert summary.startswith("ALARM: since about input ")
    with pytest.raises(FileError, match="exists already"):
        draw_monitor(monitor, tmp_path / "plot.html")
    with pytest.raises(ParameterError, match=r"must end in \.html"):
        draw_monitor(monitor, tmp_path / "plot.png")
