"""The report of a monitor: its text and its JSON."""

import json
from dataclasses import replace

import pytest

from fixtures.streams import fed, logits_of
from nescio.monitor import LabelDrift, Monitor, Window


def test_an_alarm_says_first_what_changed_since_when_and_what_to_do_and_last_why(detector, rng):
    monitor = fed(Monitor(detector), detector, logits_of(rng, 1000))
    fed(monitor, detector, logits_of(rng, 700, shift=-1.0))
    report = monitor.report()
    first, advice, *_, last = report.summary().split("\n")
    since = report.change.since.at
    assert first == (
        f"ALARM: since about input {since:,}, the inputs score lower than the calibration data. "
        f"This was noticed at input {report.alarm_at:,} of 1,700."
    )
    assert 950 <= since <= report.alarm_at
    assert advice.startswith("What to do: look at these inputs.")
    assert last.startswith("Evidence for a change of the scores:")
    assert "martingale" not in report.summary()
    assert "gambler" not in report.summary()


def test_the_newest_incomplete_window_is_reported(detector, rng):
    monitor = fed(Monitor(detector), detector, logits_of(rng, 500))
    report = fed(monitor, detector, logits_of(rng, 60)).report()
    window = report.open_window
    text = str(report)
    assert f"newest inputs, window incomplete, inputs 501 to 560: {window.share:.1%}" in text
    assert not report.label_drifts  # only full windows are tested
    outside = replace(report, open_window=Window(500, 60, 30, low=0, high=9), change=None)
    assert outside.headline().startswith("No alarm so far in 560 inputs, but the newest ones may")


def test_without_a_change_this_is_said_with_numbers(detector, rng):
    report = fed(Monitor(detector), detector, logits_of(rng, 1000)).report()
    first, second, *_ = str(report).split("\n")
    assert first == "No alarm: the 1,000 inputs look like the calibration data."
    assert second.startswith(f"Flagged as out-of-distribution: {report.flagged} of 1,000 (")
    assert second.endswith("%); about 5.00% is expected.")
    assert report.expected_share == pytest.approx(0.05, abs=0.001)
    assert "Labels: they fire as often as in the calibration data." in str(report)


def test_labels_alone_raise_an_alarm(detector, rng):
    # A label that fires more often and one that fires less often: the sum of the scores stays.
    monitor = Monitor(detector)
    monitor.drift_watch.drifts["label 3"] = LabelDrift("tree", 0.6, 0.3, 500, 1e-9, 0, 0)
    fed(monitor, detector, logits_of(rng, 500))
    text = str(monitor.report())
    assert text.startswith("ALARM: 1 label fires more or less often than in the calibration data.")
    assert "No change of the scores was found." in text
    assert "tree: more often, for 60.00% of the latest 500 inputs" in text
    assert "What to do" in text


def test_the_report_is_json(detector, rng):
    report = fed(Monitor(detector), detector, logits_of(rng, 1234)).report()
    content = json.loads(json.dumps(report.as_dict()))
    assert content["n_samples"] == 1234
    assert content["windows"][0]["low"] <= 0.05 <= content["windows"][0]["high"]
    assert content["open_window"]["n"] == 234
    assert content["label_drifts"] == []
    assert content["change"] is None
    assert content["summary"] == report.summary()
