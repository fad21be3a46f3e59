"""Do to the service what should not stop it, and print what happens: the fault table of the docs.

    python benchmarks/robustness/faults.py                  all faults, about a minute
    python benchmarks/robustness/faults.py "slow images"    one of them

During each fault, /healthz is asked again and again; the table has the longest time that it took,
and the most memory that the service had.
"""

from __future__ import annotations

import contextlib
import http.client
import io
import json
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

import nescio as ns
from malformed import JSON, SAFETENSORS, png
from nescio._io.tensors import encode_tensors
from service import Server, detector_file, write_model


class Service(Server):
    """A server, and a thread that asks it for /healthz."""

    def __init__(self, file: Path, *options: object, **how: Any) -> None:
        super().__init__(file, *options, "--drain-seconds", "0", **how)
        self.longest = 0.0
        self.memory = 0.0
        self._watching = True
        self._watch = threading.Thread(target=self._ask_for_health, daemon=True)

    def ask(self, method: str, path: str, body: bytes = b"", kind: str = "") -> int:
        """Return the status of an answer, or 0 if there was none."""
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=120)
        try:
            connection.request(method, path, body, {"Content-Type": kind} if kind else {})
            answer = connection.getresponse()
            while answer.read(1 << 20):
                pass
            return answer.status
        except (OSError, http.client.HTTPException):
            return 0
        finally:
            connection.close()

    def text(self, path: str) -> str:
        """Return the text of an answer."""
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=120)
        connection.request("GET", path)
        return connection.getresponse().read().decode()

    def watch(self) -> None:
        """Begin to ask for /healthz."""
        self._watch.start()

    def _ask_for_health(self) -> None:
        while self._watching:
            begun = time.perf_counter()
            if self.ask("GET", "/healthz") == 200:
                self.longest = max(self.longest, time.perf_counter() - begun)
            with contextlib.suppress(OSError, IndexError):
                self.memory = max(self.memory, self.resident())
            time.sleep(0.01)

    def ended(self) -> str:
        """End the service with SIGTERM, unless it has ended; return how it ended."""
        self._watching = False
        self._watch.join()
        early = self.process.poll()
        if early is not None:
            return f"exit code {early}"
        self.process.send_signal(signal.SIGTERM)
        try:
            return f"exit code {self.process.wait(90)}"
        except subprocess.TimeoutExpired:
            self.process.kill()
            return "DID NOT STOP"


FAULTS: dict[str, Callable[[Path], tuple[Service, Callable[[Service], str]]]] = {}
Fault = tuple[Service, Callable[[Service], str]]


def fault(name: str) -> Callable[[Callable[[Path], Fault]], Callable[[Path], Fault]]:
    """Add a function that starts a service, and returns it with what to do to it."""

    def add(make: Callable[[Path], Fault]) -> Callable[[Path], Fault]:
        FAULTS[name] = make
        return make

    return add


def plain(folder: Path, *options: object, n_labels: int = 80, **how: Any) -> Service:
    """Return a service of joint energy."""
    return Service(detector_file(folder, n_labels), *options, **how)


def several(service: Service, n: int, *request: object) -> str:
    """Send a request several times at once; return the statuses."""
    result: list[int] = []
    together([lambda: result.append(service.ask(*request))] * n)  # type: ignore[arg-type]
    return ", ".join(f"{count} x {status or 'closed'}" for status, count in Counter(result).items())


def together(works: Sequence[Callable[[], object]]) -> None:
    """Do several things at once."""
    threads = [threading.Thread(target=work) for work in works]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


@fault("reload beside cp (12 MB)")
def _(folder: Path) -> Fault:
    rng = np.random.default_rng(0)

    def outputs(n: int) -> ns.Outputs:
        features = rng.normal(size=(n, 256)).astype(np.float32)
        return ns.Outputs(rng.normal(size=(n, 4)).astype(np.float32), features=features)

    file, other = folder / "knn.nescio", folder / "other.nescio"
    ns.NearestNeighbours(k=3).fit(outputs(12_000)).calibrate(outputs(500)).save(file)
    shutil.copy(file, other)

    def act(service: Service) -> str:
        going = True

        def copy() -> None:
            while going:
                subprocess.run(["cp", other, file], check=True)

        copying = threading.Thread(target=copy)
        copying.start()
        result = Counter(service.ask("POST", "/v1/reload") for _ in range(15))
        going = False
        copying.join()
        return ", ".join(f"{count} x {status or 'closed'}" for status, count in result.items())

    return Service(file), act


