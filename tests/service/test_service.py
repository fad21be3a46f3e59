"""A new detector is taken while requests run; a damaged one is not."""

import pytest

import nescio as ns
from fixtures.service import metrics_of
from nescio.errors import FileError

httpx = pytest.importorskip("httpx")


def test_a_new_threshold_is_taken(client, detector_file):
    file = detector_file()
    service = client(file)
    before = service.get("/v1/detector").json()["threshold"]
    detector_file(tpr=0.5)
    assert service.get("/v1/detector").json()["threshold"] == before
    answer = service.post("/v1/reload")
    assert answer.status_code == 200
    assert answer.json()["threshold"] == ns.load(file).calibration_.threshold_values != before
    assert service.get("/v1/detector").json() == answer.json()
    assert 'nescio_reloads_total{result="done"} 1.0' in service.get("/metrics").text


@pytest.mark.parametrize("damage", ["cut", "gone", "another file"])
def test_a_file_that_cannot_be_used_changes_nothing(damage, client, detector_file, some_logits):
    file = detector_file()
    service = client(file)
    body = {"logits": some_logits(5).tolist()}
    before = service.post("/v1/score", json=body).json()
    whole = file.read_bytes()
    if damage == "gone":
        file.unlink()
    else:
        file.write_bytes(whole[: len(whole) // 2] if damage == "cut" else b"noise" * 100)
    answer = service.post("/v1/reload")
    assert answer.status_code == 409, answer.text
    assert "Nothing was changed" in answer.json()["detail"]
    assert service.post("/v1/score", json=body).json() == before
    assert 'nescio_reloads_total{result="failed"} 1.0' in service.get("/metrics").text
    file.write_bytes(whole)
    assert service.post("/v1/reload").status_code == 200


def test_the_same_file_again_keeps_the_traffic(client, detector_file, some_logits):
    service = client(detector_file())
    service.post("/v1/score", json={"logits": some_logits(30).tolist()})
    service.post("/v1/reload")
    assert service.get("/v1/traffic").json()["n_watched"] == 30
    assert "nescio_samples_total 30.0" in service.get("/metrics").text


def test_another_detector_starts_with_no_recent_traffic_and_goes_on_counting(
    client, detector_file, some_logits
):
    service = client(detector_file())
    service.post("/v1/score", json={"logits": some_logits(30).tolist()})
    detector_file(ns.MaxLogit())
    assert service.post("/v1/reload").json()["detector"] == "max_logit"
    assert service.get("/v1/traffic").json()["n_watched"] == 0
    text = service.get("/metrics").text
    assert "nescio_samples_total 30.0" in text
    assert metrics_of(service)["nescio_score_bucket", (("le", "+Inf"),)] == 0
    assert 'nescio_requests_total{path="/v1/score",status="200"} 1.0' in text


def test_two_services_do_not_share_the_state_of_a_monitor(client, app, tmp_path):
    state = tmp_path / "state.safetensors"
    first = client(monitor_state=state)
    (tmp_path / "link.safetensors").symlink_to(state)
    for path in (state, tmp_path / "link.safetensors"):
        with pytest.raises(FileError, match="another process is using"):
            app(monitor_state=path)
    assert first.get("/readyz").status_code == 200
    first.__exit__(None, None, None)
    app(monitor_state=state)
