"""Bodies that are damaged, hostile or of another format are rejected."""

import gc
import importlib.util
import json
import logging
from pathlib import Path

import numpy as np
import pytest

import nescio as ns
from fixtures.service import JSON, SAFETENSORS, post, refused
from nescio._io.tensors import encode_tensors
from nescio.service.requests import decode_outputs

SOURCE = Path(__file__).resolve().parents[2] / "benchmarks" / "robustness" / "malformed.py"


@pytest.fixture
def good(some_logits):
    return json.dumps({"logits": some_logits(2).tolist()}).encode()


DEEP = b"[" * 100_000 + b"]" * 100_000
BAD_JSON = {
    "no object": (b"[[1, 2, 3, 4]]", 400, 'Send a body such as {"logits":[['),
    "nothing": (b"", 400, 'it is empty. Send a body such as {"logits"'),
    "truncated": (b'{"logits": [[1, 2, 3, 4]', 400),
    "NaN": (b'{"logits": [[NaN, 2, 3, 4]]}', 400, "leave such rows out"),
    "Infinity": (b'{"logits": [[-Infinity, 2, 3, 4]]}', 400, '"-inf" for a masked label'),
    "a huge number": (b'{"logits": [[1e999, 2, 3, 4]]}', 400),
    "a number of 5,000 digits": (b'{"logits": [[' + b"9" * 5000 + b", 2, 3, 4]]}", 400),
    "deep": (b'{"logits": ' + DEEP + b"}", 400),
    "deep elsewhere": (b'{"logits": [[1, 2, 3, 4]], "more": ' + DEEP + b"}", 400),
    "an unknown field": (
        b'{"logits": [[1, 2, 3, 4]], "more": 1}',
        400,
        'Send a body such as {"logits":[[2.5,',
    ),
    "inputs": (b'{"inputs": {"x": [[1, 2]]}}', 400, "To send inputs, use /v1/predict."),
    "text": (b'{"logits": [["1", "2", "3", "4"]]}', 400, "Not a number: '1'"),
    "null": (b'{"logits": [[1, 2, 3, 4], [1, null, 3, 4]]}', 422, "in 1 of 2 rows: 1"),
    "plus infinity as text": (b'{"logits": [["inf", 2, 3, 4]]}', 400),
    "a flat row": (b'{"logits": [1, 2, 3, 4]}', 400, 'Send a body such as {"logits":[['),
    "bools": (b'{"logits": [[true, 2, 3, 4]]}', 400, "Send a body such as"),
    "a text": (b'{"logits": [["high", 2, 3, 4]]}', 400, "Not a number: 'high'"),
    "no logits": (b"{}", 400, 'Send a body such as {"logits":[['),
    "numbers as ids": (
        b'{"logits": [[1, 2, 3, 4]], "ids": [7]}',
        400,
        "need double quotes, such as",
    ),
    "Python": (b"{'logits': [[1, 2, 3, 4]]}", 400, "need double quotes"),
    "not UTF-8": (b'{"logits": [[1, 2, 3, 4]], "ids": ["\xff"]}', 400),
    "half a character": (b'{"logits": [[1, 2, 3, 4]], "ids": ["\\ud800"]}', 400),
    "UTF-16": ('{"logits": [[1, 2, 3, 4]]}'.encode("utf-16"), 400),
    "no rows": (b'{"logits": []}', 422),
    "no columns": (b'{"logits": [[]]}', 422),
    "ragged": (b'{"logits": [[1, 2, 3, 4], [1]]}', 422, "row 1 has 1 number, expected 4"),
    "too many ids": (b'{"logits": [[1, 2, 3, 4]], "ids": ["a", "b"]}', 422),
    "names twice": (b'{"logits": [[1, 2, 3, 4]], "label_names": ["a", "a", "b", "c"]}', 422),
    "two logits": (b'{"logits": [[1, 2]]}', 422, "4 labels"),
}


def test_a_masked_label_can_be_sent_in_json(client, some_logits):
    logits = some_logits(3).astype(np.float64)
    logits[1, 2] = -np.inf
    rows = [["-inf" if cell == -np.inf else cell for cell in row] for row in logits.tolist()]
    service = client()
    as_json = post(service, json.dumps({"logits": rows}).encode())
    as_tensors = post(service, encode_tensors({"logits": logits}, {}), SAFETENSORS, accept=JSON)
    assert as_json.status_code == 200, as_json.text
    assert as_json.json() == as_tensors.json()