def many_scans(side: int, n_scans: int) -> bytes:
    """Return a JPEG with one scan many times."""
    from PIL import Image

    stream = io.BytesIO()
    Image.new("RGB", (side, side)).save(stream, "JPEG", progressive=True)
    whole = stream.getvalue()
    return whole[:-2] + whole[whole.rfind(b"\xff\xda") : -2] * n_scans + whole[-2:]


def image_service(folder: Path) -> Service:
    return plain(folder, "--model", write_model(folder / "model.onnx"))


@fault("slow images (900 scans, 36 megapixels)")
def _(folder: Path) -> Fault:
    request = ("POST", "/v1/predict", many_scans(6_000, 900), "image/jpeg")
    return image_service(folder), lambda service: several(service, 2, *request)


@fault("a PNG of 49,000,000 x 1")
def _(folder: Path) -> Fault:
    body = png(49_000_000, 1, bytes(3 * 49_000_000 + 1))
    return image_service(folder), lambda service: several(
        service, 2, "POST", "/v1/predict", body, "image/png"
    )


@fault("predict: 100,000 rows of 1,000 labels")
def _(folder: Path) -> Fault:
    import onnx
    from onnx import TensorProto, helper, numpy_helper

    table = np.random.default_rng(0).normal(-4, 3, (256, 1_000)).astype(np.float32)
    graph = helper.make_graph(
        [helper.make_node("Cast", ["x"], ["at"], to=TensorProto.INT64),
         helper.make_node("Gather", ["table", "at"], ["logits"])],
        "wide",
        [helper.make_tensor_value_info("x", TensorProto.UINT8, ["n"])],
        [helper.make_tensor_value_info("logits", TensorProto.FLOAT, ["n", 1_000])],
        [numpy_helper.from_array(table, "table")],
    )  # fmt: skip
    opset = [helper.make_opsetid("", 17)]
    onnx.save(helper.make_model(graph, opset_imports=opset, ir_version=8), folder / "wide.onnx")

    def act(service: Service) -> str:
        result = []
        for n_rows in (100_000, 1_000):
            body = encode_tensors({"x": np.zeros(n_rows, np.uint8)}, {})
            status = service.ask("POST", "/v1/predict", body, SAFETENSORS)
            result.append(f"{n_rows:,} rows: {status}")
        return "; ".join(result)

    return plain(folder, "--model", folder / "wide.onnx", n_labels=1_000), act


def text_service(folder: Path, **changes: Any) -> Service:
    """Return a service with a small network over token ids, and a tokenizer without [UNK]."""
    import onnx
    from onnx import TensorProto, helper, numpy_helper

    rng = np.random.default_rng(0)
    sizes = {"table": (99, 64), "wide": (64, 512), "narrow": (512, 64), "last": (64, 4)}
    nodes = [
        helper.make_node("Gather", ["table", "input_ids"], ["tokens"]),
        helper.make_node("MatMul", ["tokens", "wide"], ["hidden"]),
        helper.make_node("Relu", ["hidden"], ["active"]),
        helper.make_node("MatMul", ["active", "narrow"], ["mixed"]),
        helper.make_node("ReduceMean", ["mixed"], ["mean"], axes=[1], keepdims=0),
        helper.make_node("MatMul", ["mean", "last"], ["logits"]),
    ]
    graph = helper.make_graph(
        nodes,
        "texts",
        [helper.make_tensor_value_info("input_ids", TensorProto.INT64, ["n", "length"])],
        [helper.make_tensor_value_info("logits", TensorProto.FLOAT, ["n", 4])],
        [
            numpy_helper.from_array(rng.normal(size=size).astype(np.float32), name)
            for name, size in sizes.items()
        ],
    )
    opset = [helper.make_opsetid("", 17)]
    onnx.save(helper.make_model(graph, opset_imports=opset, ir_version=8), folder / "texts.onnx")
    words = {"[PAD]": 0} | {f"w{number}": number for number in range(1, 99)}
    tokenizer = {
        "version": "1.0",
        "truncation": {"max_length": 64, "strategy": "LongestFirst", "stride": 0,
                       "direction": "Right"},
        "pre_tokenizer": {"type": "Whitespace"},
        "model": {"type": "WordLevel", "vocab": words, "unk_token": "[UNK]"},
    }  # fmt: skip
    (folder / "tokenizer.json").write_text(json.dumps(tokenizer | changes))
    files = ("--model", folder / "texts.onnx", "--tokenizer", folder / "tokenizer.json")
    return plain(folder, *files, n_labels=4)


