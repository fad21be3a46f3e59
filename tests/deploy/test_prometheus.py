"""Probes, rules and dashboard of deploy/, with a service and a Prometheus that run."""

import http.client
import json
import os
import re
import shutil
import subprocess
import time
import urllib.parse
from pathlib import Path

import numpy as np
import pytest

yaml = pytest.importorskip("yaml")
parser = pytest.importorskip("prometheus_client.parser")
for package in ("starlette", "uvicorn", "msgspec", "httpx"):
    pytest.importorskip(package)

pytestmark = pytest.mark.skipif(os.name == "nt", reason="signals of POSIX")

DEPLOY = Path(__file__).resolve().parents[2] / "deploy"
RULES = yaml.safe_load((DEPLOY / "prometheus/alerts.yml").read_text("utf-8"))["groups"][0]["rules"]
DASHBOARD = json.loads((DEPLOY / "grafana/dashboards/nescio.json").read_text("utf-8"))
PANELS = [
    (panel["title"], target["expr"]) for panel in DASHBOARD["panels"] for target in panel["targets"]
]
VARIABLES = [variable["definition"] for variable in DASHBOARD["templating"]["list"]]
TOKEN = "a-token-of-the-test"


def ask(port, path, method="GET", body=None, token=None):
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=60)
    headers = {"Content-Type": "application/json"}
    if token:
        headers["Authorization"] = f"Bearer {token}"
    try:
        connection.request(method, path, body, headers)
        answer = connection.getresponse()
        return answer.status, answer.read().decode()
    finally:
        connection.close()


def test_probes_and_metrics_exist(client, some_logits):
    """Probes need no token; each metric of the rules and the dashboard is exported."""
    service = client(token=TOKEN)
    deployment = yaml.safe_load((DEPLOY / "kubernetes/deployment.yaml").read_text("utf-8"))
    [container] = deployment["spec"]["template"]["spec"]["containers"]
    kinds = ("startup", "liveness", "readiness")
    paths = [container[f"{kind}Probe"]["httpGet"]["path"] for kind in kinds]
    paths += re.findall(r"'GET', '(.+?)'", (DEPLOY / "Dockerfile").read_text("utf-8"))
    assert paths == ["/healthz", "/healthz", "/readyz", "/healthz"]
    assert {service.get(path).status_code for path in paths} == {200}

    assert service.get("/metrics").status_code == 401
    headers = {"Authorization": f"Bearer {TOKEN}"}
    logits = some_logits(10).tolist()
    assert service.post("/v1/score", json={"logits": logits}, headers=headers).status_code == 200
    families = parser.text_string_to_metric_families(service.get("/metrics", headers=headers).text)
    exported = {sample.name for family in families for sample in family.samples}
    expressions = [expression for _, expression in PANELS]
    texts = [*(rule["expr"] for rule in RULES), *expressions, *VARIABLES]
    named = {name for text in texts for name in re.findall(r"(?<![\w:])nescio_\w+(?![\w:])", text)}
    assert len(named) > 10
    assert named <= exported
    # And the other way: the dashboard has every metric.
    shown = {name for text in expressions for name in re.findall(r"nescio_\w+", text)}
    parts = {name for name in exported if name.endswith(("_sum", "_count", "_created"))}
    assert exported - parts - shown == set()


def test_the_page_shows_what_the_service_answers(client, tmp_path, monkeypatch):
    pytest.importorskip("torch")
    page = (DEPLOY.parent / "docs" / "how-to" / "containers.md").read_text("utf-8")
    source = re.search(r"^```python\n(.*?)^```$", page, re.MULTILINE | re.DOTALL)[1]
    monkeypatch.chdir(tmp_path)
    models = tmp_path / "models"
    models.mkdir()  # as after an earlier try
    for name in ("tagger.nescio", "tagger.onnx"):
        (models / name).touch()
    exec(compile(source, "containers.md", "exec"), {"__name__": "__main__"})
    shown = json.loads(re.search(r"^```text\n(.*?)^```$", page, re.MULTILINE | re.DOTALL)[1])
    service = client(models / "tagger.nescio", model=models / "tagger.onnx")
    scored, predicted = (
        service.post(path, content=body, headers={"content-type": "application/json"}).json()
        for path, body in re.findall(r"(/v1/\w+) .* -d '(.*)'$", page, re.MULTILINE)
    )
    assert {name: pytest.approx(values) for name, values in shown.items()} == scored
    assert len(predicted["predicted"]) == len(predicted["in_distribution"]) == 1