def header(entries, data=b""):
    encoded = json.dumps(entries).encode()
    return len(encoded).to_bytes(8, "little") + encoded + data


def entry(dtype="F32", shape=(1, 4), offsets=(0, 16)):
    return {"logits": {"dtype": dtype, "shape": list(shape), "data_offsets": list(offsets)}}


BAD_SAFETENSORS = {
    "nothing": (b"", 400),
    "a few bytes": (b"\x01\x02", 400),
    "a header of 2^63 bytes": (b"\xff" * 7 + b"\x7f{}", 400),
    "a header that is no JSON": (header({})[:8] + b"ab", 400),
    "a header of lists": (header([1, 2]), 400),
    "a deep header": ((200_000).to_bytes(8, "little") + b"[" * 200_000, 400),
    "a header of 2 MB": (header({"a" * 2_000_000: 1}), 400),
    "no logits": (header({"x": entry()["logits"]}, bytes(16)), 400),
    "too short": (header(entry(), bytes(15)), 400),
    "too long": (header(entry(), bytes(17)), 400),
    "a shape of 2^60": (header(entry(shape=(1 << 60, 4)), bytes(16)), 400),
    "a shape that is none": (header(entry(shape=(-1, 4)), bytes(16)), 400),
    "an unknown type": (header(entry("F8_E4M3"), bytes(16)), 400),
    "another kind": (
        header({**entry(), "__metadata__": {"nescio": '{"kind": "nescio.detector"}'}}, bytes(16)),
        400,
    ),
    "metadata that is no JSON": (
        header({**entry(), "__metadata__": {"nescio": "{"}}, bytes(16)),
        400,
    ),
    "one dimension": (header(entry(shape=(4,)), bytes(16)), 422),
    "three dimensions": (header(entry(shape=(1, 2, 2)), bytes(16)), 422),
    "no rows": (header(entry(shape=(0, 4), offsets=(0, 0))), 422),
    "a billion rows of nothing": (header(entry(shape=(10**9, 0), offsets=(0, 0))), 413),
    "whole numbers, which would grow": (
        encode_tensors({"logits": np.ones((3, 4), np.uint8)}, {}),
        422,
        "floating point numbers, got uint8",
    ),
    **{
        f"label names that are no text: {names!a}": (
            encode_tensors({"logits": np.ones((1, 4))}, {"label_names": names}),
            400,
        )
        for names in (["\ud800", "b", "c", "d"], [1, 2, 3, 4], [["a"], {}, None, 2])
    },
    "NaN": (header(entry(), np.array([1, np.nan, 0, 0], "f4").tobytes()), 422),
    "infinity": (header(entry(), np.array([1, np.inf, 0, 0], "f4").tobytes()), 422),
}


@pytest.mark.parametrize(("kind", "bodies"), [(JSON, BAD_JSON), (SAFETENSORS, BAD_SAFETENSORS)])
def test_bad_bodies_are_refused_with_a_reason(kind, bodies, client):
    service = client()
    for name, (body, status, *reason) in bodies.items():
        answer = post(service, body, kind)
        assert answer.status_code == status, (name, answer.text)
        assert len(answer.json()["detail"]) > 10, name
        assert "".join(reason) in answer.json()["detail"], name


def test_many_equal_label_names_are_refused_at_once(client):
    # Looking for each name among all took seconds for a body of this size.
    names = ["n" * (index % 7) + str(index) for index in range(60_000)] + ["twice", "twice"]
    body = {"logits": [[0.0] * len(names)], "label_names": names}
    answer = client().post("/v1/score", json=body)
    assert answer.status_code == 422
    assert "label_names must be distinct; 'twice' appears 2 times" in answer.json()["detail"]


def test_what_was_refused_is_freed_at_once(client):
    gc.collect()
    gc.disable()
    try:
        service = client()
        held_before = sum(type(thing) is ns.Outputs for thing in gc.get_objects())
        body = encode_tensors({"logits": np.zeros((20_000, 5), np.float32)}, {})
        for _ in range(5):
            answer = service.post("/v1/score", content=body, headers={"Content-Type": SAFETENSORS})
            assert answer.status_code == 422
        held = sum(type(thing) is ns.Outputs for thing in gc.get_objects())
        assert held <= held_before + 1
    finally:
        gc.enable()