def ids_of(n_rows: int) -> bytes:
    return encode_tensors({"input_ids": np.ones((n_rows, 128), np.uint8)}, {})


@fault("10,240,000 token ids in 10 MB")
def _(folder: Path) -> Fault:
    request = ("POST", "/v1/predict", ids_of(80_000), SAFETENSORS)
    return text_service(folder), lambda service: several(service, 3, *request)


@fault("3 x 1,920,000 token ids, 1 beside them")
def _(folder: Path) -> Fault:
    def act(service: Service) -> str:
        answers: list[str] = []
        request = ("POST", "/v1/predict", ids_of(15_000), SAFETENSORS)
        working = threading.Thread(target=lambda: answers.append(several(service, 3, *request)))
        working.start()
        time.sleep(0.3)
        longest = 0.0
        while working.is_alive():
            longest = max(longest, seconds_for_one(service))
        return f"{answers[0]}; 1 id: {longest:.2f} s"

    return text_service(folder), act


@fault("1,920,000 token ids, the client leaves")
def _(folder: Path) -> Fault:
    def act(service: Service) -> str:
        body = ids_of(15_000)
        head = f"POST /v1/predict HTTP/1.1\r\nHost: localhost\r\nContent-Type: {SAFETENSORS}\r\n"
        with socket.create_connection(("127.0.0.1", service.port)) as connection:
            connection.sendall(f"{head}Content-Length: {len(body)}\r\n\r\n".encode() + body)
            time.sleep(0.5)
        waited = seconds_for_one(service)
        left = service.text("/metrics").count('path="/v1/predict",status="499"} 1.0')
        return f"{left} x 499; 1 id afterwards: {waited:.2f} s"

    return text_service(folder), act


def seconds_for_one(service: Service) -> float:
    """Return how long a request of one text takes."""
    begun = time.perf_counter()
    if service.ask("POST", "/v1/predict", b'{"texts": ["w1"]}', JSON) != 200:
        raise SystemExit("a good request was not answered")
    return time.perf_counter() - begun


@fault("an unknown word, no [UNK]")
def _(folder: Path) -> Fault:
    request = ("POST", "/v1/predict", b'{"texts": ["w1 unheard"]}', JSON)
    return text_service(folder), lambda service: several(service, 20, *request)


@fault("a tokenizer that panics in Rust")
def _(folder: Path) -> Fault:
    pattern = {"type": "Replace", "pattern": {"Regex": "(a|aa)+$"}, "content": "x"}
    body = json.dumps({"texts": ["a" * 60 + "b"]}).encode()
    request = ("POST", "/v1/predict", body, JSON)
    service = text_service(folder, normalizer=pattern)
    return service, lambda service: several(service, 20, *request)


@fault("20 clients of 2,000,000 scores, 2 s")
def _(folder: Path) -> Fault:
    logits = np.random.default_rng(0).normal(-4, 3, (2_000_000, 6)).astype(np.float32)
    ns.JointEnergy().calibrate(logits).save(folder / "large.nescio")

    def act(service: Service) -> str:
        result: Counter[int] = Counter()
        end = time.monotonic() + 2

        def again() -> None:
            while time.monotonic() < end:
                for path in ("/v1/detector", "/v1/traffic?charts=800"):
                    result[service.ask("GET", path)] += 1

        together([again] * 20)
        return ", ".join(f"{count:,} x {status or 'closed'}" for status, count in result.items())

    return Service(folder / "large.nescio"), act


def one_body(name: str, kind: str, make: Callable[[], bytes]) -> None:
    """Add a fault that is one body, sent twice at once."""

    @fault(name)
    def _(folder: Path) -> Fault:
        request = ("POST", "/v1/score", make(), kind)
        return plain(folder), lambda service: several(service, 2, *request)


