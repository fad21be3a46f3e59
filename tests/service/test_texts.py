"""Raw texts over HTTP and on the page, for a model with a tokenizer."""

import contextlib
import json
import signal

import httpx
import numpy as np
import pytest

import nescio as ns
from fixtures.service import refused
from fixtures.texts import WORDS, word_tokenizer
from nescio.errors import ParameterError
from nescio.service.model import Model
from nescio.service.settings import Settings

TEXTS = ["red cat runs", "blue dog sleeps today now", "green"]


@pytest.fixture
def tokenizer(tmp_path):
    path = tmp_path / "tokenizer.json"
    word_tokenizer(max_tokens=6).save(str(path))
    return path


@pytest.fixture
def model(text_model):
    return text_model()


@pytest.fixture
def service(client, detector_file, model, tokenizer):
    return client(detector_file(), model=model, tokenizer=tokenizer)


def predict(service, **body):
    return service.post("/v1/predict", json=body)


def test_texts_get_labels_and_verdicts(service, model, tokenizer, detector_file):
    answer = service.post("/v1/predict?explain=true", json={"texts": TEXTS})
    assert answer.status_code == 200, answer.text
    result = answer.json()
    with pytest.warns(ns.errors.TruncatedTextWarning):
        wanted = ns.wrap(model, detector=detector_file(), tokenizer=tokenizer)(TEXTS)
    np.testing.assert_allclose(result["logits"], wanted.outputs.logits, rtol=1e-5)
    np.testing.assert_allclose(result["score"], wanted.assessment.scores, rtol=1e-5)
    assert result["in_distribution"] == wanted.in_distribution.tolist()
    assert result["truncated"] == [False, True, False]
    assert len(result["explanation"]) == 3
    tokens = word_tokenizer().encode(TEXTS[0])
    by_name = {"input_ids": [tokens.ids], "attention_mask": [tokens.attention_mask]}
    alone, named = predict(service, texts=TEXTS[:1]), predict(service, inputs=by_name)
    assert alone.json()["logits"] == named.json()["logits"]
    assert "truncated" not in named.json()


def test_padding_that_a_graph_does_not_ignore_is_an_error(
    client, detector_file, text_model, tokenizer
):
    service = client(detector_file(), model=text_model(masked=False), tokenizer=tokenizer)
    assert predict(service, texts=["cat"]).status_code == 200
    assert predict(service, texts=["cat", "dog"]).status_code == 200
    answer = predict(service, texts=["cat", "red dog runs"])
    assert answer.status_code == 422
    assert "changes the logits of the model" in answer.json()["detail"]


def test_a_piece_has_a_bound_of_tokens(detector_file, model, tokenizer):
    settings = Settings(detector=detector_file(), model=model, tokenizer=tokenizer)
    loaded = Model(settings, ns.load(settings.detector))
    sizes = []
    for length in (0, 8, 512, 9999):
        pieces = loaded.pieces({name: np.zeros((257, length)) for name in loaded.inputs})
        sizes.append([len(piece["input_ids"]) for piece in pieces])
    assert sizes == [[257], [256, 1], [4] * 64 + [1], [1] * 257]


@pytest.mark.parametrize(
    ("text", "text_of_log"),
    [("unheard", None), ("a" * 60 + "b", "panicked")],
    ids=["no [UNK]", "a panic in Rust"],
)
def test_a_tokenizer_that_fails_is_a_422_and_lines_of_json(
    served, model, tokenizer, text, text_of_log
):
    content = json.loads(tokenizer.read_text())
    del content["model"]["vocab"]["[UNK]"]
    pattern = {"type": "Replace", "pattern": {"Regex": "(a|aa)+$"}, "content": "x"}
    tokenizer.write_text(json.dumps(content | {"normalizer": pattern}))
    process = served("--model", model, "--tokenizer", tokenizer, "--drain-seconds", "0")
    url = f"{process.url}/v1/predict"
    refused(httpx.post(url, json={"texts": ["red", text]}), 422, "tokenizer cannot read")
    assert httpx.post(url, json={"texts": ["red"]}).status_code == 200
    metrics = httpx.get(f"{process.url}/metrics").text
    assert 'path="/v1/predict",status="422"} 1.0' in metrics
    process.signal(signal.SIGTERM)
    assert process.end() == 0
    written = [line["text"] for line in process.lines if "text" in line]  # all lines are JSON
    assert any(text_of_log in line for line in written) if text_of_log else not written


