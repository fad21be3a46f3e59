"""`nescio score` on a Parquet file, in blocks, against the whole file in memory.

python benchmarks/speed streams                2,000,000 rows x 80 labels, then 50,000,000
python benchmarks/speed/streams.py 5_000_000   another size; above 4,000,000 rows without the peer

The file is a row group of random logits, repeated, in build/streams. The large one takes 16 GB and
is removed at the end. Every run is a process of its own, so that its peak of memory and the time of
its imports count.
"""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pyarrow
import pyarrow.parquet as parquet

if __name__ == "__main__":
    sys.path[0] = str(Path(__file__).resolve().parents[1])

from speed.harness import Bench

FOLDER = Path(__file__).resolve().parents[2] / "build" / "streams"
NAMES = [f"label {label}" for label in range(80)]
GROUP_ROWS = 100_000
LARGE = 50_000_000
FREE_BYTES = 24e9  # for the large file and its verdicts
MOST_IN_MEMORY = 4_000_000  # rows; the whole file as a table and as a matrix

_STREAM = """
from nescio.cli import main
assert main(["score", "detector.nescio", source, "-o", target, "--force"]) == 0
"""
_WHOLE = """
import nescio
detector = nescio.load("detector.nescio")
outputs = nescio.Outputs.load(source, labels=detector.label_names_)
detector.assess(outputs).save(target, force=True)
"""
_PEAK = """
import resource
print("peak", resource.getrusage(resource.RUSAGE_SELF).ru_maxrss)
"""


def run(bench: Bench) -> None:
    measure(bench, 2_000_000)
    if shutil.disk_usage(FOLDER).free < FREE_BYTES:
        print(f"  without {LARGE:,} rows: there are less than {FREE_BYTES / 1e9:.0f} GB left")
        return
    measure(bench, LARGE)


def measure(bench: Bench, n_rows: int) -> None:
    FOLDER.mkdir(parents=True, exist_ok=True)
    source = _made(n_rows)
    peaks: dict[str, float] = {}

    def contender(name: str, program: str) -> Callable[[], None]:
        names = f"source, target = {source.name!r}, 'scored-{len(program)}.parquet'"

        def work() -> None:
            command = [sys.executable, "-c", f"{names}\n{program}\n{_PEAK}"]
            done = subprocess.run(
                command, cwd=FOLDER, check=True, stdout=subprocess.PIPE, text=True
            )
            unit = 1 if sys.platform == "darwin" else 1024
            peak = int(re.findall(r"peak (\d+)", done.stdout)[-1]) * unit / 1e6
            peaks[name] = max(peak, peaks.get(name, 0))

        return work

    stream, whole = "nescio score, in blocks", "the whole file: Outputs.load, assess, save"
    work = contender(stream, _STREAM)
    if n_rows <= MOST_IN_MEMORY:
        contenders = {whole: contender(whole, _WHOLE), stream: work}
        bench.compare(
            f"a Parquet file of {n_rows:,} rows x 80 float32", whole, contenders, rounds=3
        )
    started = time.perf_counter()
    work()
    seconds = time.perf_counter() - started
    bench.fact(f"{stream}: rows per second, {n_rows:,} rows", n_rows / seconds, "rows/s")
    for name, peak in peaks.items():
        most = 1000 if name == stream else None
        bench.fact(f"{name}: peak memory, {n_rows:,} rows", peak, "MB", at_most=most)
    if n_rows > MOST_IN_MEMORY:
        source.unlink()


def _made(n_rows: int) -> Path:
    """Write the detector and the file, if they are not there."""
    import nescio

    path, rng = FOLDER / f"logits-{n_rows}.parquet", np.random.default_rng(0)
    held_out = rng.normal(-2, 3, (5000, len(NAMES))).astype(np.float32)
    outputs = nescio.Outputs(held_out, label_names=NAMES)
    nescio.JointEnergy().calibrate(outputs).save(FOLDER / "detector.nescio", force=True)
    if path.exists():
        return path
    logits = rng.normal(-2, 3, (GROUP_ROWS, len(NAMES))).astype(np.float32)
    group = pyarrow.table(dict(zip(NAMES, logits.T, strict=True)))
    part = path.with_suffix(".part")
    with parquet.ParquetWriter(part, group.schema, use_dictionary=False) as writer:
        for start in range(0, n_rows, GROUP_ROWS):
            writer.write_table(group.slice(0, min(GROUP_ROWS, n_rows - start)))
    part.rename(path)
    return path


if __name__ == "__main__":
    measure(Bench(), int(sys.argv[1]))
