"""Measure the service under load and with malformed input, on this machine.

    python benchmarks/robustness/service.py                all parts, about five minutes
    python benchmarks/robustness/service.py throughput     one part (clients, stop, malformed, soak)
    python benchmarks/robustness/service.py --quick        all parts, with smaller numbers

The server and its clients are separate processes that share the processors of the machine, so the
results include both. Scoring in process is timed in turn with the service.
"""

from __future__ import annotations

import argparse
import collections
import contextlib
import json
import multiprocessing
import os
import re
import selectors
import signal
import socket
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

import nescio as ns
from malformed import JSON, SAFETENSORS, Malformed, malformed
from nescio._io.tensors import encode_tensors

N_ROWS, N_LABELS = 1_000, 80
IN_PROCESS = "in process: detector.assess(logits)"


def some_logits(n_rows: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).normal(-4, 3, (n_rows, N_LABELS)).astype(np.float32)


# --- the server ---------------------------------------------------------------------------------


class Server:
    """`nescio serve` in another process, with its log."""

    def __init__(
        self, file: Path, *options: object, shell: str = "", read_log: bool = True
    ) -> None:
        command = [sys.executable, "-m", "nescio", "serve", file, "--port", "0", *options]
        words = ["sh", "-c", f'{shell}; exec "$@"', "sh"] if shell else []
        words += map(str, command)
        self.process = subprocess.Popen(words, stderr=subprocess.PIPE, text=True)
        self.log: list[dict[str, Any]] = []
        assert self.process.stderr is not None
        self._lines = map(json.loads, self.process.stderr)
        first = next(line for line in self._lines if line["event"] == "serving")
        self.port = int(first["url"].rpartition(":")[2])
        self._reader = threading.Thread(target=lambda: self.log.extend(self._lines), daemon=True)
        if read_log:
            self._reader.start()

    def resident(self) -> float:
        """Return its memory in megabytes."""
        pages = int(Path(f"/proc/{self.process.pid}/statm").read_text().split()[1])
        return pages * os.sysconf("SC_PAGE_SIZE") / 1e6

    def counts(self) -> tuple[int, int]:
        """Return its threads and its open files."""
        folder = Path(f"/proc/{self.process.pid}")
        return len(list(folder.glob("task/*"))), len(list(folder.glob("fd/*")))

    def processor_seconds(self) -> float:
        """Return the processor time that it has used."""
        fields = Path(f"/proc/{self.process.pid}/stat").read_text().rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")

    def stop(self) -> dict[str, Any]:
        """Stop it and return the last line of its log."""
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGTERM)
        self.process.wait(90)
        self._reader.join()
        return next((line for line in reversed(self.log) if line["event"] == "stopped"), {})


@contextlib.contextmanager
def serving(*options: str, with_a_model: bool = False) -> Iterator[Server]:
    with tempfile.TemporaryDirectory() as folder:
        model = ("--model", write_model(Path(folder) / "model.onnx")) if with_a_model else ()
        server = Server(detector_file(Path(folder)), "--log-level", "warning", *model, *options)
        try:
            yield server
        finally:
            server.stop()


def detector_file(folder: Path, n_labels: int = N_LABELS) -> Path:
    """Write a detector: joint energy."""
    logits = np.random.default_rng(1).normal(-4, 3, (5_000, n_labels)).astype(np.float32)
    ns.JointEnergy().calibrate(logits).save(folder / "tagger.nescio")
    return folder / "tagger.nescio"


def write_model(path: Path) -> str:
    """Write a graph whose logits are mixtures of the mean colours of an image."""
    import onnx
    from onnx import TensorProto, helper, numpy_helper

    mix = np.random.default_rng(0).normal(size=(3, N_LABELS)).astype(np.float32)
    graph = helper.make_graph(
        [
            helper.make_node("ReduceMean", ["image"], ["mean"], axes=[2, 3], keepdims=0),
            helper.make_node("MatMul", ["mean", "mix"], ["logits"]),
        ],
        "tiny",
        [helper.make_tensor_value_info("image", TensorProto.FLOAT, ["n", 3, 32, 32])],
        [helper.make_tensor_value_info("logits", TensorProto.FLOAT, ["n", N_LABELS])],
        [numpy_helper.from_array(mix, "mix")],
    )
    opset = [helper.make_opsetid("", 17)]
    onnx.save(helper.make_model(graph, opset_imports=opset, ir_version=8), path)
    return str(path)


