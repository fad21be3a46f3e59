"""k-NN among a million samples and against faiss, and neighbours by label."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import numpy as np

from nescio import LabelNeighbours, NearestNeighbours, Outputs
from nescio.detectors import Arrays
from speed.harness import Bench, peak_megabytes

MILLION, WIDE = 1_000_000, 512
QUERIES = 256


def run(bench: Bench) -> None:
    _among_a_million(bench)  # first: the peak of memory is that of the whole process
    _against_faiss(bench)
    _growth(bench)
    _label_neighbours(bench)


def made_features(n_samples: int, n_features: int, rng: np.random.Generator) -> Any:
    """Return features as networks have them: 64 directions around 500 themes, noise, ReLU."""
    mixing = np.random.default_rng(7).standard_normal((64, n_features), dtype=np.float32)
    themes = np.random.default_rng(8).standard_normal((500, 64), dtype=np.float32)
    result = np.empty((n_samples, n_features), np.float32)
    for start in range(0, n_samples, 20_000):
        block = result[start : start + 20_000]
        inner = themes[rng.integers(0, 500, len(block))]
        inner = inner + rng.standard_normal(inner.shape, dtype=np.float32)
        rng.standard_normal(out=block, dtype=np.float32)
        block += inner @ mixing / 4
        np.maximum(block, 0, out=block)
    return result


def learned(detector: Any, train: Any) -> Any:
    """Learn without a threshold: `fit` would also score all of the training data."""
    detector.fit(train)
    return detector


def scores(detector: Any, features: Any) -> Any:
    return detector._score(Arrays({"features": features}))


def _among_a_million(bench: Bench) -> None:
    rng = np.random.default_rng(0)
    features, new = made_features(MILLION, WIDE, rng), made_features(QUERIES, WIDE, rng)
    print(f"\nk-NN of {QUERIES} samples among {MILLION:,} x {WIDE}: the features have 2,048 MB")
    of = f"{MILLION:,} x {WIDE}"
    data = peak_megabytes()
    exact = learned(NearestNeighbours(bank=0), features)
    kept = peak_megabytes()
    bench.fact(f"{of}: peak memory to learn, beyond the features", kept - data, "MB")
    start = time.perf_counter()
    scores(exact, new)
    seconds = time.perf_counter() - start
    work = peak_megabytes() - kept
    bench.fact(f"{of}: more peak memory to search than to learn", work, "MB", at_most=200)
    bench.fact(f"{of}: exact search, samples per second", QUERIES / seconds)


def _against_faiss(bench: Bench) -> None:
    n = 100_000
    rng = np.random.default_rng(0)
    features, new = made_features(n, WIDE, rng), made_features(QUERIES, WIDE, rng)
    exact = learned(NearestNeighbours(bank=0), features)
    unit = new / np.linalg.norm(new, axis=1, keepdims=True)
    works: dict[str, Callable[[], Any]] = {"nescio": lambda: exact.nearest(new, 10)}
    try:
        import faiss
    except ImportError:
        pass
    else:
        flat = faiss.IndexFlatL2(WIDE)
        flat.add(exact.bank_)
        works["faiss, exact"] = lambda: flat.search(unit, 10)[1]
    title = f"The 10 nearest of {QUERIES} samples among {n:,} x {WIDE}"
    bench.compare(title, "nescio", works, rounds=3)


def _growth(bench: Bench) -> None:
    rng = np.random.default_rng(0)

    def search(n_samples: int, n_features: int) -> Callable[[], Any]:
        detector = learned(NearestNeighbours(bank=0), made_features(n_samples, n_features, rng))
        new = made_features(QUERIES, n_features, rng)
        return lambda: scores(detector, new)

    sizes = [5_000, 20_000, 80_000]
    bench.growth("knn, 256 samples, 128 features", "n", lambda n: search(n, 128), sizes)
    widths = [64, 256, 1024]
    bench.growth("knn, 256 samples among 10,000", "D", lambda d: search(10_000, d), widths)


def _label_neighbours(bench: Bench) -> None:
    rng = np.random.default_rng(0)
    features = made_features(20_000, 256, rng)

    def works(n_labels: int) -> dict[str, Callable[[], Any]]:
        share = 1 / np.arange(1, n_labels + 1)
        labels = rng.random((len(features), n_labels)) < np.minimum(3 * share / share.sum(), 0.5)
        logits = rng.normal(-4, 2, (len(features), n_labels)).astype(np.float32)
        train = Outputs(logits, features=features, labels=labels)
        detector = learned(LabelNeighbours(bank=0), train)
        detector.offset_ = 0.0
        return {
            "one sample": lambda: detector.score_samples(train[:1]),
            "100 samples": lambda: detector.score_samples(train[:100]),
        }

    title = "label_neighbours, 20,000 x 256 training samples, 3 labels each"
    bench.growth(title, "K", works, [20, 80, 400, 2000])
