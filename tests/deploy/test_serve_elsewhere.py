"""docs/how-to/serve-elsewhere.md and deploy/: what is served, and with which files."""

import contextlib
import functools
import http.server
import json
import re
import shutil
import socket
import subprocess
import sys
import threading
import time
import urllib.error
import urllib.request
from pathlib import Path

import numpy as np
import pytest

import nescio as ns
from fixtures.export import some_inputs

torch = pytest.importorskip("torch")
yaml = pytest.importorskip("yaml")
image = pytest.importorskip("PIL.Image")

ROOT = Path(__file__).resolve().parents[2]
PAGE = (ROOT / "docs" / "how-to" / "serve-elsewhere.md").read_text("utf-8")
CONFIG = ROOT / "deploy" / "triton" / "model_repository" / "tagger" / "config.pbtxt"
SERVICE = ROOT / "deploy" / "kserve" / "inferenceservice.yaml"
RUNTIME = ROOT / "build" / "onnxruntime-web"  # `make build/onnxruntime-web`


def block(language, text):
    """The fenced block of the page that has this text."""
    blocks = re.findall(rf"^```{language}\n(.*?)^```$", PAGE, re.MULTILINE | re.DOTALL)
    [shown] = [block for block in blocks if text in block]
    return shown


# --- Triton and KServe ----------------------------------------------------------------------------


def test_the_page_names_the_files_of_triton_and_kserve():
    for file in (CONFIG, SERVICE):
        assert file.relative_to(ROOT).as_posix() in PAGE


def test_tritons_configuration_has_the_tensors_of_an_exported_file(fused):
    session = pytest.importorskip("onnxruntime").InferenceSession(fused.path)
    types = {"float": "FP32", "double": "FP64", "bool": "BOOL"}
    expected = [
        (kind, node.name, types[node.type[len("tensor(") : -1]], len(node.shape) == 1)
        for kind, nodes in (("input", session.get_inputs()), ("output", session.get_outputs()))
        for node in nodes
    ]
    tensor = r'^(input|output) {\n  name: "(\w+)"\n  data_type: TYPE_(\w+)\n.*\n(  reshape)?'
    tensors = re.findall(tensor, CONFIG.read_text("utf-8"), re.MULTILINE)
    # A tensor of Triton has at least one dimension besides the batch.
    assert [(*names, bool(reshaped)) for *names, reshaped in tensors] == expected


def test_the_inference_service_serves_the_model_repository():
    [service] = yaml.safe_load_all(SERVICE.read_text("utf-8"))
    assert service["apiVersion"] == "serving.kserve.io/v1beta1"
    assert service["kind"] == "InferenceService"
    model = service["spec"]["predictor"]["model"]
    # What KServe's ModelSpec and its resources know.
    assert set(model) <= {"modelFormat", "runtime", "protocolVersion", "storageUri", "resources"}
    assert model["modelFormat"] == {"name": "onnx"}
    assert (model["runtime"], model["protocolVersion"]) == ("kserve-tritonserver", "v2")
    assert model["storageUri"].endswith("/model_repository")
    for amounts in model["resources"].values():
        assert set(amounts) == {"cpu", "memory"}
        assert all(isinstance(amount, str) for amount in amounts.values())
    # The name of the model in the address is that of its folder.
    assert f"/v2/models/{service['metadata']['name']}/infer" in PAGE
    assert (ROOT / "deploy" / "triton" / "model_repository" / service["metadata"]["name"]).is_dir()


# --- BentoML --------------------------------------------------------------------------------------


def free_port():
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return listener.getsockname()[1]


def post(url, body, process):
    """Ask a service until it is there."""
    request = urllib.request.Request(
        url, json.dumps(body).encode(), {"Content-Type": "application/json"}
    )
    end = time.monotonic() + 120
    while time.monotonic() < end:
        assert process.poll() is None, "the service has ended"
        try:
            with urllib.request.urlopen(request, timeout=30) as answer:
                return json.load(answer)
        except (urllib.error.URLError, ConnectionError, TimeoutError) as error:
            if getattr(error, "code", 503) != 503:
                raise
            time.sleep(0.1)
    raise TimeoutError(f"{url} does not answer")


def stop(process):
    """End a service; on Windows, or if it takes too long, its workers stay, and are killed."""
    import psutil  # BentoML needs it

    family = []
    with contextlib.suppress(psutil.NoSuchProcess):
        family = psutil.Process(process.pid).children(recursive=True)
    process.terminate()
    with contextlib.suppress(subprocess.TimeoutExpired):
        process.wait(30)
    process.kill()
    for child in family:
        with contextlib.suppress(psutil.NoSuchProcess):
            child.kill()


