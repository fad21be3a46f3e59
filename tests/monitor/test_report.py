"""The report of a monitor: its text and its JSON."""

import json
import re
from dataclasses import replace

import pytest

import nescio as ns
from fixtures.streams import fed, logits_of
from nescio.errors import FileError, ParameterError
from nescio.monitor import Monitor, draw_monitor
from nescio.monitor.report import _odds

_LASTING = "The change may last: a stream is also compared with itself, so evidence fades."


def test_an_alarm_says_first_what_changed_since_when_and_what_to_do_and_last_why(detector, rng):
    monitor = fed(Monitor(detector), detector, logits_of(rng, 1000))
    monitor = fed(monitor, detector, logits_of(rng, 700, shift=-1.0))
    first, advice, *_, last = monitor.summary().split("\n")
    since = monitor.change.since.number
    assert first == (
        f"ALARM: since about input {since:,}, the inputs score lower than the calibration data. "
        f"This was noticed at input {monitor.alarm_at:,} of 1,700."
    )
    assert 950 <= since <= monitor.alarm_at
    assert advice.startswith("What to do: look at these inputs.")
    assert last.startswith("Evidence for a change of the scores:")
    assert "martingale" not in monitor.summary()
    assert "gambler" not in monitor.summary()


@pytest.mark.parametrize(
    ("most", "what"),
    [
        (3.9, "It may have been chance."),  # less than 100 times the limit of the alarm
        (193.0, _LASTING),
    ],
)
def test_an_alarm_whose_evidence_has_faded_may_have_been_chance_if_weak(detector, rng, most, what):
    monitor = fed(Monitor(detector), detector, logits_of(rng, 700, shift=1.0))
    assert "the model is more confident than usual" in monitor.summary().split("\n")[0]
    assert "since faded" not in monitor.summary()
    monitor.log10_martingale, monitor.max_log10_martingale = -0.921, most
    monitor.chart.windows[0] = replace(monitor.chart.windows[0], flagged=25)
    monitor.chart.open_flagged = 10
    second = monitor.summary().split("\n")[1]
    assert second == f"The evidence has since faded (0.12 to 1 now). {what}"
    monitor.chart.windows[0] = replace(monitor.chart.windows[0], flagged=100)
    assert _LASTING in monitor.summary()  # never chance while a window is outside its range


def test_the_newest_incomplete_window_is_reported(detector, rng):
    monitor = fed(Monitor(detector), detector, logits_of(rng, 500))
    share = fed(monitor, detector, logits_of(rng, 60)).windows[-1].share
    assert f"newest inputs, window incomplete, inputs 501 to 560: {share:.1%}" in str(monitor)
    monitor.chart.open_flagged = 30
    assert str(monitor).startswith(
        "No alarm so far in 560 inputs, but 1 of 2 windows flagged more than expected: look at"
    )


def test_the_first_line_agrees_with_the_windows(detector, rng):
    monitor = fed(Monitor(detector), detector, logits_of(rng, 1500))
    first, *_ = monitor.chart.windows
    monitor.chart.windows[0] = replace(first, flagged=100)  # long ago, but one of three
    assert "1 of 3 windows flagged more than expected" in str(monitor)
    monitor.chart.windows[2] = replace(first, flagged=0)
    assert "2 of 3 windows flagged more or fewer than expected" in str(monitor)
    monitor.chart.windows.extend([first] * 297)  # three in 300 may be chance
    assert str(monitor).startswith("No alarm: the 1,500 inputs")


def test_without_a_change_this_is_said_with_numbers(detector, rng):
    monitor = fed(Monitor(detector), detector, logits_of(rng, 1000))
    first, second, *_ = str(monitor).split("\n")
    assert first == "No alarm: the 1,000 inputs look like the calibration data."
    assert second.startswith(f"Flagged as out-of-distribution: {monitor.flagged} of 1,000 (")
    assert second.endswith("%); about 5.00% is expected.")
    assert monitor.expected_share == pytest.approx(0.05, abs=0.001)
    assert Monitor(detector).expected_share == pytest.approx(0.05, abs=0.001)  # before any input


def test_the_report_is_json(detector, rng):
    monitor = fed(Monitor(detector), detector, logits_of(rng, 1234))
    content = json.loads(json.dumps(monitor.as_dict()))
    assert content["n_samples"] == 1234
    assert content["windows"][0]["low"] <= 25 <= content["windows"][0]["high"]
    assert content["open_window"]["n"] == 234
    assert content["change"] is None
    assert content["summary"] == monitor.summary()


# --- as a page ---


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
    assert f"change at {monitor.change.since.number:,}" in text


def test_the_plot_shows_alarm_and_windows(tmp_path, rng):
    detector = ns.JointEnergy().calibrate(logits_of(rng, 1500))
    monitor, ids = Monitor(detector), ["<script>alert(1)</script>"] * 1500
    monitor.update(detector.assess(ns.Outputs(logits_of(rng, 1500, shift=-1.5), ids=ids)))
    draw_monitor(monitor, tmp_path / "plot.html")
    text = (tmp_path / "plot.html").read_text("utf-8")
    assert "<script" not in text
    assert "&lt;script" in text
    assert text.count('class="dot out"') == 3
    assert f"noticed at {monitor.alarm_at:,}" in text
    [summary] = re.findall("<pre>(.*?)</pre>", text, re.DOTALL)
    assert summary.startswith("ALARM: since about input ")
    with pytest.raises(FileError, match="exists already"):
        draw_monitor(monitor, tmp_path / "plot.html")
    with pytest.raises(ParameterError, match=r"must end in \.html"):
        draw_monitor(monitor, tmp_path / "plot.png")


def test_the_evidence_is_written_as_odds():
    written = [_odds(exponent) for exponent in (-9.0, -1.1, 0.5, 2.0, 53.8)]
    assert written == ["less than 0.01", "0.079", "3.2", "100", "about 10^54"]
