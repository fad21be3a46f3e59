"""The routes: formats of POST /v1/score, every kind of detector, errors and charts."""

import json
import re
from http import HTTPStatus

import numpy as np
import pytest

import nescio as ns
from fixtures.service import JSON, SAFETENSORS, metrics_of, post, refused
from fixtures.serving import NAMES
from nescio._io.tensors import decode_tensors, encode_tensors
from nescio.checks import make_outputs
from nescio.errors import GroupWarning, ParameterError
from nescio.service import Settings


def score(client, body, kind, *, accept=None, **query):
    headers = {"content-type": kind} | ({"accept": accept} if accept else {})
    return client.post("/v1/score", content=body, headers=headers, params=query)


def columns_of(response):
    """The answer's columns as arrays, whatever its format."""
    kind = response.headers["content-type"]
    if kind == JSON:
        return {name: np.array(column) for name, column in response.json().items()}
    assert kind == SAFETENSORS
    return decode_tensors(response.content, "the answer")[0]


def same(columns, assessment):
    """Whether an answer is the assessment to the last bit."""
    assert columns["score"].tobytes() == assessment.scores.tobytes()
    assert columns["p_value"].tobytes() == assessment.p_values.tobytes()
    assert columns["in_distribution"].tolist() == assessment.in_distribution.tolist()


# --- formats ------------------------------------------------------------------------------------


@pytest.mark.parametrize("accept", [JSON, SAFETENSORS])
@pytest.mark.parametrize("kind", [JSON, SAFETENSORS])
def test_every_format_in_and_out_gives_what_assess_gives(
    kind, accept, client, detector_file, some_logits
):
    file, logits = detector_file(), some_logits(50)
    body = {
        JSON: lambda: json.dumps({"logits": logits.tolist()}).encode(),
        SAFETENSORS: lambda: encode_tensors({"logits": logits}, {}),
    }[kind]()
    response = score(client(file), body, kind, accept=f"text/csv;q=0.1, {accept};q=1.0")
    assert response.status_code == 200
    assert response.headers["content-type"] == accept
    expected = logits.astype(np.float64) if kind == JSON else logits
    same(columns_of(response), ns.load(file).assess(expected))


def test_the_answer_has_the_format_of_the_request_unless_another_is_accepted(client, some_logits):
    service = client()
    body = encode_tensors({"logits": some_logits(2)}, {})
    for accept in ("*/*", "text/html"):
        answer = score(service, body, SAFETENSORS, accept=accept)
        assert answer.headers["content-type"] == SAFETENSORS


def test_a_file_saved_by_outputs_is_taken_as_it_is(client, detector_file, some_logits, tmp_path):
    logits = some_logits(6)
    ids = [f"{name}.jpg" for name in "abcdéf"]
    outputs = ns.Outputs(
        logits,
        labels=logits > 0,
        ids=ids,
        label_names=("cat", "dog", "bird", "car"),
        manifest={"split": "test"},
    )
    outputs.save(tmp_path / "new.safetensors")
    body = (tmp_path / "new.safetensors").read_bytes()
    file = detector_file()
    answer = score(client(file), body, SAFETENSORS, accept=JSON).json()
    assert answer["id"] == ids
    assert answer["score"] == ns.load(file).assess(outputs).scores.tolist()


def test_a_file_of_the_safetensors_package_is_taken(client, detector_file, some_logits):
    package = pytest.importorskip("safetensors.numpy")
    logits, file = some_logits(7), detector_file()
    response = score(client(file), package.save({"logits": logits}), SAFETENSORS)
    same(columns_of(response), ns.load(file).assess(logits))
    assert sorted(package.load(response.content)) == ["in_distribution", "p_value", "score"]


# --- detectors ----------------------------------------------------------------------------------


def test_a_detector_by_label_count_says_which_group(client, detector_file, some_logits):
    file = detector_file(groups="label_count")
    logits = some_logits(60)
    expected = ns.load(file).assess(logits)
    service = client(file)
    answer = service.post("/v1/score", json={"logits": logits.tolist()}).json()
    assert answer["group"] == expected.groups.tolist()
    binary = score(service, encode_tensors({"logits": logits}, {}), SAFETENSORS)
    tensors, metadata = decode_tensors(binary.content, "the answer")
    same(tensors, expected)
    assert [metadata["groups"][index] for index in tensors["group"]] == expected.groups.tolist()