@pytest.mark.slow
def test_bentoml_serves_the_file(fused, tmp_path, monkeypatch):
    pytest.importorskip("bentoml")
    monkeypatch.setenv("BENTOML_DO_NOT_TRACK", "True")
    monkeypatch.setenv("BENTOML_HOME", str(tmp_path / "home"))
    (tmp_path / "service.py").write_text(block("py", "import bentoml"))
    shutil.copy(fused.path, tmp_path / "tagger.onnx")
    port = free_port()
    command = f"-m bentoml serve service:Tagger --host 127.0.0.1 --port {port}"
    rows = some_inputs(20, seed=3)
    with subprocess.Popen([sys.executable, *command.split()], cwd=tmp_path) as process:
        try:
            url = f"http://127.0.0.1:{port}/predict"
            answer = post(url, {"inputs": rows.tolist()}, process)
        finally:
            stop(process)
    expected = fused.wrapped(rows)
    assert [tuple(names) for names in answer["predicted"]] == expected.label_lists()
    np.testing.assert_allclose(answer["probs"], expected.probs, atol=1e-5)
    np.testing.assert_allclose(answer["score"], expected.assessment.scores, rtol=1e-5)
    np.testing.assert_allclose(answer["p_value"], expected.assessment.p_values, atol=0.01)
    assert answer["in_distribution"] == expected.in_distribution.tolist()


# --- the browser ----------------------------------------------------------------------------------


class Handler(http.server.SimpleHTTPRequestHandler):
    def log_message(self, *arguments):
        pass


def made_as_the_page_says(here, model):
    """Run the commands of the page that need no network; gives the folder that they make."""
    for name in ("deploy", "src"):
        (here / name).symlink_to(ROOT / name)
    shutil.copy(model, here / "tagger.onnx")
    shown = block("sh", "onnxruntime-web").splitlines()
    commands = [line for line in shown if line.startswith(("mkdir ", "cp "))]
    subprocess.run(["sh", "-ec", "\n".join(commands)], cwd=here, check=True)
    [served] = re.findall(r"--directory (\S+)", shown[-1])
    return here / served


@pytest.fixture(scope="module")
def site(tmp_path_factory, fused):
    """The address of a folder made as docs/how-to/serve-elsewhere.md says, and the folder."""
    if not RUNTIME.is_dir():
        pytest.skip("no build/onnxruntime-web: run `make build/onnxruntime-web`, which needs npm")
    folder = made_as_the_page_says(tmp_path_factory.mktemp("browser"), fused.path)
    for file in RUNTIME.iterdir():
        shutil.copy(file, folder)
    (folder / "model.onnx").rename(folder / "numbers.onnx")
    handler = functools.partial(Handler, directory=folder)
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield f"http://127.0.0.1:{server.server_address[1]}/index.html", folder
        server.shutdown()
        thread.join()


@pytest.mark.skipif(sys.platform == "win32", reason="commands of a POSIX shell")
def test_the_page_copies_all_that_its_page_loads(tmp_path):
    (tmp_path / "model").touch()
    folder = made_as_the_page_says(tmp_path, tmp_path / "model")
    assert folder != tmp_path / "site"  # make docs deletes it
    page = (folder / "index.html").read_text("utf-8")
    named = re.findall(r'(?:src|href)="([\w.]+)"', page)
    assert {"palette.css", "page.css", "page.js"} <= set(named)
    files = {file.name for file in folder.iterdir()}
    assert {*named, "model.js", "model.onnx"} <= files


def test_the_page_names_the_files_that_are_tested():
    makefile = (ROOT / "Makefile").read_text("utf-8")
    [version] = re.findall(r"^ORT_WEB := (.+)$", makefile, re.MULTILINE)
    [files] = re.findall(r"^ORT_FILES := (.+)$", makefile, re.MULTILINE)
    shown = block("sh", "onnxruntime-web")
    assert f"npm pack onnxruntime-web@{version}\n" in shown
    assert shown.split("--strip-components 2 ")[1].splitlines()[0].split() == [
        f"package/dist/{file}" for file in files.split()
    ]
    assert files.split()[0] in (ROOT / "deploy" / "browser" / "model.js").read_text("utf-8")


def answer_of(browser):
    browser.until("document.getElementById('result').dataset.found")
    answer = json.loads(browser.run("document.getElementById('result').dataset.found"))
    browser.run("delete document.getElementById('result').dataset.found")
    return answer