# --- clients: as fast as Python allows, since they share the processors with the server ---------


def plain_request(method: str, path: str, kind: str = "", body: bytes = b"", **more: str) -> bytes:
    """Return the bytes of a request."""
    lines = [f"{method} {path} HTTP/1.1", "Host: 127.0.0.1", f"Content-Length: {len(body)}"]
    lines += [f"Content-Type: {kind}"] if kind else []
    lines += [f"{name}: {value}" for name, value in more.items()]
    return "\r\n".join([*lines, "", ""]).encode() + body


class Load(NamedTuple):
    """The answers that the clients received."""

    codes: collections.Counter[int]
    sent: int
    lost: int  # requests with half an answer, or with none
    refused: int  # requests whose connection was closed, or not opened, before they were read
    latencies: list[float]
    seconds: float


class _Connection:
    def __init__(self, port: int) -> None:
        self.socket = socket.create_connection(("127.0.0.1", port))
        self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.started = 0.0

    def send(self, request: bytes) -> None:
        self.started = time.perf_counter()
        self.socket.sendall(request)

    def answer(self, buffer: memoryview) -> tuple[int, bool] | None:
        """Return the status and whether the server closes; None if it closed without an answer."""
        size = self.socket.recv_into(buffer)
        if not size:
            return None
        while (end := bytes(buffer[:size]).find(b"\r\n\r\n")) < 0:
            got = self.socket.recv_into(buffer[size:])
            if not got:
                raise ConnectionError("half an answer")
            size += got
        head = bytes(buffer[:end]).lower()
        result = re.search(rb"content-length: (\d+)", head)
        length = end + 4 + (int(result[1]) if result else 0)
        while size < length:
            got = self.socket.recv_into(buffer[size % len(buffer) :])
            if not got:
                raise ConnectionError("half an answer")
            size += got
        return int(head[9:12]), b"connection: close" in head


def run_clients(
    port: int,
    requests: Sequence[bytes],
    n_clients: int,
    *,
    seconds: float = 60.0,
    n_requests: int | None = None,
) -> Load:
    """Let each client send requests, for a time or for a number of requests."""
    buffer = memoryview(bytearray(1 << 22))
    codes: collections.Counter[int] = collections.Counter()
    latencies: list[float] = []
    lost = refused = sent = 0
    turn = 0
    begun = time.perf_counter()
    with selectors.DefaultSelector() as waiting:

        def ask(connection: _Connection) -> None:
            nonlocal sent, turn, refused
            over = time.perf_counter() - begun >= seconds
            if over or (n_requests is not None and sent >= n_requests):
                connection.socket.close()
                return
            request = requests[turn % len(requests)]
            turn += 1
            sent += 1
            try:
                connection.send(request)
            except OSError:
                refused += 1
                connection.socket.close()
                return
            waiting.register(connection.socket, selectors.EVENT_READ, connection)

        def connect() -> None:
            nonlocal refused
            try:
                ask(_Connection(port))
            except OSError:
                refused += 1

        for _ in range(n_clients):
            connect()
        while waiting.get_map():
            for key, _ in waiting.select(60):
                connection: _Connection = key.data
                waiting.unregister(connection.socket)
                try:
                    result = connection.answer(buffer)
                except ConnectionResetError:
                    result = None
                except OSError:
                    lost += 1
                    connection.socket.close()
                    continue
                if result is None:
                    refused += 1
                    connection.socket.close()
                    continue
                latencies.append(time.perf_counter() - connection.started)
                codes[result[0]] += 1
                if result[1]:
                    connection.socket.close()
                    connect()
                else:
                    ask(connection)
    return Load(codes, sent, lost, refused, latencies, time.perf_counter() - begun)


