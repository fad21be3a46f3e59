"""Recent traffic, the monitor, the metrics for Prometheus, and the charts of the page."""

import xml.etree.ElementTree as ElementTree

import numpy as np
import pytest

import nescio as ns
from fixtures.service import SAFETENSORS, metrics_of, post_logits, refused
from nescio.monitor import Monitor


def stream(service, parts):
    """Post the parts so slowly that every row is watched."""
    for part in parts:
        assert post_logits(service, part).status_code == 200
        service.app.service.engine.traffic.watch()


def test_a_stream_like_the_calibration_data_raises_no_alarm(client, some_logits):
    service = client()
    stream(service, [some_logits(250, seed=100 + seed) for seed in range(12)])
    result = service.get("/v1/traffic").json()
    assert result["n_watched"] == result["monitor"]["n_samples"] == 3000
    assert result["monitor"]["alarm"] is False
    chart = service.get("/v1/traffic?charts=600").json()["charts"][0]
    assert chart["text"] == "of the latest 2,000 of 3,000 inputs, oldest first; times in UTC"


def test_a_stream_that_has_shifted_raises_an_alarm(client, some_logits):
    service = client()
    stream(service, [some_logits(100, seed=100 + seed, shift=-1.5) for seed in range(20)])
    result = service.get("/v1/traffic").json()
    assert result["monitor"]["alarm"] is True
    assert result["monitor"]["n_outside"] > 0
    metrics = metrics_of(service)
    assert metrics["nescio_monitor_alarm", ()] == 1
    assert metrics["nescio_monitor_log10_evidence", ()] > 2


def test_the_id_of_the_input_at_which_the_change_began_is_named(client, some_logits):
    service = client()
    assert post_logits(service, some_logits(1)).status_code == 200  # without ids
    ids = [f"{row:03}" + "x" * 200 for row in range(300)]
    body = {"logits": some_logits(300, shift=-3.0).tolist(), "ids": ids}
    assert service.post("/v1/score", json=body).status_code == 200
    since = service.get("/v1/traffic").json()["monitor"]["change"]["since"]
    number = since["number"]
    assert since["id"] == (ids[number - 2][:100] if number > 1 else None)


def test_an_alarm_is_acknowledged_with_a_note_and_recorded(
    client, detector_file, some_logits, tmp_path, caplog
):
    caplog.set_level("INFO")
    file, state = detector_file(), tmp_path / "state.safetensors"
    service = client(file, monitor_state=state)
    body = {"note": "Änne: the lens is clean"}
    refused(service.post("/v1/acknowledge", json=body), 409, "There is no alarm and no changed ")
    stream(service, [some_logits(100, seed=seed, shift=-1.5) for seed in range(20)])
    refused(service.post("/v1/acknowledge", json={"nota": "a"}), 400, "unknown field `nota`")
    refused(service.post("/v1/acknowledge", json={"note": "a" * 501}), 400, "length <= 500")
    answer = service.post("/v1/acknowledge", json=body)
    assert answer.status_code == 200
    monitor = service.get("/v1/traffic").json()["monitor"]
    assert (monitor["alarm"], monitor["n_samples"]) == (False, 0)
    assert monitor["acknowledged"] == [answer.json()]
    assert answer.json()["alarm"].startswith("ALARM: since about input ")
    assert "Änne: the lens is clean" in monitor["summary"]
    (line,) = (line for line in caplog.records if line.message == "alarm acknowledged")
    assert (line.note, line.alarm) == (body["note"], answer.json()["alarm"])
    assert metrics_of(service)["nescio_monitor_alarm", ()] == 0
    assert Monitor.load(state, ns.load(file)).acknowledged == [answer.json()]
    refused(service.post("/v1/acknowledge", json=body), 409, "There is no alarm and no changed ")


def test_kept_columns_of_a_client_do_not_stop_the_monitor(client, some_logits, tmp_path):
    service = client()
    kept = ns.Outputs(some_logits(3), kept={"place": ["a", "b", "c"]})
    kept.save(tmp_path / "kept.safetensors")
    body = (tmp_path / "kept.safetensors").read_bytes()
    assert post_logits(service, some_logits(2)).status_code == 200
    headers = {"content-type": SAFETENSORS, "accept": "application/json"}
    answer = service.post("/v1/score", content=body, headers=headers)
    assert set(answer.json()) == {"score", "p_value", "in_distribution"}
    assert service.get("/v1/traffic").json()["n_watched"] == 5
    # Whatever the body was, the traffic has only what the monitor reads.
    engine = service.app.service.engine
    engine.score([kept])
    engine.score([ns.Outputs(some_logits(4))])
    assert engine.traffic.report(False).n_watched == 12


def test_the_monitors_state_is_kept_between_runs(app, detector_file, some_logits, tmp_path, caplog):
    caplog.set_level("INFO")
    from starlette.testclient import TestClient

    file, state = detector_file(), tmp_path / "monitor.safetensors"
    for run in (1, 2):
        with TestClient(app(file, monitor_state=state)) as service:
            before = service.get("/v1/traffic").json()["monitor"]["n_samples"]
            assert before == 40 * (run - 1)
            post_logits(service, some_logits(40, seed=run))
    assert Monitor.load(state, ns.load(file)).n_samples == 80
    (line,) = (one for one in caplog.records if one.message == "state loaded")
    assert (line.inputs, line.alarm) == (40, False)