def test_requests_name_their_groups(client, detector_file, some_logits):
    file = detector_file(groups=np.resize(["front", "rear"], 1000))
    service, logits = client(file), some_logits(3)
    with pytest.warns(GroupWarning):
        expected = ns.load(file).assess(logits, groups=["front", "rear", "new"])
    body = {"logits": logits.tolist()}
    named = service.post("/v1/score", json=body | {"groups": ["front", "rear", "new"]}).json()
    assert named["group"] == ["front", "rear", "all"]
    assert named["p_value"] == expected.p_values.tolist()
    [warning] = named["warnings"]
    assert warning.startswith("No threshold was calibrated for 1 group: 'new', with 1 row; calib")
    unknown = score(service, encode_tensors({"logits": logits}, {}), SAFETENSORS, group="new")
    assert "with all 3 rows" in decode_tensors(unknown.content, "the answer")[1]["warnings"][0]
    together = service.post("/v1/score?group=rear&explain=true", json=body).json()
    assert together["group"] == ["rear"] * 3
    assert len(together["explanation"]) == 3
    assert "warnings" not in together
    binary = score(service, encode_tensors({"logits": logits}, {}), SAFETENSORS, group="rear")
    assert decode_tensors(binary.content, "the answer")[1]["groups"] == ["rear"]
    refused(service.post("/v1/score", json=body), 422, "?group=NAME")
    both = body | {"groups": ["rear"] * 3}
    refused(service.post("/v1/score?group=rear", json=both), 422, "not both")
    refused(service.post("/v1/score", json=body | {"groups": ["rear"]}), 422, "group")
    refused(client().post("/v1/score?group=rear", json=body), 422, "send none")


def test_mahalanobis_reads_features_beside_logits_of_its_labels(client, tmp_path):
    detector = ns.Mahalanobis().fit(make_outputs(400)).calibrate(make_outputs(300, seed=1))
    detector.save(tmp_path / "m.nescio")
    service, new = client(tmp_path / "m.nescio"), make_outputs(4, seed=2)
    body = {"logits": new.logits.tolist(), "features": new.features.tolist()}
    answer = service.post("/v1/score", json=body)
    assert answer.json()["score"] == detector.assess(new).scores.tolist()
    refused(service.post("/v1/score", json={"logits": body["logits"]}), 422, "features")
    # Mahalanobis does not look at the logits, but the counts of labels do.
    for columns in (slice(3), slice(None), [0, 1, 2, 3, 4, 5, 0]):
        logits = new.logits[:, columns].tolist()
        answer = service.post(
            "/v1/score", json={"logits": logits, "features": new.features.tolist()}
        )
        assert answer.status_code == (200 if columns == slice(None) else 422), answer.text
    assert service.get("/metrics").status_code == 200
    assert service.get("/v1/traffic").json()["n_watched"] == 8


def test_a_perturbed_detector_reads_its_own_array(client, tmp_path):
    detector = ns.ODIN().calibrate(make_outputs(300, seed=1))
    detector.save(tmp_path / "odin.nescio")
    service, new = client(tmp_path / "odin.nescio"), make_outputs(10, seed=2)
    (reads,) = detector.scores_from
    body = encode_tensors({"logits": new.logits, f"arrays.{reads}": new.get(reads)}, {})
    same(columns_of(score(service, body, SAFETENSORS)), detector.assess(new))
    body = {"logits": new.logits.tolist(), "arrays": {reads: new.get(reads).tolist()}}
    assert service.post("/v1/score", json=body).status_code == 200
    answer = service.post("/v1/score", json={"logits": new.logits.tolist()})
    assert answer.status_code == 422
    assert reads in answer.json()["detail"]


def test_rows_that_have_no_score_are_null_where_the_detector_counts_them_out(
    client, detector_file, some_logits
):
    logits = some_logits(3)
    logits[1, 2] = np.nan
    service = client(detector_file(ns.JointEnergy(nonfinite="out")))
    answer = score(service, encode_tensors({"logits": logits}, {}), SAFETENSORS, accept=JSON)
    assert answer.status_code == 200
    assert [value is None for value in answer.json()["score"]] == [False, True, False]
    assert answer.json()["in_distribution"][1] is False
    # The page of recent traffic and the metrics hold it too.
    assert 'data-n="2"' in service.get("/v1/traffic?charts=500").json()["charts"][0]["svg"]
    assert service.get("/metrics").status_code == 200


