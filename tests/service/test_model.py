"""POST /v1/predict: images, and inputs by name."""

import io
import json

import numpy as np
import pytest

import nescio as ns
from fixtures.service import SAFETENSORS, post, refused
from nescio._io.tensors import encode_tensors

pytest.importorskip("onnxruntime")
pytest.importorskip("PIL.Image")

HALF = {"size": 8, "mean": [0.5, 0.5, 0.5], "std": [0.5, 0.5, 0.5]}
NAMES = ["cat", "dog", "bird", "car"]
EMPTY = {"columns": [], "example": []}


@pytest.fixture
def images(client, detector_file, image_model):
    """Make a service around the model of images, whose file says how to prepare them."""

    def make(**how):
        metadata = {"nescio.preprocessing": HALF, "nescio.label_names": NAMES}
        model = image_model(metadata=metadata, **how)
        return client(detector_file(), model=model)

    return make


@pytest.fixture
def texts(client, detector_file, text_model):
    def make(**settings):
        return client(detector_file(), model=text_model(), **settings)

    return make


def logits_of(colour):
    """What the model of images gives for an image of one colour, from 0 to 1."""
    red, green, blue = (np.asarray(colour, np.float32) - 0.5) / 0.5
    return [3 * red - 1, 3 * green - 1, 3 * blue - 1, red + green + blue - 1]


# --- images -------------------------------------------------------------------------------------


def test_an_image_gets_labels_probabilities_and_a_verdict(images, encoded_image, detector_file):
    pixels = np.zeros((30, 20, 3))
    pixels[..., 0] = 255
    service = images()
    for kind in ("PNG", "JPEG", "WEBP", "GIF", "BMP", "TIFF"):
        answer = service.post(
            "/v1/predict",
            content=encoded_image(pixels, kind),
            headers={"content-type": f"image/{kind.lower()}"},
        )
        assert answer.status_code == 200, answer.text
        result = answer.json()
        assert result["predicted"] == [["cat"]]
        assert result["logits"][0] == pytest.approx(logits_of((1, 0, 0)), abs=0.05)
        assert result["probs"][0] == pytest.approx(1 / (1 + np.exp(-np.array(result["logits"][0]))))
        expected = ns.load(detector_file()).assess(np.array(result["logits"], np.float32))
        assert result["score"] == pytest.approx(expected.scores.tolist(), rel=1e-6)
        assert result["p_value"] == expected.p_values.tolist()
        assert result["in_distribution"] == expected.in_distribution.tolist()


def test_images_of_any_colours_are_taken(images):
    image, service = pytest.importorskip("PIL.Image"), images()
    for mode in ("L", "P", "RGBA", "LA", "I;16"):
        stream = io.BytesIO()
        image.new(mode, (9, 9)).save(stream, "PNG")
        answer = post(service, stream.getvalue(), "image/png", "/v1/predict")
        assert answer.status_code == 200, (mode, answer.text)


def test_the_description_says_what_the_model_takes(images):
    result = images().get("/v1/detector").json()["model"]
    [image] = result["inputs"]
    assert image == {"name": "image", "shape": [None, 3, 8, 8], "dtype": "float32"} | EMPTY
    assert result["preprocessing"] == HALF


def test_a_model_of_any_size_must_be_told_one(client, detector_file, image_model):
    model = image_model(size=None)
    with pytest.raises(ns.NescioError, match="--image-size"):
        client(detector_file(), model=model)
    service = client(detector_file(), model=model, image_size=24)
    assert service.get("/v1/detector").json()["model"]["preprocessing"]["size"] == 24


def test_a_graph_for_one_image_at_a_time_is_served(images, encoded_image):
    service = images(batch=1)
    body = encoded_image(np.full((8, 8, 3), 200))
    headers = {"content-type": "image/png"}
    assert service.post("/v1/predict", content=body, headers=headers).status_code == 200
    two = encode_tensors({"image": np.zeros((2, 3, 8, 8), np.float32)}, {})
    answer = service.post("/v1/predict", content=two, headers={"content-type": SAFETENSORS})
    assert answer.status_code == 422
    assert "[1, 3, 8, 8]" in answer.json()["detail"]


