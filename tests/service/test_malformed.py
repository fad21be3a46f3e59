"""Two hundred bodies that no service should take."""

import importlib.util
import json
import logging
from pathlib import Path

import pytest

pytest.importorskip("pyarrow")

SOURCE = Path(__file__).resolve().parents[2] / "benchmarks" / "malformed.py"


@pytest.fixture
def malformed():
    spec = importlib.util.spec_from_file_location("malformed", SOURCE)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module.malformed


@pytest.mark.parametrize("with_a_model", [False, True])
def test_each_gets_a_4xx_and_the_service_keeps_answering(
    with_a_model, malformed, client, detector_file, image_model, some_logits, caplog
):
    pytest.importorskip("PIL.Image")
    model = {"model": image_model()} if with_a_model else {}
    service = client(detector_file(), **model)
    good = json.dumps({"logits": some_logits(3).tolist()})
    headers = {"content-type": "application/json"}
    expected = service.post("/v1/score", content=good, headers=headers).json()
    with caplog.at_level(logging.INFO):
        for number, request in enumerate(malformed(200, 4, seed=int(with_a_model))):
            answer = service.post(request.path, content=request.body, headers=request.headers)
            assert 400 <= answer.status_code < 500, (number, request.kind, answer.text)
            assert len(answer.json()["detail"]) < 2_000
            assert service.post("/v1/score", content=good, headers=headers).json() == expected
    assert not [record for record in caplog.records if record.levelno >= logging.ERROR]
    room = service.app.service.room
    assert (room.n_requests, room.n_bytes) == (0, 0)