class Clients:
    """Clients in a separate process."""

    def __init__(self) -> None:
        context = multiprocessing.get_context("fork")
        self._ours, theirs = context.Pipe()
        self._process = context.Process(target=_obey, args=(theirs,), daemon=True)
        self._process.start()

    def start(self, *arguments: Any, **named: Any) -> None:
        """Call `run_clients` without waiting for the result."""
        self._ours.send((arguments, named))

    def result(self) -> Load:
        """Wait for the result."""
        result: Load = self._ours.recv()
        return result

    def run(self, *arguments: Any, **named: Any) -> Load:
        """Call `run_clients` and wait for the result."""
        self.start(*arguments, **named)
        return self.result()

    def end(self) -> None:
        """End the process."""
        self._ours.send(None)
        self._process.join(10)


def _obey(orders: Any) -> None:
    while (order := orders.recv()) is not None:
        orders.send(run_clients(*order[0], **order[1]))


# --- tables ---------------------------------------------------------------------------------------


def show(title: str, rows: Sequence[tuple[str, object]]) -> None:
    print(f"\n{title}")
    for name, value in rows:
        print(f"  {name:<58}{value:>16}", flush=True)


def of(load: Load, share: float) -> str:
    return f"{np.quantile(load.latencies, share) * 1e3:,.1f} ms"


# --- parts ----------------------------------------------------------------------------------------


def bodies(seed: int = 0) -> dict[str, tuple[str, bytes]]:
    """Return the same logits in each format."""
    logits = some_logits(N_ROWS, seed)
    return {
        "safetensors": (SAFETENSORS, encode_tensors({"logits": logits}, {})),
        "JSON": (JSON, json.dumps({"logits": logits.astype(float).round(4).tolist()}).encode()),
    }


class Rate(NamedTuple):
    """Medians over the rounds."""

    per_second: float  # requests, or calls
    ratio: float  # to the calls in process right before
    processor_seconds: float  # per request or call: of this process or of the server


def rates(ways: dict[str, tuple[str, int]], *, seconds: float, rounds: int) -> dict[str, Rate]:
    """Time `assess` in this process, in turn with bodies of 1,000 x 80 through the service.

    A way is a format and a number of clients. The first rate is that of this process.
    """
    detector = ns.JointEnergy().calibrate(some_logits(5_000, seed=1))
    # Several arrays, because a single one would stay in the processor's cache.
    seeds = range(16)
    arrays = [some_logits(N_ROWS, seed) for seed in seeds]
    made: dict[str, list[bytes]] = collections.defaultdict(list)
    for seed in seeds:
        for name, body in bodies(seed).items():
            made[name].append(plain_request("POST", "/v1/score", *body))
    clients = Clients()
    result: dict[str, list[Rate]] = {IN_PROCESS: [], **{way: [] for way in ways}}
    with serving() as server:
        for name, n_clients in ways.values():
            clients.run(server.port, made[name], n_clients, n_requests=32)
        for _ in range(rounds):
            for way, (name, n_clients) in ways.items():
                inside, used = in_process(detector, arrays, seconds)
                result[IN_PROCESS].append(Rate(inside, 1.0, used))
                before = server.processor_seconds()
                load = clients.run(server.port, made[name], n_clients, seconds=seconds)
                used = server.processor_seconds() - before
                n = load.codes.total()
                if load.codes != {200: n}:
                    raise SystemExit(f"not only 200: {load.codes}")
                rate = n / load.seconds
                result[way].append(Rate(rate, rate / inside, used / n))
    clients.end()
    return {
        way: Rate(*(statistics.median(column) for column in zip(*rows, strict=True)))
        for way, rows in result.items()
    }


def throughput(quick: bool) -> None:
    """Compare bodies of 1,000 x 80 through the service with `assess` in this process."""
    ways = {f"safetensors, {n} client{'s'[: n > 1]}": ("safetensors", n) for n in (1, 4, 8)}
    ways |= {"JSON, 4 clients": ("JSON", 4)}
    seconds, rounds = (0.3, 3) if quick else (0.8, 9)
    result = rates(ways, seconds=seconds, rounds=rounds)
    print(f"\nThroughput: {N_ROWS:,} x {N_LABELS} float32 per request, {rounds} rounds, medians")
    print(f"  {'':<40}{'requests/s':>12}{'rows/s':>14}{'ratio':>8}{'CPU time':>14}")
    for name, rate in result.items():
        print(
            f"  {name:<40}{rate.per_second:>12,.0f}{rate.per_second * N_ROWS:>14,.0f}"
            f"{rate.ratio:>8.2f}{rate.processor_seconds * 1e6:>11,.0f} us"
        )
    print("  ratio: median over the rounds of service / in process")
    print("  CPU time: per request, of this process or of the server, without the clients")