@pytest.fixture
def service(served, tmp_path, some_logits):
    """A service with a token that has scored ordinary inputs."""
    (tmp_path / "token").write_text(TOKEN)
    result = served("--token-file", tmp_path / "token")
    send(result, some_logits(100))
    return result


def send(service, logits):
    body = json.dumps({"logits": np.asarray(logits).tolist()})
    assert ask(service.port, "/v1/score", "POST", body, TOKEN)[0] == 200


class Prometheus:
    """A Prometheus with the configuration of deploy/, which asks more often."""

    def __init__(self, program, folder, port):
        config = (DEPLOY / "prometheus/prometheus.yml").read_text("utf-8")
        for before, after in (
            ("nescio:8000", f"127.0.0.1:{port}"),
            ("/run/secrets/token", str(folder / "token")),
            ("interval: 15s", "interval: 250ms"),
        ):
            assert before in config
            config = config.replace(before, after)
        (folder / "prometheus.yml").write_text(config)
        shutil.copy(DEPLOY / "prometheus/alerts.yml", folder)
        self._log = folder / "prometheus.log"
        with self._log.open("w") as log:
            self.process = subprocess.Popen(
                [program, "--config.file=prometheus.yml", "--storage.tsdb.path=data",
                 "--web.listen-address=127.0.0.1:0"],
                stderr=log, stdout=log, cwd=folder,
            )  # fmt: skip

    def __enter__(self):
        try:
            self.port = int(self.eventually(self._listening)[1])
            # It listens before it has read its data and its rules.
            self.eventually(lambda: ask(self.port, "/-/ready")[0] == 200)
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_):
        self.process.kill()
        self.process.wait()

    def _listening(self):
        assert self.process.poll() is None, self._log.read_text()
        return re.search(r'"Listening on" address=127\.0\.0\.1:(\d+)', self._log.read_text())

    def eventually(self, condition, seconds=60):
        end = time.monotonic() + seconds
        while not (result := condition()):
            assert time.monotonic() < end, f"timeout: {self._log.read_text()}"
            time.sleep(0.05)
        return result

    def query(self, expression):
        """The results of an expression; an error if Prometheus does not understand it."""
        result = json.loads(
            ask(self.port, f"/api/v1/query?query={urllib.parse.quote(expression)}")[1]
        )
        assert result["status"] == "success", f"{expression}: {result}"
        return result["data"]["result"]


@pytest.fixture
def prometheus(service, tmp_path):
    program = shutil.which("prometheus") or pytest.skip("prometheus is not installed")
    with Prometheus(program, tmp_path, service.port) as result:
        yield result


def test_prometheus_draws_the_dashboard_and_tells_of_drift(service, prometheus, some_logits):
    prometheus.eventually(lambda: prometheus.query("count_over_time(nescio_samples_total[1m]) > 1"))
    assert prometheus.query('ALERTS{alertstate="firing"}') == []
    send(service, some_logits(2000, shift=-5))
    prometheus.eventually(
        lambda: prometheus.query('ALERTS{alertname="NescioDrift",alertstate="firing"}')
    )
    for title, expression in PANELS:
        for name, value in (("__rate_interval", "1m"), ("job", "nescio"), ("instance", ".*")):
            expression = expression.replace(f"${name}", value)
        assert "$" not in expression
        assert prometheus.query(expression), f"{title}: no data for {expression}"
    [share] = prometheus.query("job:nescio_flagged_share:increase1h")
    assert float(share["value"][1]) > 0.5