def test_a_state_that_cannot_be_saved_is_saved_later(client, detector_file, some_logits, tmp_path):
    folder, away = tmp_path / "states", tmp_path / "away"
    folder.mkdir()
    detector, state = detector_file(), folder / "state.safetensors"
    service = client(detector, monitor_state=state)
    folder.rename(away)
    service.post("/v1/score", json={"logits": some_logits(7).tolist()})
    service.app.service._watch(save=True)
    assert not folder.exists()
    away.rename(folder)
    service.post("/v1/score", json={"logits": some_logits(5).tolist()})
    service.app.service._watch(save=True)
    assert Monitor.load(state, ns.load(detector)).n_samples == 12


def test_a_state_that_does_not_fit_is_refused_at_the_start(
    app, detector_file, some_logits, tmp_path
):
    from starlette.testclient import TestClient

    file, state = detector_file(), tmp_path / "monitor.safetensors"
    with TestClient(app(file, monitor_state=state)) as service:
        post_logits(service, some_logits(40))
    before = state.read_bytes()
    with pytest.raises(ns.NescioError, match=r"started with --alpha 0\.01, which cannot"):
        app(file, monitor_state=state, alpha=0.2)
    assert state.read_bytes() == before


@pytest.mark.parametrize("how", ["reload", "restart"])
def test_another_detector_closes_the_alarm_and_sets_the_state_aside(
    how, client, detector_file, some_logits, tmp_path, caplog
):
    file, state = detector_file(), tmp_path / "monitor.safetensors"
    before = ns.load(file)
    service = client(file, monitor_state=state)
    stream(service, [some_logits(100, seed=seed, shift=-1.5) for seed in range(20)])
    detector_file(ns.MaxLogit())
    if how == "reload":
        assert service.post("/v1/reload").status_code == 200
        assert metrics_of(service)["nescio_samples_total", ()] == 2000
    else:
        service.__exit__(None, None, None)
        service = client(file, monitor_state=state)
    post_logits(service, some_logits(7))
    metrics, monitor = metrics_of(service), service.get("/v1/traffic").json()["monitor"]
    assert metrics["nescio_monitor_alarm", ()] == 0
    assert metrics["nescio_samples_total", ()] == (2007 if how == "reload" else 7)
    if how == "reload":
        (alarm,) = monitor["acknowledged"]
        assert alarm["note"] == "closed by a reload: another detector"
        assert alarm["alarm"].startswith("ALARM: since about input ")
        assert "acknowledged at" in monitor["summary"]
    aside = Monitor.load(f"{state}.old", before)
    assert aside.alarm
    assert (aside.n_samples, len(aside.as_dict()["windows"])) == (2000, 4)
    (line,) = (line for line in caplog.records if line.message == "the monitor starts anew")
    assert line.old_state == f"{state}.old"
    service.__exit__(None, None, None)
    assert Monitor.load(state, ns.load(file)).n_samples == 7


def test_an_alarm_is_saved_at_once(client, detector_file, some_logits, tmp_path):
    file, state = detector_file(), tmp_path / "state.safetensors"
    service = client(file, monitor_state=state)
    post_logits(service, some_logits(300, shift=-3.0))
    service.app.service._watch(save=False)  # as every quarter of a second
    assert Monitor.load(state, ns.load(file)).alarm


def test_of_a_large_request_all_rows_are_watched_while_there_is_room(client, some_logits):
    service = client()
    post_logits(service, some_logits(1500))
    report = service.get("/v1/traffic").json()
    assert report["n_watched"] == 1500
    assert "watched" not in report["monitor"]["summary"]
    for _ in range(20):
        post_logits(service, some_logits(3000))
    report = service.get("/v1/traffic").json()
    assert 3000 < report["n_watched"] < 61_500
    _, watched, *_ = report["monitor"]["summary"].split("\n")
    assert watched.startswith(f"{report['n_watched']:,} of 61,500 inputs were watched")


def test_a_file_that_is_no_state_is_never_replaced(app, detector_file):
    file = detector_file()
    before = file.read_bytes()
    with pytest.raises(ns.NescioError, match="not a saved monitor"):
        app(file, monitor_state=file)
    assert file.read_bytes() == before


def test_a_place_where_no_state_can_be_kept_is_said_at_the_start(app, detector_file, tmp_path):
    with pytest.raises(ns.NescioError, match="directory"):
        app(detector_file(), monitor_state=tmp_path / "nowhere" / "state.safetensors")