# --- beside the verdicts ------------------------------------------------------------------------


def test_explain_gives_each_label_a_part(client, detector_file, some_logits):
    logits, file = some_logits(2), detector_file()
    answer = client(file).post(
        "/v1/score", json={"logits": logits.tolist()}, params={"explain": "true"}
    )
    explanation = answer.json()["explanation"]
    expected = ns.load(file).explain(logits.astype(np.float64))
    assert [reason["summary"] for reason in explanation] == [r.summary() for r in expected]
    assert {label["label"] for label in explanation[0]["labels"]} == {"cat", "dog", "bird", "car"}
    assert answer.json()["score"] == ns.load(file).assess(logits.astype(np.float64)).scores.tolist()


def test_a_combination_is_explained_by_part_and_by_label(client, some_logits, tmp_path):
    detector = ns.Combined([ns.JointEnergy(), "msp"]).calibrate(some_logits(200))
    detector.save(tmp_path / "both.nescio")
    service, logits = client(tmp_path / "both.nescio"), some_logits(2)
    described = service.get("/v1/detector").json()
    assert described["explains"] is True
    assert described["params"]["detectors"][1] == "msp"
    answer = service.post("/v1/score", json={"logits": logits.tolist()}, params={"explain": "true"})
    reason = answer.json()["explanation"][0]
    assert reason["summary"] == detector.explain(logits)[0].summary()
    assert {part["detector"] for part in reason["parts"]} == {"joint_energy", "msp"}
    assert (reason["term"], len(reason["labels"])) == ("energy", 4)


def test_explain_has_a_limit_and_says_which_detectors_cannot(client, some_logits, tmp_path):
    service = client()
    many = service.post(
        "/v1/score", json={"logits": some_logits(101).tolist()}, params={"explain": "true"}
    )
    refused(many, 413, "101 rows; 100 are allowed")
    assert metrics_of(service)["nescio_samples_total", ()] == 0  # they will be sent again
    forest = ns.IsolationForest().fit(some_logits(200)).calibrate(some_logits(100, seed=5))
    forest.save(tmp_path / "forest.nescio")
    answer = client(tmp_path / "forest.nescio").post(
        "/v1/score", json={"logits": some_logits(1).tolist()}, params={"explain": "true"}
    )
    assert answer.status_code == 422


def test_labels_are_matched_by_name(client, some_logits):
    logits = some_logits(3)
    service = client()
    plain = service.post("/v1/score", json={"logits": logits.tolist()}).json()
    turned = {"logits": logits[:, ::-1].tolist(), "label_names": ["car", "bird", "dog", "cat"]}
    assert service.post("/v1/score", json=turned).json() == plain
    answer = service.post("/v1/score", json=turned | {"label_names": ["cat", "dog", "bird", "x"]})
    refused(answer, 422, "Missing: 'car'")


@pytest.mark.parametrize("kind", [JSON, SAFETENSORS])
def test_probabilities_are_refused_unless_they_are_said_to_be_some(kind, client, detector_file):
    file = detector_file()
    service, probs = client(file), np.random.default_rng(0).random((20, 4))
    body = json.dumps({"logits": probs.tolist()}).encode()
    if kind == SAFETENSORS:
        body = encode_tensors({"logits": probs}, {})
    answer = score(service, body, kind)
    assert answer.status_code == 422
    assert "look like probabilities" in answer.json()["detail"]
    assert "?from_probs=true" in answer.json()["detail"]
    assert score(service, body, kind, from_probs="false").status_code == 200
    # One row does not tell, but some rows in a row do.
    rows = [{"logits": [row]} for row in probs.tolist()]
    statuses = [service.post("/v1/score", json=row).status_code for row in rows]
    assert statuses == [200] * 12 + [422] * 8
    [warning] = client(file).post("/v1/score", json=rows[0]).json()["warnings"]
    assert warning.startswith("Every value lies within [0, 1]: these may be probabilities. Add ?")
    for sent, query in (([[-1, 0.5, 0.2, 0.1]], ""), (probs[:1].tolist(), "?from_probs=false")):
        assert "warnings" not in service.post(f"/v1/score{query}", json={"logits": sent}).json()
    assert service.post("/v1/score", json={"logits": [[-1, 0.5, 0.2, 0.1]]}).status_code == 200
    assert service.post("/v1/score", json=rows[0]).status_code == 200
    answer = score(service, body, kind, accept=JSON, from_probs="true")
    expected = ns.load(file).assess(ns.scores.logits_from_probs(probs))
    assert answer.json()["score"] == expected.scores.tolist()
    wrong = score(service, json.dumps({"logits": [[2.0] * 4]}), JSON, from_probs="true")
    assert wrong.status_code == 422