def test_mahalanobis_takes_the_models_features(client, image_model, tmp_path, encoded_image):
    rng = np.random.default_rng(0)
    logits = rng.normal(size=(300, 4))
    held_out = ns.Outputs(logits, features=rng.normal(size=(300, 3)), labels=logits > 0)
    ns.Mahalanobis().fit(held_out[:100]).calibrate(held_out[100:]).save(tmp_path / "m.nescio")
    model = image_model(features=True, metadata={"nescio.preprocessing": HALF})
    service = client(tmp_path / "m.nescio", model=model)
    pixels = encoded_image(np.full((8, 8, 3), 128))
    result = service.post("/v1/predict", content=pixels, headers={"content-type": "image/png"})
    features = np.full((1, 3), (128 / 255 - 0.5) / 0.5, np.float32)
    expected = ns.load(tmp_path / "m.nescio").score_samples(features)
    assert result.json()["score"] == pytest.approx(expected.tolist(), rel=1e-4)


def test_label_names_of_the_model_that_differ_from_the_detectors_are_refused(
    client, detector_file, image_model
):
    model = image_model(metadata={"nescio.label_names": ["a", "b", "c", "d"]})
    with pytest.raises(ns.NescioError):
        client(detector_file(), model=model)


def test_a_model_file_with_another_detector_is_said(client, detector_file, image_model, caplog):
    own = ns.load(detector_file()).calibration_.threshold_values
    for stored, warned in ((own, False), ({"all": -7.0}, True)):
        caplog.clear()
        model = image_model(metadata={"nescio.threshold": stored, "nescio.preprocessing": HALF})
        service = client(detector_file(), model=model)
        said = ["The model file holds another detector, which is not used."] if warned else []
        assert service.get("/v1/detector").json()["warnings"] == said
        assert ("holds another detector" in caplog.text) == warned


# --- inputs by name -----------------------------------------------------------------------------


def test_token_ids_are_taken_as_json_and_as_safetensors(texts):
    service = texts()
    ids, mask = [[1, 2, 3], [4, 5, 0]], [[1, 1, 1], [1, 1, 0]]
    plain = service.post("/v1/predict", json={"inputs": {"input_ids": ids, "attention_mask": mask}})
    assert plain.status_code == 200, plain.text
    body = encode_tensors(
        {"input_ids": np.array(ids), "attention_mask": np.array(mask, np.int32)}, {}
    )
    binary = service.post("/v1/predict", content=body, headers={"content-type": SAFETENSORS})
    assert binary.json() == plain.json()
    assert len(plain.json()["score"]) == 2


WRONG = {
    "another name": ({"input_ids": [[1]], "mask": [[1]]}, "attention_mask"),
    "one is missing": ({"input_ids": [[1]]}, "attention_mask"),
    "fractions": ({"input_ids": [[1.5]], "attention_mask": [[1]]}, "int64; row 0, column 0 is 1.5"),
    "one sample": (
        {"input_ids": [1], "attention_mask": [1]},
        "got [1]. Put one sample into a list",
    ),
    "other rows": ({"input_ids": [[1], [2]], "attention_mask": [[1]]}, "equally many rows"),
    "no rows": ({"input_ids": [], "attention_mask": []}, "shape"),
    "ragged": (
        {"input_ids": [[1, 2], [3]], "attention_mask": [[1]]},
        "row 1 has 1 number, expected 2",
    ),
    "text": ({"input_ids": [[1], ["a"]], "attention_mask": [[1]]}, "row 1, column 0 is text, 'a'"),
    "null": (
        {"input_ids": [[1, None]], "attention_mask": [[1]]},
        "must be int64; row 0, column 1 is null",
    ),
    "an object": ({"input_ids": {"a": 1}, "attention_mask": [[1]]}, "it is an object"),
    "nested deeply": (
        {"input_ids": [[[[1], []]]], "attention_mask": [[1]]},
        "row 0, column 0[1] has 0 numbers, expected 1",
    ),
    "too large a number": ({"input_ids": [[2**80]], "attention_mask": [[1]]}, "input_ids"),
    "not in the table": ({"input_ids": [[10**6]], "attention_mask": [[1]]}, "graph"),
}


def test_inputs_that_do_not_fit_are_refused_with_a_reason(texts):
    service = texts()
    for inputs, reason in WRONG.values():
        refused(service.post("/v1/predict", json={"inputs": inputs}), 422, reason)


