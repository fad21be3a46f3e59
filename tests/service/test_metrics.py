"""The metrics for Prometheus."""

import numpy as np
import pytest

import nescio as ns
from fixtures.service import metrics_of, post_logits


def test_metrics_count_requests_scores_and_labels(client, detector_file, some_logits):
    file = detector_file()
    service, logits = client(file), some_logits(100, dtype=np.float64)
    expected = ns.load(file).assess(logits)
    for start in range(0, 100, 20):
        assert post_logits(service, logits[start : start + 20]).status_code == 200
    service.post("/v1/score", content=b"x", headers={"content-type": "application/json"})
    service.get("/nowhere")
    service.get("/nowhere/else")
    found = metrics_of(service)

    def value(name, **labels):
        return found[name, tuple(sorted(labels.items()))]

    assert value("nescio_requests_total", path="/v1/score", status="200") == 5
    assert value("nescio_requests_total", path="/v1/score", status="400") == 1
    assert value("nescio_requests_total", path="other", status="404") == 2
    assert value("nescio_request_seconds_count", path="/v1/score") == 6
    assert 0 < value("nescio_request_seconds_sum", path="/v1/score") < 60
    assert value("nescio_samples_total") == 100
    assert value("nescio_flagged_total") == len(expected.flagged) > 0
    assert value("nescio_flagged_share") == pytest.approx(len(expected.flagged) / 100)
    assert value("nescio_flagged_share_allowed") == pytest.approx(0.05)
    assert value("nescio_requests_limit") == 256
    assert value("nescio_score_count") == 100
    assert value("nescio_score_sum") == pytest.approx(expected.scores.sum())
    buckets = {
        float(dict(labels)["le"]): count
        for (name, labels), count in found.items()
        if name == "nescio_score_bucket"
    }
    for bound, count in buckets.items():
        # The bounds are printed to nine digits.
        assert abs(count - np.count_nonzero(expected.scores <= bound)) <= 1
    assert buckets[np.inf] == 100
    fired = {
        dict(labels)["label"]: count
        for (name, labels), count in found.items()
        if name == "nescio_label_fired_total"
    }
    assert fired == dict(
        zip(("cat", "dog", "bird", "car"), (logits > 0).sum(0).tolist(), strict=True)
    )
    assert value("nescio_requests_in_progress") == value("nescio_waiting_bytes") == 0
    assert value("nescio_monitor_alarm") == 0


def test_metrics_are_there_before_the_first_request(client):
    found = metrics_of(client())
    assert found["nescio_samples_total", ()] == 0
    assert found["nescio_flagged_share", ()] == 0
    # Prometheus computes an increase only from a sample before the event.
    assert found["nescio_reloads_total", (("result", "failed"),)] == 0
    assert found["nescio_requests_total", (("path", "/v1/score"), ("status", "500"))] == 0


def test_label_names_cannot_break_the_page_of_metrics(client, tmp_path, some_logits):
    names = ['a"b', "c\nd", "e\\f", "ü {x=1}"]
    detector = ns.JointEnergy().calibrate(ns.Outputs(some_logits(300), label_names=names))
    detector.save(tmp_path / "odd.nescio")
    service = client(tmp_path / "odd.nescio")
    post_logits(service, some_logits(10))
    found = {dict(labels)["label"] for name, labels in metrics_of(service) if "label_fired" in name}
    assert found == set(names)
