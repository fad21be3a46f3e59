"""Compare the time of neighbours and of the default with that of DenseNet-121 at 256 pixels.

    python benchmarks/speed/beside_network.py

Prints milliseconds per image on one thread, one image at a time and in batches, and the default's
share of the network's time. The network has random weights and the features are noise: the time is
the same. A detector is timed right after the network, as in use, because the network has left
other data in the cache. The share is the median of shares within such pairs, so that other load on
the machine affects both sides.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from functools import partial

import numpy as np
import torch
from threadpoolctl import threadpool_limits

from nescio import Combined, LabelNeighbours, NearestNeighbours, Outputs
from nescio.lab.networks.network import build_network

N_FEATURES = 1024
N_TRAIN = 100_000
N_LABELS = 80
DETECTORS = (
    Combined(),
    LabelNeighbours(),
    NearestNeighbours(),
    LabelNeighbours(bank=20_000),
    LabelNeighbours(bank=0),
)
ROUNDS = {1: 31, 16: 3}  # by the size of the batch
GOAL = 0.03  # of the network's time, for one image


def made_outputs(n_samples: int, rng: np.random.Generator) -> Outputs:
    """Return noise with about three labels per sample."""
    return Outputs(
        rng.normal(-4, 2, (n_samples, N_LABELS)).astype(np.float32),
        features=np.maximum(rng.standard_normal((n_samples, N_FEATURES), dtype=np.float32), 0),
        labels=rng.random((n_samples, N_LABELS)) < 3 / N_LABELS,
    )


def seconds(run: Callable[[], object]) -> float:
    start = time.perf_counter()
    run()
    return time.perf_counter() - start


def main() -> None:
    rng = np.random.default_rng(0)
    train, held_out = made_outputs(N_TRAIN, rng), made_outputs(1000, rng)
    for detector in DETECTORS:
        detector.fit(train)
        detector.calibrate(held_out)
    network = build_network("densenet121", N_LABELS).eval()
    torch.set_num_threads(1)
    for n_images, n_rounds in ROUNDS.items():
        images, outputs = torch.randn(n_images, 3, 256, 256), made_outputs(n_images, rng)
        times = np.empty((n_rounds, len(DETECTORS), 2))  # of the network, of the detector
        with torch.inference_mode(), threadpool_limits(1):
            for round_times in times:
                for pair, detector in zip(round_times, DETECTORS, strict=True):
                    pair[0] = seconds(partial(network, images))
                    pair[1] = seconds(partial(detector.predict, outputs))
        shares = np.median(times[:, :, 1] / times[:, :, 0], axis=0)
        each = np.median(times, axis=0) / n_images * 1e3
        print(f"\nbatches of {n_images}; ms per image, share of the network's time")
        print(f"  {'densenet121':<36}{np.median(each[:, 0]):>8.1f}")
        for detector, (_, own), share in zip(DETECTORS, each, shares, strict=True):
            print(f"  {detector.text(defaults=False):<36}{own:>8.2f} {share:>8.1%}")
        if n_images == 1:
            print(f"The default takes {shares[0]:.1%} (goal: at most {GOAL:.0%}).")


if __name__ == "__main__":
    main()
