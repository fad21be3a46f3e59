"""The service with binary bodies, against `assess` in the same process.

The server and its clients share the processors of the machine, as the issue's figure does.
`python benchmarks/service.py` has more: JSON, 64 clients, stopping, malformed bodies.
"""

from __future__ import annotations

from service import IN_PROCESS, N_LABELS, N_ROWS, rates
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
        bench.fact(f"rate of the service, {name}: share of that", rate.ratio, at_least=goal)
        bench.fact(
            f"processor time of the server, {name}: times that of assess",
            rate.processor_seconds / inside.processor_seconds,
        )
