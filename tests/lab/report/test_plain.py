"""The pages of a monitor and of `nescio choose`."""

import re

import pytest

import nescio as ns
from fixtures.labelled import labelled
from fixtures.streams import fed, logits_of
from nescio.errors import FileError, ParameterError
from nescio.lab.report import draw_choice, draw_monitor
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


HOSTILE = ["<script>alert(1)</script>", *map(str, range(7))]


def test_the_page_shows_the_ranking_near_and_far_and_the_folds(tmp_path):
    train, held_out = (labelled(seed=seed, label_names=HOSTILE) for seed in (0, 1))
    choice = ns.choose(train, held_out, detectors=["joint_energy", "knn", "max_logit"], n_folds=3)
    draw_choice(choice, tmp_path / "a.html")
    text = (tmp_path / "a.html").read_text("utf-8")
    assert "<script" not in text
    assert "&lt;script" in text
    [chosen] = re.findall('<tr class="chosen"><td>(.*?)</td>', text)
    assert chosen == choice.pick
    for row in choice.rows():
        assert all(cell in text for cell in row)
    assert text.count("<circle") == 3
    assert text.count("<tr") == 1 + 3 + 1 + 3
    assert "nan" not in text.lower()


def test_without_far_data_there_is_no_chart(tmp_path):
    train, held_out = (labelled(seed=seed, features=False) for seed in (0, 1))
    choice = ns.choose(train, held_out, detectors=["joint_energy"], n_folds=8)
    draw_choice(choice, tmp_path / "a.html")
    text = (tmp_path / "a.html").read_text("utf-8")
    assert "<svg" not in text
    assert "weaker simulation" in text
