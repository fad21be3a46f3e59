"""The report of a monitor: its text and its JSON."""

import json
import re
from dataclasses import replace

import numpy as np
import pytest

import nescio as ns
from fixtures.streams import fed, logits_of
from nescio.errors import FileError, ParameterError
from nescio.lab.report.verdicts import Promise
from nescio.monitor import Monitor, draw_monitor
from nescio.monitor.report import CHANGES, _odds


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


def test_an_alarm_whose_evidence_has_faded_may_have_been_chance_if_nothing_differs(detector, rng):
    monitor = fed(Monitor(detector), detector, logits_of(rng, 700, shift=1.0))
    assert "the model is more confident than usual" in monitor.summary().split("\n")[0]
    assert "faded" not in monitor.summary()
    monitor.log10_martingale = -0.921
    faded = "The evidence has faded to 0.12 to 1 now: all inputs together"
    assert monitor.summary().split("\n")[1].startswith(f"{faded} still differ, but the stream")
    [bag] = monitor.bags
    bag.counts = 2 * bag.calibration
    assert f"{faded} do not differ, so it may have been chance, or be over." in monitor.summary()


def test_the_kind_of_a_change_does_not_depend_on_the_order_of_the_inputs(detector, rng):
    logits = np.concatenate([logits_of(rng, 900), np.tile(logits_of(rng, 1), (300, 1))])
    verdicts = detector.assess(logits)
    orders = [np.arange(1200), np.arange(1200)[::-1], np.argsort(verdicts.scores)]
    kinds = set()
    for order in [*orders, *(rng.permutation(1200) for _ in range(5))]:
        monitor = Monitor(detector)
        monitor.update(verdicts[order])
        assert monitor.alarm
        kinds.add(monitor.change.kind)
        assert CHANGES[monitor.change.kind] in str(monitor).split("\n")[0]
    assert kinds == {Promise.of(detector, verdicts).kind}


def by_site(rng, n, nan=()):
    """Logits of the sites a to d, their names, and a detector that was calibrated by them."""
    sites = np.resize(["a", "b", "c", "d"], 1200)
    detector = ns.JointEnergy(nonfinite="out").calibrate(logits_of(rng, 1200), groups=sites)
    logits = logits_of(rng, n)
    for site in nan:
        logits[np.flatnonzero(sites[:n] == site)[::6], 0] = np.nan
    return detector, logits, sites[:n]


def test_a_changed_group_and_rows_with_nan_are_named(rng):
    detector, logits, sites = by_site(rng, 400, nan="cd")
    logits[sites == "b"] = logits[1]
    monitor = Monitor(detector)
    monitor.update(detector.assess(logits, groups=sites))
    assert [*monitor.changed_groups] == ["b", "c", "d"]
    more = "(its inputs have NaN or infinity more often)"
    groups = f"group b (its inputs have scores that hardly vary), group c {more}, group d {more}."
    assert f"\nChanged: {groups}\n" in str(monitor)
    assert "34 with NaN or infinity: 17 of group c, 17 of group d); about" in str(monitor)
    content = monitor.as_dict()
    assert content["changed_groups"] == {"b": "constant", "c": "unusable", "d": "unusable"}
    assert content["n_nonfinite"] == {"c": 17, "d": 17}
    detector, logits, sites = by_site(rng, 400)
    logits[sites == "b"][:30] = 0
    few = Monitor(detector)
    few.update(detector.assess(logits, groups=sites))
    assert (few.changed_groups, few.n_nonfinite) == ({}, {})


def test_groups_like_their_calibration_are_not_named(rng):
    named = 0
    for _ in range(40):
        detector, logits, sites = by_site(rng, 200)
        monitor = Monitor(detector)
        monitor.update(detector.assess(logits, groups=sites))
        named += bool(monitor.changed_groups) or monitor.difference is not None
    assert named <= 2  # it is expected to be 0.2


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
