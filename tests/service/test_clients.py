"""Clients that others generate from the OpenAPI document, against a real service."""

import json
import os
import shutil
import subprocess
import sys
import urllib.request
from pathlib import Path

import pytest

from fixtures.serving import some_logits

BUILD = Path(__file__).parents[2] / "build"
PYTHON, TYPESCRIPT = BUILD / "openapi-python-client", BUILD / "openapi-typescript"
TOKEN = "open sesame"


@pytest.fixture
def url(served, image_model, tmp_path):
    """A service with a model, and its document in a file."""
    service = served("--model", image_model(), environment={"NESCIO_TOKEN": TOKEN})
    urllib.request.urlretrieve(f"{service.url}/openapi.json", tmp_path / "openapi.json")
    return service.url


def run(folder, *command, **environment):
    done = subprocess.run(
        command, cwd=folder, env={**os.environ, **environment}, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.mark.skipif(not PYTHON.exists(), reason="run `make build/openapi-python-client`")
def test_a_client_in_python(url, tmp_path, monkeypatch, encoded_image):
    generate = (
        "generate",
        "--path",
        "openapi.json",
        "--output-path",
        "generated_client",
        "--meta",
        "none",
    )
    paths = os.pathsep.join([str(PYTHON), *sys.path])
    run(tmp_path, sys.executable, "-m", "openapi_python_client", *generate, PYTHONPATH=paths)
    monkeypatch.syspath_prepend(tmp_path)
    from generated_client import AuthenticatedClient

    client, stranger = AuthenticatedClient(url, TOKEN), AuthenticatedClient(url, "guess")
    with client, stranger:
        check_python_client(client, stranger, encoded_image)


def check_python_client(client, stranger, encoded_image):
    from generated_client import models
    from generated_client.api.default import acknowledge, detector, predict, score, traffic
    from generated_client.types import File

    rows = some_logits(3).tolist()
    rows[0][1] = "-inf"
    verdicts = score.sync(client=client, body=models.ScoreBody(logits=rows, ids=["a", "b", "c"]))
    assert isinstance(verdicts, models.Verdicts)
    assert (len(verdicts.p_value), verdicts.id) == (3, ["a", "b", "c"])

    inputs = models.PredictBodyInputs.from_dict({"image": [[[[0.5] * 8] * 8] * 3]})
    image = File(encoded_image([[[250, 20, 20]] * 8] * 8))
    for body in (models.PredictBody(inputs=inputs), image):
        predictions = predict.sync(client=client, body=body, explain=True)
        assert isinstance(predictions, models.Predictions)
        assert isinstance(predictions.explanation[0].labels[0], models.LabelShare)

    description, report = detector.sync(client=client), traffic.sync(client=client)
    assert isinstance(description.model.preprocessing, models.Preprocessing)
    assert isinstance(report.monitor, models.MonitorReport)

    short = models.ScoreBody(logits=[[1.0, 2.0]])
    answers = {
        401: score.sync_detailed(client=stranger, body=short),
        409: acknowledge.sync_detailed(client=client, body=models.AcknowledgeBody(note="a")),
        422: score.sync_detailed(client=client, body=short),
    }
    for status, answer in answers.items():
        assert isinstance(answer.parsed, models.Problem)
        assert (answer.status_code, answer.parsed.status) == (status, status)
    assert answers[422].parsed.detail == "The detector expects logits of 4 labels, got 2."


CLIENT = """
import createClient from "openapi-fetch";
import type { components, paths } from "./tagger";

declare const process: { argv: string[] };
type Share = components["schemas"]["LabelShare"];

const headers = { Authorization: `Bearer ${process.argv[3]}` };
const { POST, GET } = createClient<paths>({ baseUrl: process.argv[2], headers });
const query = { explain: true };
const good = await POST("/v1/score", { body: { logits: [[1, "-inf", null, 2]] } });
const bad = await POST("/v1/score", { body: { logits: [[1, 2]] } });
const plane = (value: number) => Array(8).fill(Array(8).fill(value));
const image = [[plane(0.5), plane(0), plane(0)]];
const run = await POST("/v1/predict", { params: { query }, body: { inputs: { image } } });
const labels: Share[] = run.data!.explanation![0].labels;
const alarms: string[] = (await GET("/v1/traffic")).data!.monitor.acknowledged.map((a) => a.note);
const none = await POST("/v1/acknowledge", { body: { note: "Ann" } });
const nan: string = good.error!.detail;
const names: string[][] = run.data!.predicted;
const status: number[] = [bad.error!.status, none.error!.status];
console.log(JSON.stringify({ nan, names, status, labels: labels.length, alarms }));
"""
# What a type checker must find: a misspelt column, a logit as text, a problem that is none.
WRONG = (
    ("predicted;", "predicte;"),
    ("[[1, 2]]", '[["1", 2]]'),
    ("bad.error!.status", "bad.error!.code"),
)
TSC = "--strict --target es2022 --module nodenext --moduleResolution nodenext --skipLibCheck"


@pytest.mark.skipif(not TYPESCRIPT.exists(), reason="run `make build/openapi-typescript`")
def test_a_client_in_typescript(url, tmp_path):
    (tmp_path / "node_modules").symlink_to(TYPESCRIPT / "node_modules")
    (tmp_path / "package.json").write_text('{"type": "module"}')
    (tmp_path / "client.ts").write_text(CLIENT.replace("./tagger", "./tagger.js"))
    tools = tmp_path / "node_modules" / ".bin"
    run(tmp_path, tools / "openapi-typescript", "openapi.json", "--output", "tagger.d.ts")
    for number, (right, wrong) in enumerate(WRONG):
        assert right in CLIENT
        text = CLIENT.replace("./tagger", "./tagger.js").replace(right, wrong)
        (tmp_path / f"wrong{number}.ts").write_text(text)
    names = [f"wrong{number}.ts" for number in range(len(WRONG))]
    compiled = subprocess.run(
        [tools / "tsc", *TSC.split(), "client.ts", *names],
        cwd=tmp_path,
        capture_output=True,
        text=True,
    )
    assert {line.partition("(")[0] for line in compiled.stdout.splitlines()} == set(names)
    node = shutil.which("node")
    answer = json.loads(run(tmp_path, node, "client.js", url, TOKEN))
    assert answer["nan"].startswith("Logits hold NaN or infinity in 1 of 1 rows: 0 (")
    assert (answer["status"], answer["labels"], answer["alarms"]) == ([422, 409], 4, [])
    assert answer["names"] == [["cat"]]
