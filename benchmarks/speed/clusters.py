"""Ray against one process, and what one core does: scoring, reading, extraction, neighbours."""

from __future__ import annotations

import os
import tempfile
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from speed.harness import Bench

N_ROWS, N_LABELS = 1_000_000, 80
N_IMAGES, SIDE = 256, 224

SCORED = "scoring of logits, rows per second and core"
READ = "reading, decoding and resizing of JPEGs, images per second and core"
EXTRACTED = "extraction by ResNet-18 at 224 px, images per second and core"
NEIGHBOURS = "nearest neighbours among 50,000 x 512 features, samples per second and core"


def run(bench: Bench) -> None:
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        _score(bench, folder)
        _extract(bench, folder)
    _neighbours(bench)


def _score(bench: Bench, folder: Path) -> None:
    """Logits alone: threads of one process against Ray."""
    import pyarrow
    from pyarrow import parquet

    import nescio as ns
    from nescio.detectors.verdicts import score_stream
    from nescio.integrations.ray import Verdicts, connected, ray_scoring
    from nescio.outputs.files import OutputsStream

    rng = np.random.default_rng(0)
    names = [f"label {index}" for index in range(N_LABELS)]
    detector = ns.JointEnergy().calibrate(
        ns.Outputs(rng.normal(-4, 3, (5000, N_LABELS)), label_names=names)
    )
    logits = rng.normal(-4, 3, (N_ROWS, N_LABELS)).astype(np.float32)
    path = folder / "logits.parquet"
    parquet.write_table(
        pyarrow.table(dict(zip(names, logits.T, strict=True))), path, row_group_size=1 << 17
    )
    del logits

    def nescio_score(engine: Any = None) -> None:
        out = folder / "scored.parquet"
        score_stream(detector, OutputsStream(path), out, force=True, engine=engine)

    with connected() as ray, ray_scoring() as engine:

        def ray_data() -> None:
            verdicts = Verdicts(detector, keep=())
            made = ray.data.read_parquet(str(path)).map_batches(verdicts, batch_format="pandas")
            assert sum(len(b) for b in made.iter_batches(batch_format="pyarrow")) == N_ROWS

        threads = "pyarrow and threads: nescio score"
        bench.compare(
            f"verdicts on {N_ROWS:,} x {N_LABELS} float32 in Parquet",
            threads,
            {
                threads: nescio_score,
                "Ray: nescio score --engine ray": partial(nescio_score, engine),
                "Ray Data: map_batches(Verdicts)": ray_data,
            },
            rounds=3,
        )
    bench.fact(SCORED, N_ROWS / _seconds(nescio_score) / _cores(), "rows/s")


def _extract(bench: Bench, folder: Path) -> None:
    """A network on images, in one process."""
    import torch
    import torchvision
    from PIL import Image

    from nescio.lab.data import load_folder
    from nescio.lab.data.split import Reader, in_batches
    from nescio.lab.extraction import extract
    from nescio.models.base import make_runner
    from nescio.models.images import Preprocessing

    rng = np.random.default_rng(0)
    root = folder / "images" / "all"
    root.mkdir(parents=True)
    for number in range(N_IMAGES):
        small = rng.integers(0, 255, (16, 20, 3), np.uint8)
        Image.fromarray(small).resize((500, 400)).save(root / f"{number:04}.jpg", quality=90)
    split = load_folder(root.parent, "")
    torch.manual_seed(0)
    network = torchvision.models.resnet18(num_classes=N_LABELS).eval()
    runner = make_runner(network, preprocessing=Preprocessing(SIDE), device="cpu")

    def work() -> None:
        extract(runner, split, folder / "o.safetensors", batch_size=8, force=True)
        (folder / "o.safetensors").unlink()

    bench.fact(EXTRACTED, N_IMAGES / _seconds(work) / _cores(), "images/s")
    reader = Reader(split, Preprocessing(SIDE))

    def read() -> None:
        for _ in reader.batches(in_batches(len(split), 16)):
            pass

    bench.fact(READ, N_IMAGES / _seconds(read) / _cores(), "images/s")


def _neighbours(bench: Bench) -> None:
    import nescio as ns

    rng = np.random.default_rng(0)
    train, new = (rng.normal(size=(n, 512)).astype(np.float32) for n in (50_000, 1000))
    detector = ns.NearestNeighbours().fit(train)
    seconds = _seconds(lambda: detector.score_samples(new))
    bench.fact(NEIGHBOURS, len(new) / seconds / _cores(), "samples/s")


def _seconds(work: Callable[[], object]) -> float:
    """Return the shorter of two times."""
    times = []
    for _ in range(2):
        started = time.perf_counter()
        work()
        times.append(time.perf_counter() - started)
    return min(times)


def _cores() -> int:
    return len(os.sched_getaffinity(0))