def test_numbers_that_the_graphs_type_does_not_hold_are_refused(client, detector_file, onnx_file):
    model = onnx_file(
        [("Cast", ["bytes"], ["logits"], {"to": 1})],
        [("bytes", "uint8", ["batch", 4])],
        [("logits", "float", ["batch", 4])],
    )
    service = client(detector_file(), model=model)
    fine = service.post("/v1/predict", json={"inputs": {"bytes": [[0, 1, 2, 255]]}})
    assert fine.json()["logits"] == [[0.0, 1.0, 2.0, 255.0]]
    for wrong in (256, -1):
        answer = service.post("/v1/predict", json={"inputs": {"bytes": [[0, 1, 2, wrong]]}})
        assert answer.status_code == 422, answer.text
        assert "uint8" in answer.json()["detail"]


@pytest.fixture
def table(onnx_file):
    """A model of a table with four columns, whose logits are the columns; NaN counts as zero."""
    return onnx_file(
        [
            ("IsNaN", ["row"], ["missing"], {}),
            ("Where", ["missing", "zero", "row"], ["logits"], {}),
        ],
        [("row", "float", ["batch", 4])],
        [("logits", "float", ["batch", 4])],
        {"zero": np.zeros(1, np.float32)},
    )


def test_null_is_a_missing_value_of_a_table(client, detector_file, table):
    service = client(detector_file(), model=table)
    answer = service.post("/v1/predict", json={"inputs": {"row": [[50, 120, None, 26]]}})
    assert answer.json()["logits"] == [[50.0, 120.0, 0.0, 26.0]]


@pytest.mark.parametrize(
    ("cells", "fault"),
    {
        "[[1, 2], [3, 1e400]]": "row 1, column 1 is too large",
        "[[-1e400, 1, 2, 3]]": "row 0, column 0 is too large",
        "1e400": "it is too large",
        '["\udcff"]': "they are nested too deeply, or text that is not UTF-8",
        "[[1, true, 2.5, null]]": "row 0, column 1 is true or false",
    }.items(),
)
def test_what_is_no_number_is_refused_with_its_place(cells, fault, client, detector_file, table):
    body = f'{{"inputs": {{"row": {cells}}}}}'.encode(errors="surrogateescape")
    headers = {"content-type": "application/json"}
    answer = client(detector_file(), model=table).post("/v1/predict", content=body, headers=headers)
    refused(answer, 422, f"Input 'row' must be a regular array of numbers: {fault}.")


def test_predictions_have_the_ids_and_groups_of_the_body(client, detector_file, table):
    service = client(detector_file(groups=["a"] * 500 + ["b"] * 500), model=table)
    body = {"inputs": {"row": [[1, 2, 3, 4]] * 2}, "ids": ["x", "y"]}
    answer = service.post("/v1/predict", json=body | {"groups": ["a", "c"]}).json()
    assert (answer["id"], answer["group"]) == (["x", "y"], ["a", "all"])
    assert answer["warnings"][0].startswith("No threshold was calibrated for 1 group: 'c', with 1")
    refused(service.post("/v1/predict", json=body), 422, "one per row as groups")
    refused(service.post("/v1/predict", json=body | {"groups": ["a"]}), 422, "one row per sample")


def test_nan_in_inputs_is_answered_without_masked_labels(client, detector_file, table):
    service = client(detector_file(), model=table)
    body = b'{"inputs": {"row": [[NaN, 2, 3, 4]]}}'
    refused(post(service, body, "application/json", "/v1/predict"), 400, "send null for a missing")


@pytest.mark.parametrize("path", ["/v1/score", "/v1/predict"])
def test_what_is_not_watched_is_no_traffic(path, client, detector_file, table):
    service = client(detector_file(), model=table)
    rows = [[1, 2, 3, 4]]
    body = {"logits": rows} if path == "/v1/score" else {"inputs": {"row": rows}}
    answers = [service.post(f"{path}?watch={watch}", json=body) for watch in ("false", "true")]
    assert answers[0].json() == answers[1].json()
    assert service.get("/v1/traffic").json()["n_watched"] == 1
    assert "nescio_samples_total 1.0" in service.get("/metrics").text


def test_a_model_of_texts_takes_no_image(texts, encoded_image):
    body = encoded_image(np.zeros((8, 8, 3)))
    answer = texts().post("/v1/predict", content=body, headers={"content-type": "image/png"})
    assert answer.status_code == 415
    assert "must be one of application/json, application/x-s" in answer.json()["detail"]


