"""Recent traffic and the monitor."""

import json

import pytest

import nescio as ns
from fixtures.service import SAFETENSORS, metrics_of, post_logits
from nescio.monitor import Monitor


def stream(service, parts):
    """Post the parts so slowly that every row is watched."""
    for part in parts:
        assert post_logits(service, part).status_code == 200
        service.app.service.engine.traffic.watch()


def test_a_stream_like_the_calibration_data_raises_no_alarm(client, some_logits):
    service = client()
    stream(service, [some_logits(100, seed=100 + seed) for seed in range(20)])
    found = service.get("/v1/traffic").json()
    assert found["n_watched"] == found["monitor"]["n_samples"] == 2000
    assert found["monitor"]["alarm"] is False
    assert len(found["recent"]["score"]) == 2000


def test_a_stream_that_has_shifted_raises_an_alarm(client, some_logits):
    service = client()
    stream(service, [some_logits(100, seed=100 + seed, shift=-1.5) for seed in range(20)])
    found = service.get("/v1/traffic").json()
    assert found["monitor"]["alarm"] is True
    assert found["monitor"]["n_outside"] > 0
    metrics = metrics_of(service)
    assert metrics["nescio_monitor_alarm", ()] == 1
    assert metrics["nescio_monitor_log10_evidence", ()] > 2


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


def test_recent_traffic_goes_round(client, some_logits):
    service = client()
    stream(service, [some_logits(250, seed=seed) for seed in range(12)])
    found = service.get("/v1/traffic").json()
    assert found["n_watched"] == 3000
    recent = found["recent"]
    assert len(recent["time"]) == len(recent["score"]) == len(recent["in_distribution"]) == 2000
    assert recent["time"] == sorted(recent["time"])


def test_the_monitors_state_is_kept_between_runs(app, detector_file, some_logits, tmp_path):
    from starlette.testclient import TestClient

    file, state = detector_file(), tmp_path / "monitor.safetensors"
    for run in (1, 2):
        with TestClient(app(file, monitor_state=state)) as service:
            before = service.get("/v1/traffic").json()["monitor"]["n_samples"]
            assert before == 40 * (run - 1)
            post_logits(service, some_logits(40, seed=run))
    assert Monitor.load(state, ns.load(file)).n_samples == 80


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
    detector_file(ns.MaxLogit())
    with pytest.raises(ns.NescioError, match=r"another detector.*Remove the file"):
        app(file, monitor_state=state)
    assert state.read_bytes() == before


def test_a_detector_that_is_exchanged_starts_the_monitor_anew(
    app, detector_file, some_logits, tmp_path, caplog
):
    from starlette.testclient import TestClient

    file, state = detector_file(), tmp_path / "monitor.safetensors"
    with TestClient(app(file, monitor_state=state), client=("127.0.0.1", 1)) as service:
        post_logits(service, some_logits(40))
        service.app.service.engine.traffic.save()
        detector_file(ns.MaxLogit())
        assert service.post("/v1/reload").status_code == 200
        post_logits(service, some_logits(7))
    assert "starts from the beginning" in caplog.text
    assert Monitor.load(state, ns.load(file)).n_samples == 7


def test_of_a_large_request_all_rows_are_watched_while_there_is_room(client, some_logits):
    service = client()
    post_logits(service, some_logits(1500))
    assert service.get("/v1/traffic").json()["n_watched"] == 1500
    for _ in range(20):
        post_logits(service, some_logits(3000))
    assert 3000 < service.get("/v1/traffic").json()["n_watched"] < 61_500


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
    found = service.get("/v1/traffic").json()
    assert found["monitor"]["n_samples"] == 200
    assert json.dumps(found)