def in_process(detector: Any, arrays: Sequence[np.ndarray], seconds: float) -> tuple[float, float]:
    """Return calls per second, and processor time per call."""
    n, begun, used = 0, time.perf_counter(), time.process_time()
    while (passed := time.perf_counter() - begun) < seconds:
        detector.assess(arrays[n % len(arrays)])
        n += 1
    return n / passed, (time.process_time() - used) / n


def mixed() -> list[bytes]:
    """Return small bodies, and one body in eight of 1,000 x 80."""
    single = json.dumps({"logits": some_logits(1).tolist(), "ids": ["a.jpg"]}).encode()
    few = encode_tensors({"logits": some_logits(8)}, {})
    many = encode_tensors({"logits": some_logits(N_ROWS)}, {})
    small = [plain_request("POST", "/v1/score", JSON, single)] * 3
    small += [plain_request("POST", "/v1/score", SAFETENSORS, few)] * 4
    return [*small, plain_request("POST", "/v1/score", SAFETENSORS, many)]


def clients(quick: bool) -> None:
    """Send requests from 64 clients at the same time."""
    seconds = 6 if quick else 30
    for title, options in (
        (f"64 clients for {seconds} s", ()),
        (
            f"64 clients for {seconds // 3} s, at most 16 requests in progress",
            ("--max-requests", "16"),
        ),
    ):
        process = Clients()
        with serving(*options) as server:
            length = seconds // 3 if options else seconds
            process.start(server.port, mixed(), 64, seconds=length)
            time.sleep(length / 6)
            early = server.resident()
            load = process.result()
            late = server.resident()
            last = server.stop()
        process.end()
        other = {code: n for code, n in load.codes.items() if code not in (200, 503)}
        show(
            title,
            [
                ("requests sent", f"{load.sent:,}"),
                ("answered", f"{load.codes.total():,}"),
                ("  200", f"{load.codes[200]:,}"),
                ("  503", f"{load.codes[503]:,}"),
                ("  anything else (must be 0)", f"{sum(other.values()):,}"),
                ("lost (must be 0)", f"{load.sent - load.codes.total():,}"),
                ("server: accepted", f"{last.get('accepted', -1):,}"),
                ("server: answered", f"{last.get('answered', -1):,}"),
                ("requests per second", f"{load.codes.total() / load.seconds:,.0f}"),
                ("latency, median", of(load, 0.5)),
                ("latency, 99th percentile", of(load, 0.99)),
                (f"server's memory after {length / 6:.0f} s", f"{early:.1f} MB"),
                ("server's memory at the end", f"{late:.1f} MB"),
            ],
        )


def stop(quick: bool) -> None:
    """Send SIGTERM under the same load: no accepted request may be lost."""
    rows = []
    for attempt in range(2 if quick else 5):
        process = Clients()
        with serving() as server:
            process.start(server.port, mixed(), 64, seconds=20)
            time.sleep(1 + 0.13 * attempt)
            begun = time.perf_counter()
            last = server.stop()
            took = time.perf_counter() - begun
            load = process.result()
            code = server.process.returncode
        process.end()
        accepted, answered = last.get("accepted", -1), last.get("answered", -1)
        fine = accepted == answered == load.codes.total() and not load.lost and code == 0
        rows.append(
            (
                f"accepted {accepted:,}, answered {answered:,}, received {load.codes.total():,}, "
                f"half {load.lost}",
                f"{'fine' if fine else 'LOST'}, {took:.1f} s",
            )
        )
    show("kill -TERM under the load of 64 clients", rows)


def as_bytes(request: Malformed) -> bytes:
    more = {k: v for k, v in request.headers.items() if k != "content-type"}
    return plain_request(
        "POST", request.path, request.headers["content-type"], request.body, **more
    )


