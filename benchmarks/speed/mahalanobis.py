"""Mahalanobis against one label at a time."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from nescio import Mahalanobis
from speed.harness import Bench


def run(bench: Bench) -> None:
    rng = np.random.default_rng(0)
    labels = rng.random((4000, 80)) < 0.04
    labels[np.arange(4000), rng.integers(0, 80, 4000)] = True
    features = (labels @ rng.normal(size=(80, 1024)) + rng.normal(size=(4000, 1024))).astype("f4")
    new = rng.normal(0, 2, (2000, 1024)).astype(np.float32)
    detector = Mahalanobis().fit(features, labels)
    precision = (detector.whitening_ @ detector.whitening_.T).astype(np.float32)
    means = np.stack([features[labels[:, i]].mean(0) for i in range(80)])

    def diagonal_of_products() -> np.ndarray:
        """Compute a whole n-by-n matrix for each label, and use only its diagonal."""
        return np.max([-np.diag((new - m) @ precision @ (new - m).T) for m in means], axis=0)

    slow = "one label at a time, diagonal of an n-by-n product"
    bench.compare(
        "Mahalanobis scores of 2,000 x 1,024 float32, 80 labels",
        slow,
        {slow: diagonal_of_products, "nescio": lambda: detector.score_samples(new)},
        rounds=3,
    )
    difference = np.max(np.abs(detector.score_samples(new) / diagonal_of_products() - 1))
    bench.fact("Mahalanobis: largest relative difference", difference, at_most=1e-3)

    def of_size(n: int = 2000, n_features: int = 256, n_labels: int = 40) -> Callable[[], object]:
        truth = np.eye(n_labels, dtype=bool)[np.arange(2000) % n_labels]
        train, rows = (rng.normal(size=(m, n_features)).astype("f4") for m in (2000, n))
        learned = Mahalanobis().fit(train, truth)
        return lambda: learned.score_samples(rows)

    bench.growth("Mahalanobis", "n", lambda n: of_size(n=n), [1000, 4000, 16_000])
    bench.growth("Mahalanobis", "K", lambda k: of_size(n_labels=k), [10, 40, 160])
    bench.growth("Mahalanobis", "D", lambda d: of_size(n_features=d), [64, 256, 1024])
