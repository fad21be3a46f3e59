"""Damage inputs of every reader, and count what becomes of them.

    python benchmarks/robustness/fuzz.py                       100,000 inputs
    python benchmarks/robustness/fuzz.py --minutes 10          as many as fit
    python benchmarks/robustness/fuzz.py --kind detector       only kinds with this in their name

A worker process reads the inputs, with a limit of memory and of time per input; if it dies, that is
a crash, and another worker goes on with the next input. The same seed gives the same inputs.

Exit code 1: a traceback, a crash, or a result that a checksum should have prevented.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import resource
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path
from typing import IO

BATCH = 200  # inputs between two looks at the clock
CRASH = "crash"
COLUMNS = {
    "clean": "clean errors",
    "unchanged": "accepted unchanged",
    "changed": "accepted changed",
    "traceback": "tracebacks",
    CRASH: "crashes",
}
SECONDS = 20  # for one input
NAMED = 20  # failures that are printed


def main() -> int:
    arguments = parsed()
    if arguments.worker:
        work(arguments)
        return 0
    Path(arguments.folder).mkdir(parents=True, exist_ok=True)
    worker = Worker(arguments)
    ends = time.monotonic() + 60 * arguments.minutes
    counts = {name: Counter[str]() for name in worker.kinds if arguments.kind in name}
    if not counts:
        worker.close()
        sys.exit(f"no kind has {arguments.kind!r} in its name: {', '.join(worker.kinds)}.")
    failures: list[str] = []
    per_kind = -(-arguments.inputs // len(counts))
    with contextlib.suppress(KeyboardInterrupt):
        for start in range(0, per_kind, BATCH):
            for name in counts:
                if time.monotonic() < ends:
                    result, failed = worker.batch(name, start, min(start + BATCH, per_kind))
                    counts[name] += result
                    failures += [f"{name}, {text}" for text in failed]
    worker.close()
    print(f"| Kind | Inputs | {' | '.join(COLUMNS.values())} |")
    print("|---|" + "---:|" * (1 + len(COLUMNS)))
    for name, count in counts.items():
        print(_row(f"{name} *" if name in worker.hashed else name, count))
    print(_row("all", sum(counts.values(), Counter())))
    print("\n* The input has a checksum: no damage may change the result.")
    peak = resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss * 1024
    print(f"The largest worker took {peak / 1e9:.2f} GB of memory.")
    print("\n".join(failures[:NAMED]))
    return bool(
        failures or any(counts[name]["changed"] for name in counts if name in worker.hashed)
    )


def parsed() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--inputs", type=int, default=100_000, help="of all kinds together")
    parser.add_argument("--minutes", type=float, default=1e9)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--memory", type=float, default=8.0, help="limit in GB")
    parser.add_argument("--kind", default="", help="a part of the name of a kind")
    parser.add_argument("--folder", default="build/fuzz")
    parser.add_argument("--worker", action="store_true", help=argparse.SUPPRESS)
    return parser.parse_args()


def _row(name: str, counts: Counter[str]) -> str:
    cells = [sum(counts.values()), *(counts[column] for column in COLUMNS)]
    return f"| {name} | {' | '.join(f'{cell:,}' for cell in cells)} |"


class Worker:
    """A process that reads batches of inputs; it is started again if it dies."""

    def __init__(self, arguments: argparse.Namespace) -> None:
        self._arguments = arguments
        self._process = self._started()

    def _started(self) -> subprocess.Popen[str]:
        command = [sys.executable, __file__, "--worker", "--seed", str(self._arguments.seed)]
        command += ["--folder", self._arguments.folder, "--memory", str(self._arguments.memory)]
        process = subprocess.Popen(
            command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
        )
        first = json.loads(_pipe(process.stdout).readline())
        self.kinds, self.hashed = first["kinds"], set(first["hashed"])
        return process

    def batch(self, name: str, start: int, stop: int) -> tuple[Counter[str], list[str]]:
        """Return the counts of a batch, and where it failed."""
        counts: Counter[str] = Counter()
        failures: list[str] = []
        while start < stop:
            _pipe(self._process.stdin).write(json.dumps([name, start, stop]) + "\n")
            _pipe(self._process.stdin).flush()
            for line in _pipe(self._process.stdout):
                outcome, why = json.loads(line)
                counts[outcome] += 1
                if why:
                    failures.append(f"input {start}: {why}")
                start += 1
                if start == stop:
                    break
            else:  # the process has died
                counts[CRASH] += 1
                failures.append(f"input {start}: exit code {self._process.wait()}")
                start += 1
                self._process = self._started()
        return counts, failures

    def close(self) -> None:
        _pipe(self._process.stdin).close()
        self._process.wait()


def _pipe(stream: IO[str] | None) -> IO[str]:
    assert stream is not None
    return stream


def work(arguments: argparse.Namespace) -> None:
    """Read batches from standard input; print one line per input."""
    from fuzzing.kinds import all_kinds, outcome_of

    folder = Path(arguments.folder) / "files"
    kinds = {kind.name: kind for kind in all_kinds(folder)}
    limit = int(arguments.memory * 2**30)
    resource.setrlimit(resource.RLIMIT_AS, (limit, limit))
    hashed = [name for name, kind in kinds.items() if kind.hashed]
    print(json.dumps({"kinds": list(kinds), "hashed": hashed}), flush=True)
    for line in sys.stdin:
        name, start, stop = json.loads(line)
        # A loop that Python cannot interrupt ends the process, too.
        resource.setrlimit(resource.RLIMIT_CPU, (_used() + 10 * SECONDS, resource.RLIM_INFINITY))
        for number in range(start, stop):
            result = outcome_of(
                kinds[name], number, folder / "input", seed=arguments.seed, seconds=SECONDS
            )
            print(json.dumps(result), flush=True)


def _used() -> int:
    used = resource.getrusage(resource.RUSAGE_SELF)
    return int(used.ru_utime + used.ru_stime)


if __name__ == "__main__":
    sys.exit(main())