def token_ids(n_rows):
    return {
        "input_ids": [[index % 50] for index in range(n_rows)],
        "attention_mask": [[1]] * n_rows,
    }


def test_an_answer_of_too_many_logits_is_refused_before_the_model_runs(texts, monkeypatch):
    monkeypatch.setattr("nescio.service.requests._MAX_VALUES", 20)
    service = texts()
    answer = service.post("/v1/predict", json={"inputs": token_ids(6)})
    refused(answer, 413, "5 rows of 4 labels; got 6 rows")
    assert "nescio_samples_total 0.0" in service.get("/metrics").text
    assert service.post("/v1/predict", json={"inputs": token_ids(5)}).status_code == 200


def test_inputs_and_answers_are_counted_as_memory_until_they_are_sent(texts):
    service = texts(max_body_bytes=1_000)  # eight times that for all requests
    room = service.app.service.limits
    assert service.post("/v1/predict", json={"inputs": token_ids(2)}).status_code == 200
    assert room.n_held == 0
    room.n_held = 7_990  # others
    answer = service.post("/v1/predict", json={"inputs": token_ids(2)})
    refused(answer, 503, "Requests of 7,990 bytes")
    assert room.n_held == 7_990


def test_long_text_among_the_inputs_takes_no_memory(texts):
    # NumPy would give each string the room of the longest: terabytes.
    body = json.dumps({"inputs": {"input_ids": ["a"] * 300_000 + ["b" * 1_000_000]}}).encode()
    answer = texts().post("/v1/predict", content=body, headers={"content-type": "application/json"})
    assert answer.status_code == 422
    assert "numbers" in answer.json()["detail"]


def test_a_graph_without_rows_is_not_served(client, detector_file, onnx_file):
    model = onnx_file(
        [("Mul", ["x", "scale"], ["logits"], {})],
        [("x", "float", ["batch", 4]), ("scale", "float", [])],
        [("logits", "float", ["batch", 4])],
    )
    with pytest.raises(ns.NescioError, match="scale"):
        client(detector_file(), model=model)


def test_texts_of_no_tokens_are_answered_somehow_and_others_after_them(texts):
    service = texts()
    nothing = np.zeros((1, 0), np.int64)
    body = encode_tensors({"input_ids": nothing, "attention_mask": nothing}, {})
    answer = service.post("/v1/predict", content=body, headers={"content-type": SAFETENSORS})
    assert answer.status_code in (200, 422)
    inputs = {"input_ids": [[1]], "attention_mask": [[1]]}
    assert service.post("/v1/predict", json={"inputs": inputs}).status_code == 200


# --- models and detectors that do not go together -----------------------------------------------


def test_a_model_of_another_number_of_labels_is_refused_at_the_start(
    app, detector_file, image_model
):
    file = detector_file(name="five.nescio")
    ns.JointEnergy().calibrate(np.random.default_rng(0).normal(size=(200, 5))).save(
        file, force=True
    )
    with pytest.raises(ns.NescioError, match="returns 4 logits, and the detector expects 5"):
        app(file, model=image_model(metadata={"nescio.preprocessing": HALF}))


def test_the_scale_of_images_is_asked_for_stored_or_reported(
    client, detector_file, image_model, encoded_image, caplog
):
    picture = {
        "content": encoded_image(np.full((9, 9, 3), 255)),
        "headers": {"content-type": "image/png"},
    }
    plain = image_model()
    asked = client(detector_file(), model=plain, mean=(0.5, 0.5, 0.5), std=(0.5, 0.5, 0.5))
    logits = asked.post("/v1/predict", **picture).json()["logits"][0]
    assert logits == pytest.approx(logits_of((1, 1, 1)), abs=1e-5)
    assert caplog.text == ""
    usual = client(detector_file(), model=plain)
    assert "normalised as for ImageNet" in caplog.text
    red = (1 - 0.485) / 0.229
    logits = usual.post("/v1/predict", **picture).json()["logits"][0]
    assert logits[0] == pytest.approx(3 * red - 1, rel=1e-4)


