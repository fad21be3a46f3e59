"""The service with binary bodies, against an application that only reads them.

The server and its clients share the processors of the machine. The bare application runs in turn
with the service, in many short rounds, so that both see the same load of the machine; the median of
the ratios of the rounds counts.

glibc may give the memory of a body back to the system after each request and take it again for the
next one, page by page. That takes longer than reading the body, and whether it happens depends on
where other memory lies: the rate of the bare application then changes by a factor of three from one
start to the next. So both are compared twice: as they are, and if both keep freed memory.
`python benchmarks/robustness/service.py` has more: JSON, 64 clients, stopping, malformed bodies.
"""

from __future__ import annotations

import multiprocessing
import os
import socket
import statistics
import time
from typing import Any

import nescio as ns
from service import (
    N_LABELS,
    N_ROWS,
    Clients,
    bodies,
    in_process,
    plain_request,
    serving,
    some_logits,
)
from speed.harness import Bench

GOAL = 0.45  # of the rate of the bare application
ROUNDS, SECONDS = 20, 0.15
KEPT = {"MALLOC_TRIM_THRESHOLD_": "268435456", "MALLOC_MMAP_THRESHOLD_": "33554432"}


def run(bench: Bench) -> None:
    detector = ns.JointEnergy().calibrate(some_logits(5_000, seed=1))
    arrays = [some_logits(N_ROWS, seed) for seed in range(16)]  # one would stay in the cache
    inside = statistics.median(in_process(detector, arrays, SECONDS)[0] for _ in range(ROUNDS))
    print(f"\n{N_ROWS:,} x {N_LABELS} float32 per request, as safetensors")
    bench.fact("rows per second in process, by assess", inside * N_ROWS)
    for memory, environment in {"": {}, ", memory kept": KEPT}.items():
        os.environ |= environment
        for n_clients, rates in _rates((1, 4)).items():
            who = f"{n_clients} client{'s'[: n_clients > 1]}{memory}"
            bare, service = (statistics.median(column) for column in zip(*rates, strict=True))
            ratio = statistics.median(ours / theirs for theirs, ours in rates)
            bench.fact(f"an application that only reads the body, {who}: requests per second", bare)
            bench.fact(f"the service, {who}: requests per second", service)
            bench.fact(
                f"the service, {who}: rate, as a share of the bare application",
                ratio,
                at_least=GOAL,
            )


def _rates(numbers: tuple[int, ...]) -> dict[int, list[tuple[float, float]]]:
    """Return the requests per second of the bare application and of the service, by round."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    bare = multiprocessing.get_context("spawn").Process(target=_serve, args=(port,), daemon=True)
    bare.start()
    _wait_for(port)
    clients = Clients()
    encoded = [bodies(seed)["safetensors"] for seed in range(16)]
    requests = [plain_request("POST", "/v1/score", *body) for body in encoded]
    rates: dict[int, list[tuple[float, float]]] = {n_clients: [] for n_clients in numbers}
    with serving() as server:
        for n_clients in numbers:
            for warm in (port, server.port):
                clients.run(warm, requests, n_clients, n_requests=400)
            for _ in range(ROUNDS):
                loads = [
                    clients.run(which, requests, n_clients, seconds=SECONDS)
                    for which in (port, server.port)
                ]
                if any(set(load.codes) != {200} for load in loads):
                    raise SystemExit("not only 200")
                first, second = (load.codes.total() / load.seconds for load in loads)
                rates[n_clients].append((first, second))
    clients.end()
    bare.terminate()
    bare.join()
    return rates


def _serve(port: int) -> None:
    import uvicorn

    uvicorn.run(_read_only, port=port, log_level="error", access_log=False)


def _wait_for(port: int) -> None:
    while True:
        try:
            socket.create_connection(("127.0.0.1", port)).close()
        except ConnectionRefusedError:
            time.sleep(0.05)
        else:
            return


async def _read_only(scope: Any, receive: Any, send: Any) -> None:
    if scope["type"] != "http":
        return
    parts, more = [], True
    while more:
        message = await receive()
        parts.append(message.get("body", b""))
        more = message.get("more_body", False)
    length = str(len(b"".join(parts))).encode()
    head = [(b"content-length", str(len(length)).encode())]
    await send({"type": "http.response.start", "status": 200, "headers": head})
    await send({"type": "http.response.body", "body": length})
