"""The service with binary bodies, against `assess` in the same process.

The server and its clients share the processors of the machine, as the issue's figure does.
`python benchmarks/service.py` has more: JSON, 64 clients, stopping, malformed bodies.
"""

from __future__ import annotations

import multiprocessing
import socket
import time
from typing import Any

from service import IN_PROCESS, N_LABELS, N_ROWS, Clients, bodies, plain_request, rates
from speed.harness import Bench

GOAL = 0.5


def run(bench: Bench) -> None:
    ways = {"1 client": ("safetensors", 1), "4 clients": ("safetensors", 4)}
    found = rates(ways, seconds=0.6, rounds=7)
    inside = found.pop(IN_PROCESS)
    print(f"\n{N_ROWS:,} x {N_LABELS} float32 per request, as safetensors")
    bench.fact("rows per second in process, by assess", inside.per_second * N_ROWS)
    for name, rate in found.items():
        goal = GOAL if name == "4 clients" else None
        bench.fact(
            f"the service, {name}: rate, as a share of assess in process", rate.ratio, at_least=goal
        )
        bench.fact(
            f"the service, {name}: processor time of the server, times that of assess",
            rate.processor_seconds / inside.processor_seconds,
        )
    for n_clients, rate in _bare_rates((1, 4), seconds=2).items():
        who = f"{n_clients} client{'s'[: n_clients > 1]}"
        title = f"an application that only reads the body, {who}: rate, as a share of assess"
        bench.fact(title, rate / inside.per_second)


def _bare_rates(numbers: tuple[int, ...], seconds: float) -> dict[int, float]:
    """Return the requests per second of an application that reads the same bodies, and no more."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    server = multiprocessing.get_context("spawn").Process(target=_serve, args=(port,), daemon=True)
    server.start()
    _wait_for(port)
    clients = Clients()
    requests = [plain_request("POST", "/", *bodies(seed)["safetensors"]) for seed in range(16)]
    found = {}
    for n_clients in numbers:
        load = clients.run(port, requests, n_clients, seconds=seconds)
        found[n_clients] = load.codes.total() / load.seconds
    clients.end()
    server.terminate()
    server.join()
    return found


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