def test_traffic_of_a_detector_by_groups(client, detector_file, some_logits):
    service = client(detector_file(groups="label_count"))
    post_logits(service, some_logits(200))
    result = service.get("/v1/traffic").json()
    assert result["monitor"]["n_samples"] == 200
    assert (result["monitor"]["changed"], result["monitor"]["alarm"]) == (False, False)
    logits = some_logits(400, seed=1)
    logits[::40] = -9.0  # too few for an alarm
    post_logits(service, logits)
    monitor = service.get("/v1/traffic").json()["monitor"]
    assert (monitor["changed"], monitor["alarm"]) == (True, False)
    record = service.post("/v1/acknowledge", json={"note": "Ann"}).json()
    assert (record["change"], record["alarm"][:8]) == (None, "CHANGED:")
    assert not service.get("/v1/traffic").json()["monitor"]["changed"]


# --- metrics ------------------------------------------------------------------------------------


def test_metrics_count_requests_scores_and_labels(client, detector_file, some_logits):
    file = detector_file()
    service, logits = client(file), some_logits(100, dtype=np.float64)
    expected = ns.load(file).assess(logits)
    for start in range(0, 100, 20):
        assert post_logits(service, logits[start : start + 20]).status_code == 200
    service.post("/v1/score", content=b"x", headers={"content-type": "application/json"})
    service.get("/nowhere")
    service.get("/nowhere/else")
    result = metrics_of(service)

    def value(name, **labels):
        return result[name, tuple(sorted(labels.items()))]

    assert value("nescio_requests_total", path="/v1/score", status="200") == 5
    assert value("nescio_requests_total", path="/v1/score", status="400") == 1
    assert value("nescio_requests_total", path="other", status="404") == 2
    assert value("nescio_request_seconds_count", path="/v1/score") == 6
    assert 0 < value("nescio_request_seconds_sum", path="/v1/score") < 60
    assert value("nescio_samples_total") == 100
    assert value("nescio_flagged_total") == len(expected.flagged) > 0
    assert value("nescio_flagged_share_allowed") == pytest.approx(0.05)
    assert value("nescio_requests_limit") == 256
    assert value("nescio_score_count") == 100
    assert value("nescio_score_sum") == pytest.approx(expected.scores.sum())
    buckets = {
        float(dict(labels)["le"]): count
        for (name, labels), count in result.items()
        if name == "nescio_score_bucket"
    }
    for bound, count in buckets.items():
        # The bounds are printed to nine digits.
        assert abs(count - np.count_nonzero(expected.scores <= bound)) <= 1
    assert buckets[np.inf] == 100
    fired = {
        dict(labels)["label"]: count
        for (name, labels), count in result.items()
        if name == "nescio_label_fired_total"
    }
    assert fired == dict(
        zip(("cat", "dog", "bird", "car"), (logits > 0).sum(0).tolist(), strict=True)
    )
    assert value("nescio_requests_in_progress") == value("nescio_waiting_bytes") == 0
    assert value("nescio_monitor_alarm") == 0


def test_metrics_are_there_before_the_first_request(client):
    result = metrics_of(client())
    assert result["nescio_samples_total", ()] == 0
    # Prometheus computes an increase only from a sample before the event.
    assert result["nescio_reloads_total", (("result", "failed"),)] == 0
    assert result["nescio_requests_total", (("path", "/v1/score"), ("status", "500"))] == 0


def test_label_names_cannot_break_the_page_of_metrics(client, tmp_path, some_logits):
    names = ['a"b', "c\nd", "e\\f", "ü {x=1}"]
    detector = ns.JointEnergy().calibrate(ns.Outputs(some_logits(300), label_names=names))
    detector.save(tmp_path / "odd.nescio")
    service = client(tmp_path / "odd.nescio")
    post_logits(service, some_logits(10))
    result = {
        dict(labels)["label"] for name, labels in metrics_of(service) if "label_fired" in name
    }
    assert result == set(names)


# --- charts -------------------------------------------------------------------------------------


def test_every_input_is_drawn_once_below_or_above_the_limit(client, detector_file, some_logits):
    service = client(detector_file(groups="label_count"))
    answer = post_logits(service, some_logits(300)).json()
    inside = answer["in_distribution"]
    chart = service.get("/v1/traffic?charts=600").json()["charts"][0]
    svg = ElementTree.fromstring(chart["svg"])
    paths = {path.get("class"): path.get("d") for path in svg.iter("path")}
    # The heights of the points, and of the line between them; y points downwards.
    dots, crosses = (
        [float(point.split()[1].partition(mark)[0]) for point in paths[css].split("M")[1:]]
        for css, mark in (("dots in", "h"), ("crosses out", "m"))
    )
    assert (len(dots), len(crosses)) == (sum(inside), len(inside) - sum(inside))
    assert len(crosses) > 0
    limit = float(paths["rule"].split()[1].partition("H")[0])
    assert 0 < min(dots) <= max(dots) <= limit < min(crosses) <= max(crosses) < 200
    (note,) = (text for text in svg.iter("text") if "flagged below 0.05" in (text.text or ""))
    assert float(note.get("y")) < 0  # above the frame


def test_no_time_is_written_twice(app):
    traffic = app().service.engine.traffic
    traffic._recent.extend([(0.0, 0.5, True)] * 30)
    assert traffic._recent_p_values(600)[2].count("00:00:00") == 1