MANY = {
    "rows": (JSON, b'{"logits": [' + b"[0]," * 100_000 + b"[0]]}", 413, "100,001 rows"),
    "empty rows": (JSON, b'{"logits": [' + b"[]," * 400_000 + b"[]]}", 413, "400,002 lists (s"),
    "numbers": (JSON, b'{"logits": [[' + b"0," * 2_000_001 + b"0]]}", 413, "2,000,001 numbers (s"),
    "arrays in JSON": (
        JSON,
        json.dumps(
            {"logits": [[1]], "arrays": {f"{index}": [[1]] for index in range(101)}}
        ).encode(),
        413,
        "101 arrays",
    ),
    "arrays": (
        SAFETENSORS,
        encode_tensors({f"arrays.{index}": np.ones((1, 1)) for index in range(101)}, {}),
        413,
        "101 arrays",
    ),
    "ids": (
        SAFETENSORS,
        encode_tensors(
            {
                "logits": np.ones((1, 4)),
                "ids.utf8": np.zeros(9, np.uint8),
                "ids.ends": np.arange(1, 10),
            },
            {},
        ),
        422,
        "one id per row",
    ),
    "rows, and damaged ids": (
        SAFETENSORS,
        encode_tensors({"logits": np.ones((100_001, 4)), "ids.ends": np.zeros(9)}, {}),
        413,
        "100,001 rows",
    ),
}


def test_counts_are_checked_before_the_rest_is_decoded(client):
    service = client()
    for kind, body, status, reason in MANY.values():
        refused(post(service, body, kind), status, reason)


def test_ids_of_which_one_is_long_take_no_room(some_logits):
    # NumPy would give each the room of the longest: 400 MB of a body of 1 MB.
    n = 100_000
    body = json.dumps({"logits": [[0]] * n, "ids": ["a"] * (n - 1) + ["b" * 1024]}).encode()
    outputs = decode_outputs(JSON, body)
    assert outputs.ids.nbytes < 10**6
    assert outputs.ids[-1] == "b" * 1024
    assert outputs[-2:].ids.tolist() == ["a", "b" * 1024]


def test_a_number_that_is_no_probability_is_named(client):
    body = b'{"logits": [[0.1, 0.2, 0.3, 1], [0.5, 0, 1.5, 0]]}'
    answer = post(client(), body, path="/v1/score?from_probs=true")
    refused(answer, 422, "The first is in row 1, column 2.")


def test_a_parameter_is_sent_once(client, good):
    answer = post(client(), good, path="/v1/score?explain=true&explain=false")
    refused(answer, 422, "Send each parameter of the address once.")


def test_other_content_types_are_refused(client, good):
    service = client()
    refused(
        post(service, good, "multipart/form-data; boundary=a"),
        415,
        "curl needs -H and --data-binary",
    )
    for kind in ("", "text/plain", "application/octet-stream", "image/png", "x" * 5000):
        refused(post(service, good, kind), 415, "application/json")
    assert post(service, good, "Application/JSON; charset=utf-8").status_code == 200


# --- two hundred malformed bodies -----------------------------------------------------------------


@pytest.fixture
def malformed():
    spec = importlib.util.spec_from_file_location("malformed", SOURCE)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module.malformed


def test_each_gets_a_4xx_and_the_service_keeps_answering(
    malformed, client, detector_file, image_model, good, caplog
):
    pytest.importorskip("PIL.Image")
    service = client(detector_file(), model=image_model())
    expected = post(service, good).json()
    with caplog.at_level(logging.INFO):
        for number, request in enumerate(malformed(200, 4, seed=1)):
            answer = service.post(request.path, content=request.body, headers=request.headers)
            assert 400 <= answer.status_code < 500, (number, request.kind, answer.text)
            assert len(answer.json()["detail"]) < 2_000
            assert post(service, good).json() == expected
    assert not [record for record in caplog.records if record.levelno >= logging.ERROR]
    limits = service.app.service.limits
    assert (limits.n_requests, limits.n_bytes) == (0, 0)