def test_the_detector_is_described(client, detector_file):
    file = detector_file()
    result = client(file).get("/v1/detector").json()
    detector = ns.load(file)
    assert result["detector"] == "joint_energy"
    assert result["threshold"] == detector.calibration_.threshold_values
    assert result["label_names"] == ["cat", "dog", "bird", "car"]
    assert result["n_calibration"] == 1000
    assert (result["scores_from"], result["n_columns"]) == (["logits"], {"logits": 4})
    assert result["model"] is None
    assert result["explains"] is True


def test_a_request_keeps_its_own_plain_id(client, some_logits):
    service = client()
    answer = service.get("/healthz", headers={"x-request-id": "run-7_b"})
    assert answer.headers["x-request-id"] == "run-7_b"
    for odd in ("a b", "x" * 65, 'a"b'):
        made = service.get("/healthz", headers={"x-request-id": odd}).headers["x-request-id"]
        assert made != odd
        assert made.replace("-", "").isalnum()


# --- errors and charts --------------------------------------------------------------------------


def test_a_wrong_address_or_method_or_type_is_told_the_right_ones(client):
    service = client()
    refused(service.get("/predict"), 404, "There is no /predict. The paths are /v1/score, /v1/pre")
    refused(service.get("/v1/score"), 405, "The path /v1/score takes POST, got GET.")
    form = "application/x-www-form-urlencoded"  # what curl sends unless it is told another type
    refused(post(service, b"{}", form), 415, f"got '{form}'. Send no form")


@pytest.mark.parametrize(
    ("method", "path", "status", "title"),
    [
        ("GET", "/nowhere", 404, "Not Found"),
        ("GET", "/v1/detector/", 404, "Not Found"),  # and no redirect
        ("POST", "/v1/predict", 404, "Not Found"),
        ("GET", "/v1/score", 405, "Method Not Allowed"),
        ("POST", "/v1/score", 415, "Unsupported Media Type"),
        ("GET", "/v1/traffic?charts=9", 422, HTTPStatus(422).phrase),
    ],
)
def test_an_error_has_its_reason_phrase_and_a_sentence(method, path, status, title, client):
    answer = client().request(method, path)
    assert answer.headers["content-type"] == "application/problem+json"
    result = answer.json()
    assert (answer.status_code, result["status"], result["title"]) == (status, status, title)
    assert result["detail"][0].isupper() or "_" in result["detail"].split()[0]
    assert result["detail"].endswith(".")


class PanicException(BaseException):
    """As the bindings of Rust libraries raise it."""


@pytest.mark.parametrize("failure", [ZeroDivisionError, PanicException])
def test_a_failure_is_logged_counted_and_answered_with_500(failure, client, monkeypatch, caplog):
    def fail(*_, **__):
        raise failure

    service = client()
    monkeypatch.setattr(ns.JointEnergy, "assess", fail)
    answer = service.post("/v1/score", json={"logits": [[1, 2, 3, 4]]})
    assert (answer.status_code, answer.json()["title"]) == (500, "Internal Server Error")
    assert failure.__name__ in caplog.text
    assert failure.__name__ not in answer.text
    assert metrics_of(service)["nescio_requests_total", (("path", "/v1/score"), ("status", "500"))]


@pytest.mark.parametrize(
    ("query", "reason"),
    [
        ("explain=maybe", "Expected true or false, got `str` - at `$.explain`"),
        ("explain=", "true or false"),
        ("explian=true", "unknown field `explian`"),
    ],
)
def test_a_query_that_cannot_be_used_is_refused(query, reason, client, detector_file, image_model):
    service = client(detector_file(), model=image_model())
    inputs = {"inputs": {"image": np.zeros((1, 3, 8, 8)).tolist()}}
    for path, body in (("/v1/score", {"logits": [[1, 2, 3, 4]]}), ("/v1/predict", inputs)):
        assert service.post(path, json=body).status_code == 200
        refused(service.post(f"{path}?{query}", json=body), 422, reason)
        refused(service.post(path, json=body | {"explain": True}), 400, "unknown field `explain`")