def test_a_model_that_gives_probabilities_is_refused_at_the_start(
    client, detector_file, image_model, onnx_file
):
    ends = [("Sigmoid", ["x"], ["y"], {}), ("Cast", ["y"], ["out"], {"to": 1})]
    shape = ["batch", 4]
    model = onnx_file(ends, [("x", "float", shape)], [("out", "float", shape)], {})
    with pytest.raises(ns.NescioError, match=r"'out'.*holds probabilities.*--from-probs"):
        client(detector_file(), model=model)
    service = client(detector_file(), model=model, from_probs=True)
    answer = service.post("/v1/predict", json={"inputs": {"x": [[2.0, -3.0, 0.5, 1.0]]}})
    assert answer.json()["logits"][0] == pytest.approx([2.0, -3.0, 0.5, 1.0], abs=1e-4)
    # Inputs like no others may have logits between 0 and 1, each in a request of its own.
    service = client(detector_file(), model=image_model(metadata={"nescio.preprocessing": HALF}))
    image = {"inputs": {"image": np.full((1, 3, 8, 8), 0.6).tolist()}}  # logits of 0.8
    statuses = {service.post("/v1/predict", json=image).status_code for _ in range(14)}
    assert statuses == {200}


def test_a_request_is_answered_by_the_model_that_it_was_prepared_for(
    client, detector_file, image_model, encoded_image, monkeypatch
):
    metadata = {"nescio.preprocessing": HALF, "nescio.label_names": NAMES}
    model = image_model(metadata=metadata)
    service = client(detector_file(), model=model)
    inside = service.app.service
    submit = inside.predicting.submit

    async def reload_first(*work, **options):
        image_model(metadata={"nescio.preprocessing": HALF | {"size": 16}}, size=16)
        detector_file(named=False)
        await inside.reload()
        return await submit(*work, **options)

    monkeypatch.setattr(inside.predicting, "submit", reload_first)
    picture = {
        "content": encoded_image(np.full((9, 9, 3), 255)),
        "headers": {"content-type": "image/png"},
    }
    answer = service.post("/v1/predict?explain=true", **picture)
    assert answer.status_code == 200, answer.text
    assert answer.json()["predicted"] == [NAMES]
    monkeypatch.undo()
    assert service.post("/v1/predict", **picture).json()["predicted"] == [["0", "1", "2", "3"]]


# --- tables -------------------------------------------------------------------------------------


@pytest.mark.filterwarnings("ignore::nescio.errors.NescioWarning")
def test_the_columns_of_a_table_are_sent_and_explained_by_name(client, tmp_path):
    pandas, _ = pytest.importorskip("pandas"), pytest.importorskip("skl2onnx")
    from sklearn.linear_model import LogisticRegression
    from sklearn.multioutput import MultiOutputClassifier

    names = ["age", "pressure", "height"]
    values = np.random.default_rng(0).normal([50, 120, 170], [15, 10, 9], (900, 3))
    table, labels = pandas.DataFrame(values, columns=names), values[:, :2] > [60, 125]
    model = MultiOutputClassifier(LogisticRegression()).fit(table[:400], labels[:400])
    guarded = ns.wrap(model).fit(table[:400], labels[:400]).calibrate(table[400:])
    guarded.save(tmp_path / "t.nescio")
    ns.export_onnx(guarded, tmp_path / "t.onnx", samples=table[:20])
    service = client(tmp_path / "t.nescio", model=tmp_path / "t.onnx")
    assert service.get("/v1/detector").json()["model"]["inputs"][0]["columns"] == names
    by_name = {"height": [171.0, 169.0], "age": [44.0, 47.0], "pressure": [118.0, 400.0]}

    def predict(inputs):
        return service.post("/v1/predict?explain=true", json={"inputs": inputs})

    answer = predict(by_name).json()
    assert answer["in_distribution"] == [True, False]
    assert "pressure = 400 (usually" in str(answer["explanation"][1])
    rows = [[44.0, 118.0, 171.0], [47.0, 400.0, 169.0]]
    assert predict({"input": rows}).json()["score"] == answer["score"]
    row = {"height": 169, "age": 47.0, "pressure": 400.0}
    refused(predict(row), 422, "Input 'height' must be a list, also for one row: [169]")
    refused(predict(by_name | {"input": rows}), 422, "twice: by its columns and as a matrix. Send")
    refused(service.post("/v1/predict", json=rows), 400, 'Send a body such as {"inputs":{"age":[')
    [described] = service.get("/v1/detector").json()["model"]["inputs"]
    assert predict({"input": [described["example"]]}).json()["in_distribution"] == [True]
    assert predict(by_name | {"id": ["a", 7], "note": [None]}).json()["score"] == answer["score"]
    assert [len(e["ranges"]) > 0 for e in answer["explanation"]] == [False, True]
    assert all(range_["excess"] > 0 for e in answer["explanation"] for range_ in e["ranges"])
    refused(predict(by_name | {"age": [44.0]}), 422, "equally many rows")
    refused(predict(by_name | {"age": [True, False]}), 422, "got true or false: send 1 or 0.")
    fault = "Missing: 'age'. Not known: 'Age'. Send age, pressure, height, or input."
    wrong = {"Age": [44.0], "pressure": [118.0], "height": [171.0]}
    refused(predict(wrong), 422, f"The inputs do not fit. {fault}")
    fault = "must have rows of 3 numbers (age, pressure, height), got 2."
    refused(predict({"input": [[44.0, 118.0]]}), 422, fault)
    refused(predict({"input": [44.0] * 3}), 422, "shape [any number, 3], got [3]. Put one sample")
    refused(predict({"input": [[True] * 3]}), 422, "Input 'input' must be numbers, got true")


