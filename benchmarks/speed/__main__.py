"""Compare the speed of nescio with its peers.

    python benchmarks/speed               all parts
    python benchmarks/speed scoring       one part or several
    python benchmarks/speed --save        also write benchmarks/results.json and the page in docs/

Each part runs in a process of its own, one after the other. Peers that are not dependencies of
nescio (the group "bench" of pyproject.toml) are taken from build/peers, where `make bench` installs
them; without them their rows are left out.
"""

from __future__ import annotations

import argparse
import importlib
import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[1]
PEERS = ROOT / "build" / "peers"
RESULTS = HERE.parent / "results.json"
sys.path[0] = str(HERE.parent)  # so that a part is speed.NAME
sys.path.append(str(HERE.parent / "robustness"))  # for service.py

PARTS = (
    "scoring",
    "service",
    "streams",
    "mahalanobis",
    "metrics",
    "neighbours",
    "perturbation",
    "extraction",
    "clusters",
)


def main() -> int:
    """Run the parts that were asked for; return 1 if one of them failed."""
    parser = argparse.ArgumentParser(description="Compare the speed of nescio with its peers.")
    parser.add_argument("parts", nargs="*", metavar="part", help=", ".join(PARTS))
    parser.add_argument("--save", action="store_true", help="write results.json and the page")
    parser.add_argument("--record", type=Path, help=argparse.SUPPRESS)  # in the part's own process
    options = parser.parse_args()
    unknown = sorted(set(options.parts) - set(PARTS))
    if unknown:
        parser.error(f"no part {unknown[0]!r}; choose from {', '.join(PARTS)}")
    if options.record is not None:
        _run(options.parts[0], options.record)
        return 0
    failed = []
    results = _earlier()
    for part in options.parts or PARTS:
        result = _in_a_process(part)
        if result is None:
            failed.append(part)
        else:
            results[part] = result
    if options.save:
        _save(results)
    if failed:
        print(f"\nthese parts failed: {', '.join(failed)}", file=sys.stderr)
    return int(bool(failed))


def _run(part: str, record: Path) -> None:
    from speed.harness import Bench, machine

    bench = Bench()
    started = time.perf_counter()
    importlib.import_module(f"speed.{part}").run(bench)
    seconds = round(time.perf_counter() - started, 1)
    record.write_text(
        json.dumps({"machine": machine(), "seconds": seconds, "records": bench.records})
    )


def _in_a_process(part: str) -> dict[str, Any] | None:
    """Return what a part measured; None if it failed."""
    print(f"\n=== {part}", flush=True)
    paths = [str(PEERS), os.environ.get("PYTHONPATH", "")]
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(filter(None, paths))}
    with tempfile.TemporaryDirectory() as folder:
        record = Path(folder) / "record.json"
        command = [sys.executable, str(HERE), part, "--record", str(record)]
        if subprocess.run(command, env=environment, check=False).returncode:
            return None
        result: dict[str, Any] = json.loads(record.read_text())
        return result


def _earlier() -> dict[str, Any]:
    result: dict[str, Any] = json.loads(RESULTS.read_text()) if RESULTS.exists() else {}
    return {part: result[part] for part in PARTS if part in result}


def _save(results: dict[str, Any]) -> None:
    from speed.page import write_page

    results = {part: results[part] for part in PARTS if part in results}
    RESULTS.write_text(json.dumps(results, indent=1) + "\n")
    write_page(results, ROOT / "docs")
    print(f"\nsaved {RESULTS} and the page of docs/explanation/speed.md")


if __name__ == "__main__":
    sys.exit(main())
