"""The report of a monitor: its text and its JSON."""

import json

from fixtures.streams import fed, logits_of
from nescio.monitor import Monitor


def test_evidence_and_alarm_are_told(detector, rng):
    monitor = fed(Monitor(detector), detector, logits_of(rng, 2000, shift=-1.0))
    report = monitor.report()
    assert report.alarm
    assert report.alarm_at == monitor.alarm_at
    assert report.max_log10_martingale >= max(2, report.log10_martingale)
    evidence = dict(report.trace)
    assert max(value for at, value in evidence.items() if at < report.alarm_at) < 2
    assert f"ALARM after {monitor.alarm_at:,} inputs" in str(report)


def test_numbers_in_the_report_are_as_one_would_write_them(detector, rng):
    monitor = Monitor(detector, window=10)
    assert "is 1 now and was at most 1; an alarm is raised at 100" in str(monitor.report())
    fed(monitor, detector, logits_of(rng, 1))
    assert "1 input, " in str(monitor.report())
    monitor.log10_martingale = -0.01
    assert "is 1 now" in str(monitor.report())
    monitor.log10_martingale = 2.0
    assert "is 10^2 now" in str(monitor.report())
    fed(monitor, detector, logits_of(rng, 9))
    assert str(monitor.report()).endswith("no drift in 1 test")


def test_the_report_is_json(detector, rng):
    report = fed(Monitor(detector), detector, logits_of(rng, 1234)).report()
    content = json.loads(json.dumps(report.as_dict()))
    assert content["n_samples"] == 1234
    assert content["windows"][0]["low"] <= 0.05 <= content["windows"][0]["high"]
    assert content["open_window"]["n"] == 234
    assert content["label_drifts"] == []


def test_a_report_without_inputs(detector):
    report = Monitor(detector).report()
    assert "0 inputs" in str(report)
    assert report.trace == ()
    assert report.open_window is None
