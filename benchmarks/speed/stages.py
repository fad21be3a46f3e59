"""Measure the stages of a benchmark on this machine: images per second and peak memory.

    python benchmarks/speed/stages.py

Each row runs in a process of its own, for its peak memory. The images are photographs of 640 by 427
pixels that ship with scikit-learn, as JPEG files. Networks have random weights: the time is the
same. docs/how-to/run-a-benchmark.md has a table made from the output.
"""

from __future__ import annotations

import argparse
import os
import platform
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

SIZE = 256
NETWORKS = ("densenet121", "resnet101")
N_LABELS = 80


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--only", help=argparse.SUPPRESS)
    parser.add_argument("--images", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.only:
        rate = PARTS[options.only](Path(options.images))
        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024**2
        shown = f"{rate:,.0f}" if rate >= 100 else f"{rate:.3g}"
        print(f"| {options.only} | {shown} | {peak:.1f} |")
        return
    print(f"{_processor()}, {len(os.sched_getaffinity(0))} processors\n")
    print("| Stage | Images per second | Peak memory, GB |\n|---|---:|---:|")
    with tempfile.TemporaryDirectory() as folder:
        write_images(Path(folder))
        for name in PARTS:
            command = [sys.executable, __file__, "--only", name, "--images", folder]
            print(
                subprocess.run(command, check=True, capture_output=True, text=True).stdout, end=""
            )


def _processor() -> str:
    for line in Path("/proc/cpuinfo").read_text().splitlines():
        if line.startswith("model name"):
            return line.partition(": ")[2]
    return platform.processor()


def write_images(folder: Path, n_images: int = 200) -> None:
    from PIL.Image import fromarray
    from sklearn.datasets import load_sample_images

    photos = load_sample_images().images
    for index in range(n_images):
        fromarray(photos[index % len(photos)]).save(folder / f"{index:03}.jpg", quality=90)


def rate_of(
    run: Callable[[], int], *, warm_up: Callable[[], object] | None = None, at_least: float = 4.0
) -> float:
    """Return images per second, after one call as a warm-up."""
    (warm_up or run)()
    done, start = 0, time.perf_counter()
    while time.perf_counter() - start < at_least:
        done += run()
    return done / (time.perf_counter() - start)


def checking(folder: Path) -> float:
    from nescio.lab.data import find_damaged, load_folder

    split = load_folder(folder)
    return rate_of(lambda: len(split) + len(find_damaged(split)))


def reading(folder: Path) -> float:
    from nescio.lab.data import load_folder
    from nescio.lab.data.split import Augmentation, Reader, in_batches
    from nescio.models.images import Preprocessing

    split = load_folder(folder)
    reader = Reader(split, Preprocessing(SIZE), Augmentation())
    batches = in_batches(len(split), 16)
    return rate_of(lambda: sum(map(len, reader.batches(batches))))


def forward(name: str) -> Callable[[Path], float]:
    def measure(_folder: Path) -> float:
        import torch

        from nescio.lab.networks.network import build_network, prepared

        network = prepared(build_network(name, N_LABELS), "cpu")
        inputs = torch.randn(16, 3, SIZE, SIZE).to(memory_format=torch.channels_last)

        def run() -> int:
            with torch.inference_mode():
                return len(network(inputs))

        return rate_of(run)

    return measure


def training(name: str) -> Callable[[Path], float]:
    def measure(_folder: Path) -> float:
        import torch
        from torch.nn.functional import binary_cross_entropy_with_logits

        from nescio.lab.networks.network import build_network

        network = build_network(name, N_LABELS).train()
        optimiser = torch.optim.Adam(network.parameters())
        inputs, labels = torch.randn(64, 3, SIZE, SIZE), torch.zeros(64, N_LABELS)

        def run(n_images: int = 64) -> int:
            optimiser.zero_grad()
            logits = network(inputs[:n_images])
            binary_cross_entropy_with_logits(logits, labels[:n_images]).backward()
            optimiser.step()
            return n_images

        return rate_of(run, warm_up=lambda: run(4))

    return measure


def tuning(name: str) -> Callable[[Path], float]:
    """ODIN and Mahalanobis with the aggregate max: the whole grid, for each image."""

    def measure(folder: Path) -> float:
        import numpy as np
        import torch

        from nescio import Mahalanobis
        from nescio.lab.data import load_folder
        from nescio.lab.data.split import Reader
        from nescio.lab.networks.network import Architecture, Checkpoint, CheckpointRunner
        from nescio.lab.perturbation import grid_scores
        from nescio.lab.settings import TuneSettings
        from nescio.models.images import Preprocessing
        from nescio.outputs import Outputs

        architecture = Architecture(name)
        names = tuple(map(str, range(N_LABELS)))
        preprocessing = Preprocessing(SIZE)
        checkpoint = Checkpoint(architecture.build(N_LABELS), architecture, names, preprocessing)
        runner = CheckpointRunner(checkpoint, features="pooled", device="cpu")
        [pixels] = Reader(load_folder(folder), preprocessing).batches([range(2)])
        inputs = preprocessing.inputs(pixels, torch.device("cpu"))
        n_features = runner.run(pixels)["features"].shape[1]
        rng = np.random.default_rng(0)
        labels = rng.integers(0, 2, (2 * n_features, N_LABELS))
        features = rng.normal(size=(len(labels), n_features))
        train = Outputs(np.zeros(labels.shape), features=features, labels=labels)
        learned = {"max": Mahalanobis().fit(train)}

        def run() -> int:
            with runner.running() as module:
                grid_scores(module, inputs, preprocessing, learned, TuneSettings())
            return len(inputs)

        return rate_of(run)

    return measure


PARTS: dict[str, Callable[[Path], float]] = {
    "checking images": checking,
    "reading and augmenting": reading,
    **{f"extraction, {name}": forward(name) for name in NETWORKS},
    **{f"training step, {name}, batch 64": training(name) for name in NETWORKS},
    **{f"tuning, {name}": tuning(name) for name in NETWORKS},
}

if __name__ == "__main__":
    main()