@pytest.mark.parametrize("path", ["/v1/detector", "/v1/traffic", "/healthz", "/metrics"])
def test_a_parameter_that_a_path_does_not_have_is_refused(path, client):
    refused(client().get(f"{path}?explain=true"), 422, "unknown field `explain`")


ADVICE = re.compile(r"--\w|\w\(|=(?!true|false| )|\[None|array\.T|nescio|np\.|Outputs|[Pp]ass ")


ROW, LAYER = [1.0, -2.0, 3.0, -4.0], [1.0, 2.0, 3.0, 4.0, 5.0, 6.0]
BAD_BODIES = (  # for a detector of four labels that reads six features
    {"logits": [ROW]},
    {"logits": [[1, 2]], "features": [LAYER]},
    {"logits": ROW, "features": [LAYER]},
    {"logits": [[1, None, 3, 4]], "features": [LAYER]},
    {"logits": [ROW], "features": [["-inf", *LAYER[1:]]]},
    {"logits": [ROW] * 2, "features": [LAYER]},
    {"logits": [ROW] * 6, "features": [[1, 2]] * 6},
    {"logits": [[0.5] * 4] * 50, "features": [LAYER] * 50},
    {"logits": [ROW], "features": [LAYER], "label_names": ["a", "b", "c", "d"]},
    {"logits": [ROW], "features": [LAYER], "label_names": ["a", "a", "b", "c"]},
    {"logits": [ROW], "features": [LAYER], "arrays": {"logits": [ROW]}},
    {"logits": [ROW] * 101, "features": [LAYER] * 101},
)
BAD_TENSORS = (
    {"logits": np.array(ROW)},
    {"logits": np.array([ROW]), "features": np.array(LAYER)},
    {
        **{"logits": np.array([ROW]), "features": np.array([LAYER])},
        **{"head.weight": np.zeros((6, 4)), "head.bias": np.zeros(4)},
    },
)


def test_errors_do_not_advise_on_python_or_the_command_line(client, detector_file, tmp_path):
    """Whoever sends requests may have neither."""
    rng = np.random.default_rng(0)
    labels = rng.random((400, 4)) < 0.5
    outputs = ns.Outputs(
        rng.normal(labels), features=rng.normal(size=(400, 6)), labels=labels, label_names=NAMES
    )
    ns.Combined().fit(outputs[:200]).calibrate(outputs[200:]).save(tmp_path / "six.nescio")
    service, other = client(tmp_path / "six.nescio"), client(detector_file(ns.MSP()))
    path = "/v1/score?explain=true"
    answers = [
        *(service.post(path, json=body) for body in BAD_BODIES),
        *(score(service, encode_tensors(arrays, {}), SAFETENSORS) for arrays in BAD_TENSORS),
        service.post("/v1/score?from_probs=true", json={"logits": [ROW], "features": [LAYER]}),
        service.post("/v1/predict", json={"texts": ["a text"]}),
        other.post(path, json={"logits": [ROW]}),
    ]
    for answer in answers:
        assert 400 <= answer.status_code < 500, answer.text
        assert not ADVICE.search(answer.json()["detail"]), answer.text
    assert "scores_from of /v1/detector" in answers[0].json()["detail"]


def test_traffic_has_charts_if_asked_for(client, some_logits):
    service = client()
    assert service.get("/v1/traffic?charts=500").json()["charts"] == []
    service.post("/v1/score", json={"logits": some_logits(3).tolist()})
    charts = service.get("/v1/traffic?charts=500").json()["charts"]
    assert [chart["title"] for chart in charts][:2] == ["p-values", "Flagged share"]
    assert "charts" not in service.get("/v1/traffic").json()
    assert service.get("/v1/traffic?charts=wide").status_code == 422


# --- settings ------------------------------------------------------------------------------------


def test_settings_that_cannot_be_are_refused(detector_file):
    wrong = (
        {"max_requests": 0},
        {"logits": "scores"},
        {"image_size": 64},
        {"token": ""},
        {"token": "é"},
    )
    for settings in wrong:
        with pytest.raises(ParameterError):
            Settings(detector=detector_file(), **settings)