def agrees(answer, prediction) -> bool:
    """Whether the browser says what Python says, but for rounding; gives the verdict."""
    [row] = list(prediction)
    np.testing.assert_allclose(answer["probs"], row.probs, atol=1e-4)
    np.testing.assert_allclose(answer["score"], row.verdict.score, rtol=5e-4)
    np.testing.assert_allclose(answer["pValue"], row.verdict.p_value, atol=0.01)
    assert answer["inside"] == row.verdict.in_distribution
    return answer["inside"]


def test_the_page_judges_numbers(site, browser, fused):
    address, _ = site
    browser.open(f"{address}?model=numbers.onnx")
    browser.until("document.body.dataset.ready")
    verdicts = fused.wrapped(some_inputs(50, seed=4)).in_distribution
    rows = some_inputs(50, seed=4)[[np.argmax(verdicts), np.argmin(verdicts)]]
    send = "document.querySelector('button').click()"
    seen = []
    for row in rows:
        text = json.dumps(row.tolist())
        browser.run(f"document.getElementById('numbers').value = {text!r}; {send}")
        seen.append(agrees(answer_of(browser), fused.wrapped(row[None])))
    assert seen == [True, False]
    assert browser.run("document.querySelector('.word').textContent") == "✗ OUT: do not trust"
    assert browser.run("document.querySelectorAll('.bars li').length") == 6
    browser.run(f"document.getElementById('numbers').value = '1 2 3'; {send}")
    browser.until("document.querySelector('.trouble')")
    said = browser.run("document.querySelector('.trouble').textContent")
    assert said == "This did not work: the model takes 5 numbers, not 3."
    assert browser.noise == []
    assert {url.partition("//")[2].partition("/")[0] for url in browser.requested} == {
        address.partition("//")[2].partition("/")[0]
    }


def test_the_page_judges_images(site, browser):
    address, folder = site
    torch.manual_seed(0)
    model = torch.nn.Sequential(
        *(torch.nn.Conv2d(3, 8, 5, 3), torch.nn.ReLU(), torch.nn.AdaptiveAvgPool2d(1)),
        *(torch.nn.Flatten(), torch.nn.Linear(8, 4)),
    )
    torch.nn.init.normal_(model[-1].weight, std=8)
    preprocessing = ns.Preprocessing(24)
    rng = np.random.default_rng(0)
    wrapped = ns.wrap(
        model, label_names=["cat", "dog", "cow", "<b>hen</b>"], preprocessing=preprocessing
    )
    colours = rng.integers(0, 256, (300, 3, 1, 1)) + rng.integers(-40, 40, (300, 3, 24, 24))
    colours = colours.clip(0, 255).astype(np.uint8)
    wrapped = wrapped.calibrate(colours, tpr=0.8)
    usual = colours[wrapped(colours).in_distribution.argmax()]
    ns.export_onnx(wrapped, folder / "model.onnx")
    browser.open(address)
    browser.until("document.body.dataset.ready")
    seen = set()
    sizes = {"large": (61, 50), "small": (9, 9), "flat": (24, 24), "usual": (24, 24)}
    for name, size in sizes.items():
        pixels = rng.integers(0, 256, (*size[::-1], 3)).astype(np.uint8)
        if name == "flat":
            pixels[:] = 255, 40, 0
        if name == "usual":
            pixels = usual.transpose(1, 2, 0).copy()
        picture = image.fromarray(pixels)
        picture.save(folder / f"{name}.png")
        browser.run(
            f"""fetch("{name}.png").then((answer) => answer.blob()).then((blob) => {{
                const files = new DataTransfer();
                files.items.add(new File([blob], "{name}.png"));
                const input = document.getElementById("file");
                input.files = files.files;
                input.dispatchEvent(new Event("change"));
            }}); 0"""
        )
        expected = wrapped(preprocessing.pixels(picture)[None])
        seen.add(agrees(answer_of(browser), expected))
        assert browser.run("document.querySelector('.which').textContent") == f"{name}.png"
    assert seen == {True, False}
    assert "<b>hen</b>" in browser.run("document.querySelector('.bars').innerText")
    assert browser.noise == []


def test_a_model_that_is_not_there(site, browser):
    browser.open(f"{site[0]}?model=other.onnx")
    browser.until("document.querySelector('.trouble')")
    said = browser.run("document.querySelector('.trouble').textContent")
    assert said.startswith("This did not work: cannot load other.onnx: 404")