def bad_bodies(quick: bool) -> None:
    """Send 200 malformed bodies."""
    good = plain_request(
        "POST", "/v1/score", SAFETENSORS, encode_tensors({"logits": some_logits(3)}, {})
    )
    seen: dict[str, collections.Counter[int]] = collections.defaultdict(collections.Counter)
    alive = 0
    requests = list(malformed(200, N_LABELS))
    with serving(with_a_model=True) as server:
        run_clients(server.port, [good], 1, n_requests=50)
        before = server.resident()
        for request in requests:
            raw = as_bytes(request)
            seen[request.kind].update(run_clients(server.port, [raw], 1, n_requests=1).codes)
            alive += run_clients(server.port, [good], 1, n_requests=1).codes[200]
        after = server.resident()
        errors = [line for line in server.log if line["level"] == "error"]
    rows: list[tuple[str, object]] = [
        (kind, ", ".join(f"{n} x {code}" for code, n in sorted(codes.items())))
        for kind, codes in seen.items()
    ]
    total = sum(codes.total() for codes in seen.values())
    refused = sum(n for codes in seen.values() for code, n in codes.items() if 400 <= code < 500)
    show(
        f"{len(requests)} malformed bodies",
        [
            *((f"  {kind}", value) for kind, value in rows),
            ("answered with a 4xx", f"{refused} of {total}"),
            ("good requests answered in between", f"{alive} of {len(requests)}"),
            ("errors in the log", len(errors)),
            ("server's memory before and after", f"{before:.0f}, {after:.0f} MB"),
        ],
    )


def soak(quick: bool) -> None:
    """Send good and malformed bodies for a while: memory, threads and files must not grow."""
    seconds, looks = (12 if quick else 120), 4
    bad = [as_bytes(request) for request in malformed(200, N_LABELS)]
    # A longer one may be rejected unread, and the client then loses the answer while it sends.
    bad = [raw for raw in bad if len(raw) < 65_536]
    good = mixed()
    requests = [raw for bad_request in bad for raw in (*good, bad_request)]
    process = Clients()
    result: list[tuple[float, int, int]] = []
    with serving(with_a_model=True) as server:
        begun = time.perf_counter()
        process.start(server.port, requests, 16, seconds=seconds)
        for look in range(1, looks + 1):
            time.sleep(max(0.0, begun + look * seconds / (looks + 1) - time.perf_counter()))
            result.append((server.resident(), *server.counts()))
        load = process.result()
        errors = [line for line in server.log if line["level"] == "error"]
        last = server.stop()
    process.end()
    codes, right = load.codes, load.codes[200]
    refused = sum(n for code, n in codes.items() if 400 <= code < 500)
    memory, threads, files = (list(column) for column in zip(*result, strict=True))
    show(
        f"Soak: 16 clients for {seconds} s, one body in nine malformed",
        [
            ("requests sent", f"{load.sent:,}"),
            ("answered with 200", f"{right:,}"),
            ("answered with a 4xx", f"{refused:,}"),
            ("anything else (must be 0)", f"{codes.total() - right - refused:,}"),
            ("lost (must be 0)", f"{load.sent - codes.total():,}"),
            ("server: accepted, answered", f"{last.get('accepted'):,}, {last.get('answered'):,}"),
            ("errors in the log", len(errors)),
            (
                "server's memory over time, MB",
                ", ".join(f"{megabytes:.0f}" for megabytes in memory),
            ),
            ("server's threads over time", ", ".join(map(str, threads))),
            ("server's open files over time", ", ".join(map(str, files))),
        ],
    )


PARTS: dict[str, Callable[[bool], None]] = {
    "throughput": throughput,
    "clients": clients,
    "stop": stop,
    "malformed": bad_bodies,
    "soak": soak,
}

if __name__ == "__main__":
    parser = argparse.ArgumentParser(description="Measure the service under load.")
    parser.add_argument("parts", nargs="*", metavar="part", help=", ".join(PARTS))
    parser.add_argument("--quick", action="store_true", help="use smaller numbers")
    arguments = parser.parse_args()
    chosen = arguments.parts or list(PARTS)
    unknown = set(chosen) - set(PARTS)
    if unknown:
        parser.error(f"no part {sorted(unknown)[0]!r}; choose from {', '.join(PARTS)}")
    for part in chosen:
        PARTS[part](arguments.quick)
