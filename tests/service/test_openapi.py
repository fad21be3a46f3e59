"""The OpenAPI description says what the service does: every route, and no more than it holds."""

import contextlib
import json
import warnings

import pytest
from hypothesis import HealthCheck, Phase, given, seed, settings
from hypothesis.errors import Unsatisfiable

from fixtures.texts import word_tokenizer

schemathesis = pytest.importorskip("schemathesis")
checks = pytest.importorskip("schemathesis.specs.openapi.checks")

PATHS = {
    ("/v1/score", "post"),
    ("/v1/predict", "post"),
    ("/v1/detector", "get"),
    ("/v1/traffic", "get"),
    ("/v1/acknowledge", "post"),
    ("/v1/reload", "post"),
    ("/healthz", "get"),
    ("/readyz", "get"),
    ("/metrics", "get"),
    ("/openapi.json", "get"),
}


@pytest.fixture
def document(client, detector_file, image_model):
    return client(detector_file(), model=image_model()).get("/openapi.json").json()


def operations(document):
    for path, methods in document["paths"].items():
        for method, operation in methods.items():
            yield path, method, operation


def test_every_route_is_described_and_says_how_it_may_refuse(document):
    assert {(path, method) for path, method, _ in operations(document)} == PATHS
    for path, method, operation in operations(document):
        assert operation["summary"], path
        assert operation["description"], path
        assert "200" in operation["responses"]
        assert ("image" in operation["responses"]["422"]["description"]) == (
            "requestBody" in operation
        )
        assert "403" in operation["responses"], "a foreign origin"
        if method == "post" and path != "/v1/reload":
            assert {"400", "413", "415", "422", "503"} <= set(operation["responses"])
            assert operation["requestBody"]["required"] is True


def test_every_other_route_is_of_the_page(app, document):
    described = {path for path, _ in PATHS}
    rest = app().routes.keys() - described
    assert {path for path in rest if not path.endswith((".js", ".css"))} == {"/"}


def test_what_is_sent_and_answered_is_described(document):
    schemas = document["components"]["schemas"]
    for kind, names in (
        ("ScoreBody", "logits features arrays ids groups label_names"),
        ("Predictions", "logits p_value score"),
    ):
        for name in names.split():
            assert schemas[kind]["properties"][name]["description"], name


def test_the_document_is_valid(document):
    loaded = schemathesis.openapi.from_dict(document)
    loaded.validate()
    assert document["openapi"].startswith("3.1")
    assert document["info"]["title"] == "nescio"


@pytest.mark.filterwarnings("ignore::nescio.errors.NescioWarning")
def test_the_examples_of_the_document_are_accepted_and_shown_in_errors(
    client, detector_file, image_model, text_model, onnx_file, tmp_path
):
    import numpy as np

    import nescio as ns

    draw = np.random.default_rng(0)
    layers = {"arrays": {"input": draw.normal(size=(300, 5))}}
    outputs = ns.Outputs(draw.normal(-2, 3, (300, 4)), draw.normal(size=(300, 2)), **layers)
    parts = ["joint_energy", "out_of_range", "out_of_range(layer=input)"]
    own = ns.Combined(parts).fit(outputs[:100])
    own.calibrate(outputs[100:], groups=["a", "b"] * 100).save(tmp_path / "own.nescio")
    tokenizer = tmp_path / "tokenizer.json"
    word_tokenizer(max_tokens=6).save(str(tokenizer))
    graph = [("MatMul", ["row", "mix"], ["logits"], {})], [("row", "float", ["batch", 2])]
    weights = [("logits", "float", ["batch", 4])], {"mix": np.ones((2, 4), np.float32)}
    services = {
        "texts": client(detector_file(), model=text_model(), tokenizer=tokenizer),
        "tokens": client(detector_file(), model=text_model()),
        "image": client(detector_file(), model=image_model()),
        "table": client(
            detector_file(),
            model=onnx_file(*graph, *weights, {"nescio.columns": {"row": ["age", "bmi"]}}),
        ),
        "matrix": client(detector_file(), model=onnx_file(*graph, *weights)),
        "parts": client(tmp_path / "own.nescio"),
    }
    for name, service in services.items():
        paths = service.get("/openapi.json").json()["paths"]
        for path in ("/v1/score", "/v1/predict"):
            content = paths[path]["post"]["requestBody"]["content"]["application/json"]
            takes_images = "image/png" in paths[path]["post"]["requestBody"]["content"]
            assert takes_images == (name in ("image", "parts") and path == "/v1/predict")
            is_missing = name in ("image", "parts") and path == "/v1/predict"
            assert ("example" not in content) == is_missing
            if not is_missing:
                answer = service.post(path, json=content["example"])
                assert answer.status_code == 200, (name, answer.text)
                assert "warnings" not in answer.json()  # such as of groups that nobody has
                wrong = service.post(path, json=[{"age": 50}]).json()["detail"]
                assert json.dumps(content["example"], separators=(",", ":")) in wrong


@pytest.mark.parametrize("mode", schemathesis.GenerationMode)
def test_schemathesis_finds_no_server_error(
    mode, app, detector_file, image_model, text_model, tmp_path
):
    """Generated requests, good and bad: no 5xx, and every answer is as described."""
    word_tokenizer(max_tokens=6).save(str(tmp_path / "tokenizer.json"))
    good = mode is schemathesis.GenerationMode.POSITIVE  # any text is, but hardly any image
    model = {"model": text_model(), "tokenizer": tmp_path / "tokenizer.json"}
    # How many labels a detector has is not in the description.
    left_out = [checks.positive_data_acceptance]
    application = app(detector_file(), **(model if good else {"model": image_model()}))
    observed = []
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        document = schemathesis.openapi.from_asgi("/openapi.json", application)
        for result in document.get_all_operations():
            operation = result.ok()

            @seed(1)
            @settings(
                max_examples=30,
                deadline=None,
                database=None,
                phases=[Phase.explicit, Phase.generate],
                suppress_health_check=list(HealthCheck),
            )
            @given(case=operation.as_strategy(generation_mode=mode))
            def check(case):
                if good and isinstance(case.body, dict) and "texts" in case.body:
                    # The description cannot say: no inputs beside them, one id per text, and no
                    # groups for this detector.
                    case.body, case.query = {"texts": case.body["texts"]}, {}
                answer = case.call()
                observed.append((case.path, answer.status_code))
                # Schemathesis does not count 413, too many rows, as a rejection.
                large = [checks.negative_data_rejection] if answer.status_code == 413 else []
                case.validate_response(answer, excluded_checks=left_out + large)

            # There is no wrong way to ask for what takes neither a body nor a query.
            with contextlib.suppress(Unsatisfiable):
                check()
    assert not [status for _, status in observed if status >= 500]
    assert len(observed) >= 40
    assert not good or ("/v1/predict", 200) in observed