one_body(
    "31,000,000 ids (31 MB)",
    SAFETENSORS,
    lambda: encode_tensors(
        {
            "logits": np.ones((1, 80), np.float32),
            "ids.utf8": np.zeros(0, np.uint8),
            "ids.ends": np.zeros(31_000_000, np.uint8),
        },
        {},
    ),
)
one_body("JSON: 2,600,000 empty rows", JSON, lambda: b'{"logits":[' + b"[]," * 2_600_000 + b"[]]}")
one_body("JSON: 3,900,000 numbers", JSON, lambda: b'{"logits":[[' + b"0," * 3_900_000 + b"0]]}")


def flood(service: Service, first: bytes, again: bytes, most: float = 2e7) -> str:
    """Send bytes on one connection until it is closed."""
    sent = 0
    with socket.create_connection(("127.0.0.1", service.port), timeout=30) as connection:
        try:
            connection.sendall(first)
            while sent < most:
                connection.sendall(again)
                sent += len(again)
        except OSError:
            return "closed"
    return f"{sent / 1e6:.0f} MB TAKEN"


@fault("a header without end")
def _(folder: Path) -> Fault:
    head = b"GET / HTTP/1.1\r\nHost: localhost\r\nX: "
    return plain(folder), lambda service: flood(service, head, b"a" * 100_000)


@fault("40 trailers without end, for 5 s")
def _(folder: Path) -> Fault:
    head = b"GET /healthz HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n\r\n0\r\nX: "

    def act(service: Service) -> str:
        result: Counter[str] = Counter()
        end = time.monotonic() + 5

        def again() -> None:
            while time.monotonic() < end:
                result[flood(service, head, b"a" * 100_000)] += 1

        together([again] * 40)
        return ", ".join(f"{count:,} x {what}" for what, count in result.items())

    return plain(folder), act


@fault("pipelined requests, answers not read")
def _(folder: Path) -> Fault:
    request = b"GET /openapi.json HTTP/1.1\r\nHost: localhost\r\n\r\n"
    return plain(folder), lambda service: flood(service, b"", request * 1_000)


@fault("250 idle connections, 200 file descriptors")
def _(folder: Path) -> Fault:
    def act(service: Service) -> str:
        with contextlib.ExitStack() as held:
            for _ in range(250):
                with contextlib.suppress(OSError):
                    held.enter_context(socket.create_connection(("127.0.0.1", service.port)))
            return several(service, 2, "GET", "/v1/detector")

    return plain(folder, shell="ulimit -n 200"), act


@fault("a log that nobody reads, 800 requests")
def _(folder: Path) -> Fault:
    body = json.dumps({"logits": [[0.0] * 80]}).encode()

    def act(service: Service) -> str:
        result: Counter[int] = Counter()
        for _ in range(800):
            result[service.ask("POST", "/v1/score", body, JSON)] += 1
            if result[0]:
                break
        return ", ".join(f"{count} x {status or 'closed'}" for status, count in result.items())

    return plain(folder, read_log=False), act


@fault("a second SIGTERM during a slow image")
def _(folder: Path) -> Fault:
    request = ("POST", "/v1/predict", many_scans(6_000, 900), "image/jpeg")

    def act(service: Service) -> str:
        asking = threading.Thread(target=lambda: service.ask(*request))
        asking.start()
        time.sleep(1)
        for _ in range(2):
            service.process.send_signal(signal.SIGTERM)
            time.sleep(0.5)
        begun = time.perf_counter()
        with contextlib.suppress(subprocess.TimeoutExpired):
            service.process.wait(60)
        asking.join()
        return f"ended {time.perf_counter() - begun:.1f} s later"

    return image_service(folder), act


def main() -> None:
    """Print one line per fault."""
    chosen = sys.argv[1:] or list(FAULTS)
    names = [name for name in FAULTS if any(name.startswith(start) for start in chosen)]
    print(f"{'fault':<44}{'answers':<39}{'health':>8}{'memory':>9}  end")
    for name in names:
        with tempfile.TemporaryDirectory() as folder:
            service, act = FAULTS[name](Path(folder))
            service.watch()
            time.sleep(0.2)
            answers = act(service)
            end = service.ended()
        health, memory = f"{service.longest:.2f} s", f"{service.memory:.0f} MB"
        print(f"{name:<44}{answers:<39}{health:>8}{memory:>9}  {end}", flush=True)


if __name__ == "__main__":
    main()