@pytest.mark.filterwarnings("ignore::nescio.errors.NescioWarning")
def test_words_of_a_table_are_sent_as_text(client, tmp_path):
    pandas, _ = pytest.importorskip("pandas"), pytest.importorskip("skl2onnx")
    from sklearn.compose import ColumnTransformer
    from sklearn.linear_model import LogisticRegression
    from sklearn.multioutput import MultiOutputClassifier
    from sklearn.pipeline import make_pipeline
    from sklearn.preprocessing import OneHotEncoder

    rng = np.random.default_rng(0)
    table = pandas.DataFrame({"id": range(900), "site": rng.choice(["north", "south"], 900)})
    table["age"], labels = rng.normal(50, 15, 900), rng.random((900, 2)) < 0.4
    encoder = OneHotEncoder(handle_unknown="ignore")
    parts = [("words", encoder, ["site"]), ("id", "drop", ["id"])]
    steps = ColumnTransformer(parts, remainder="passthrough")
    model = make_pipeline(steps, MultiOutputClassifier(LogisticRegression()))
    model.fit(table[:400], labels[:400])
    guarded = ns.wrap(model).fit(table[:400], labels[:400]).calibrate(table[400:])
    guarded.save(tmp_path / "t.nescio")
    ns.export_onnx(guarded, tmp_path / "t.onnx", samples=table[:20])
    service = client(tmp_path / "t.nescio", model=tmp_path / "t.onnx")
    described = service.get("/v1/detector").json()["model"]["inputs"]
    assert [(e["name"], e["dtype"], e["columns"]) for e in described] == [
        ("input", "float64", ["age"]),
        ("words", "str", ["site"]),
    ]

    def predict(inputs):
        return service.post("/v1/predict?explain=true", json={"inputs": inputs})

    rows = pandas.DataFrame({"site": ["north", "mars", None], "age": [50.0, 50.0, 50.0]})
    assert described[1]["example"] in (["north"], ["south"])
    answer = predict({"site": ["north", "mars", None], "age": [50, 50, 50]}).json()
    expected = guarded(rows)
    assert answer["in_distribution"] == expected.in_distribution.tolist() == [True, False, False]
    np.testing.assert_allclose(answer["score"], expected.assessment.scores, rtol=1e-9)
    assert "site = an unusual word" in str(answer["explanation"][1])
    matrices = {"input": [[50]] * 3, "words": [["north"], ["mars"], [None]]}
    assert predict(matrices).json()["score"] == answer["score"]
    assert predict({"site": [None], "age": [50]}).json()["score"] == answer["score"][2:]
    text = "Columns of words must hold text, but row 1 has 7."
    refused(predict({"site": ["north", 7], "age": [50, 50]}), 422, text)
    refused(predict({"site": "north", "age": [50]}), 422, "must be a list, also for one row")
    refused(predict({"site": ["north"], "age": ["old"]}), 422, "row 0 is text, 'old'")
    refused(predict({"words": [["a", "b"]], "input": [[50]]}), 422, "rows of 1 words (site), got 2")
    refused(predict({"words": [["a"], "b"], "input": [[50]] * 2}), 422, "got")
