"""Compare the time of neighbours and of the default with that of DenseNet-121 at 256 pixels.

    python benchmarks/speed/beside_network.py

Prints milliseconds per image, for banks of several sizes, one image at a time and in batches. The
network has random weights and the features are noise: the time is the same. All parts are timed in
turn, so that other load on the machine affects all of them.
"""

from __future__ import annotations

import statistics
import time

import numpy as np
import torch

from nescio import Combined, LabelNeighbours, NearestNeighbours, Outputs
from nescio.lab.networks.network import build_network

N_FEATURES = 1024
N_TRAIN = 100_000
N_LABELS = 80
BANKS = (100_000, 50_000, 20_000)
BATCHES = (1, 16)
ROUNDS = 3


def made_outputs(n_samples: int, rng: np.random.Generator) -> Outputs:
    """Return noise with about three labels per sample."""
    return Outputs(
        rng.normal(-4, 2, (n_samples, N_LABELS)).astype(np.float32),
        features=np.maximum(rng.standard_normal((n_samples, N_FEATURES), dtype=np.float32), 0),
        labels=rng.random((n_samples, N_LABELS)) < 3 / N_LABELS,
    )


def main() -> None:
    rng = np.random.default_rng(0)
    train, held_out = made_outputs(N_TRAIN, rng), made_outputs(1000, rng)
    # calibrate, because fit would score all of the training data for a threshold
    detectors = {}
    for bank in BANKS:
        for kind in (NearestNeighbours, LabelNeighbours):
            detector = kind(bank=bank)
            detector.fit(train)
            detectors[f"{kind.name}(bank={bank})"] = detector.calibrate(held_out)
    detectors["combined"] = default = Combined()
    default.fit(train)
    default.calibrate(held_out)
    network = build_network("densenet121", N_LABELS).eval()
    print(f"{torch.get_num_threads()} threads, {N_FEATURES} features; ms per image (share)")
    for n_images in BATCHES:
        images = torch.randn(n_images, 3, 256, 256)
        outputs = made_outputs(n_images, rng)
        parts = {"densenet121": lambda images=images: network(images)}
        for name, detector in detectors.items():
            parts[name] = lambda d=detector, x=outputs: d.score_samples(x)
        times: dict[str, list[float]] = {name: [] for name in parts}
        with torch.inference_mode():
            for _ in range(ROUNDS):
                for name, run in parts.items():
                    run()  # what ran before has left other data in the cache
                    start = time.perf_counter()
                    run()
                    times[name].append((time.perf_counter() - start) / n_images)
        medians = {name: statistics.median(result) for name, result in times.items()}
        print(f"\nbatches of {n_images}")
        for name, median in medians.items():
            print(f"  {name:<32}{median * 1e3:>8.1f} {median / medians['densenet121']:>8.1%}")


if __name__ == "__main__":
    main()
