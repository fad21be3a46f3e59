"""Print the files whose functions run on a walk through nescio, for the table in CONTRIBUTING.

python tools/walks.py score
"""

from __future__ import annotations

import os
import re
import sys
import tempfile
import threading
import warnings
from collections import defaultdict
from collections.abc import Callable
from pathlib import Path
from types import FrameType
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

import nescio as ns
from nescio.checks import make_outputs
from nescio.cli import main as run

SOURCE = str(Path(ns.__file__).parent) + os.sep
_FUNCTION = 2  # the flag of code that is neither a module nor the body of a class

sys.path.append(str(Path(__file__).parents[1] / "tests"))  # for the small benchmark

functions: dict[str, dict[str, None]] = defaultdict(dict)  # in the order of the calls
recording = False


def record(frame: FrameType, event: str, _: Any) -> None:
    """Note the function that is called."""
    code = frame.f_code
    ours = recording and event == "call" and code.co_filename.startswith(SOURCE)
    if ours and code.co_flags & _FUNCTION and not code.co_name.startswith("<"):
        functions[code.co_filename.removeprefix(SOURCE)][code.co_qualname] = None


def walk(work: Callable[[], object]) -> None:
    """Do the work and note what runs, in this thread and in those that start after `main`."""
    global recording
    recording = True
    work()
    recording = False


def write_tables() -> None:
    """Write training, held-out and new outputs as Parquet files with lists."""
    for seed, (name, n) in enumerate({"train": 600, "val": 600, "new": 200}.items()):
        outputs = make_outputs(n, seed=seed)
        arrays = {key: getattr(outputs, key) for key in ("logits", "features", "labels")}
        columns = {key: [row.tolist() for row in array] for key, array in arrays.items()}
        pq.write_table(pa.table(columns), f"{name}.parquet")


def fit() -> None:
    """Wrap a classifier of scikit-learn."""
    from sklearn.linear_model import LogisticRegression
    from sklearn.multiclass import OneVsRestClassifier

    rows = np.random.default_rng(0).normal(size=(1500, 8))
    labels = (rows[:, :4] > 0).astype(int)
    model = OneVsRestClassifier(LogisticRegression()).fit(rows[:700], labels[:700])
    walk(
        lambda: ns.wrap(model, features="input").fit(rows[:700], labels[:700]).calibrate(rows[700:])
    )


def request() -> None:
    """Send logits to the service."""
    from starlette.testclient import TestClient

    from nescio.service import Settings, make_app

    body = {"logits": make_outputs(3).logits.tolist()}
    with TestClient(make_app(Settings(Path("val.nescio")))) as client:
        client.post("/v1/score", json=body)
        walk(lambda: client.post("/v1/score", json=body))


def bench() -> None:
    """Train a small network on a few scenes, extract its outputs and evaluate detectors."""
    from fixtures.benchmark import N_SCENES, SPEC
    from nescio.lab.data import digits

    digits.N_SCENES = N_SCENES
    spec = re.sub(r"detectors = \[.*?\]", 'detectors = ["joint_energy"]', SPEC, flags=re.DOTALL)
    Path("small.toml").write_text(spec.replace("[0, 1]", "[0]"), "utf-8")
    walk(lambda: run(["bench", "small.toml", "--data", "data", "-o", "bench"]))


WALKS: dict[str, Callable[[], None]] = {
    "score": lambda: walk(lambda: run(["score", "val.nescio", "new.parquet", "-o", "x.parquet"])),
    "calibrate": lambda: walk(
        lambda: run(["calibrate", "val.parquet", "--train", "train.parquet", "-o", "x.nescio"])
    ),
    "fit": fit,
    "request": request,
    "bench": bench,
}


def main() -> None:
    """Print one walk."""
    if len(sys.argv) != 2 or sys.argv[1] not in WALKS:
        sys.exit(f"usage: python tools/walks.py {'|'.join(WALKS)}")
    warnings.simplefilter("ignore")
    threading.setprofile(record)
    sys.setprofile(record)
    os.chdir(tempfile.mkdtemp())
    write_tables()
    run(["calibrate", "val.parquet", "-o", "val.nescio"])
    WALKS[sys.argv[1]]()
    print(f"\n{sys.argv[1]}: {len(functions)} files")
    for file, names in functions.items():
        print(f"  {file}: {', '.join(list(names)[:6])}{', ...' * (len(names) > 6)}")


if __name__ == "__main__":
    main()