def test_it_says_that_it_takes_texts(service, client, detector_file, image_model):
    described = service.get("/v1/detector").json()["model"]
    assert described["texts"] == {
        "max_tokens": 6,
        "max_texts": 1000,
        "max_characters": 1_000_000,
    }
    images = client(detector_file(), model=image_model())
    assert images.get("/v1/detector").json()["model"]["texts"] is None
    answer = predict(images, texts=TEXTS)
    assert answer.status_code == 422
    assert "does not take texts" in answer.json()["detail"]


@pytest.mark.parametrize(
    ("body", "status", "why"),
    [
        ({"texts": []}, 422, "no rows"),
        ({"texts": ["red"] * 1001}, 413, "1,001 rows; 1,000 are allowed"),
        ({"texts": ["red " * 250_001]}, 413, "1,000,004 characters; 1,000,000 are allowed"),
        ({"texts": ["red"], "inputs": {}}, 422, "either"),
        ({}, 422, "either"),
        ({"texts": ["red", None]}, 400, "Expected `str`, got `null`"),
        ({"texts": "red"}, 400, "Expected `array`, got `str`"),
    ],
)
def test_what_is_refused(service, body, status, why):
    answer = predict(service, **body)
    assert (answer.status_code, why in answer.json()["detail"]) == (status, True), answer.text


def test_a_file_with_its_own_tokenizer(client, detector_file, save_graph, model):
    onnx = pytest.importorskip("onnx")
    graph = onnx.load(model)
    own = {"nescio.tokenizer": word_tokenizer(max_tokens=6).to_str()}
    onnx.helper.set_model_props(graph, own)
    onnx.save(graph, model)
    result = predict(client(detector_file(), model=model), texts=TEXTS).json()
    assert result["truncated"] == [False, True, False]


def test_tokenizers_that_are_refused(client, detector_file, model, tmp_path):
    path = tmp_path / "tokenizer.json"
    word_tokenizer().save(str(path))
    with pytest.raises(ParameterError, match=r"no maximum length, and a service needs one"):
        client(detector_file(), model=model, tokenizer=path)
    with pytest.raises(ParameterError, match=r"--tokenizer needs a model"):
        client(detector_file(), tokenizer=path)


# --- the page ---------------------------------------------------------------------------------


def ask(page, text):
    page.run("document.getElementById('verdict').replaceChildren()")
    page.run(f"document.getElementById('text').value = {json.dumps(text)}")
    page.run("document.querySelector('#text-form button.main').click()")


def test_the_page_has_a_field_for_a_text(browser, served, model, tokenizer):
    process = served("--model", model, "--tokenizer", tokenizer, "--drain-seconds", "0")
    with contextlib.closing(browser):
        browser.open(f"{process.url}/")
        browser.until("!document.getElementById('content').hidden")
        shown = "['text-form', 'images'].map(id => !document.getElementById(id).hidden)"
        assert browser.run(shown) == [True, False]
        assert browser.run("document.getElementById('input-title').innerText") == "A text"
        assert "up to 6 tokens" in browser.run("document.getElementById('text-hint').innerText")
        ask(browser, " ")
        assert browser.run("document.getElementById('text-error').innerText") == (
            "Write a text first."
        )
        ask(browser, "red cat </textarea><script>window.hacked = 1</script>")
        browser.until("document.querySelector('.verdict .word')")
        assert "seen only a part of it" in browser.run(
            "document.querySelector('.verdict').innerText"
        )
        assert browser.run("document.querySelector('.bars') !== null")
        ask(browser, " ".join(WORDS[:2]))
        browser.until("document.querySelector('.verdict .word')")
        assert "only a part" not in browser.run("document.querySelector('.verdict').innerText")
        assert browser.run("window.hacked") is None
        assert browser.noise == []
