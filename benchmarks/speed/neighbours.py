"""LOF against scikit-learn, k-NN among a million samples, an index, and neighbours by label."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import numpy as np

from nescio import LabelNeighbours, LocalOutlierFactor, NearestNeighbours, Outputs
from nescio.detectors import steps
from nescio.metrics import auroc
from speed.harness import Bench, peak_megabytes

MILLION, WIDE = 1_000_000, 512
QUERIES = 256


def run(bench: Bench) -> None:
    _among_a_million(bench)  # first: the peak of memory is that of the whole process
    _index_by_size(bench)
    _local_outlier_factor(bench)
    _growth(bench)
    _reduced(bench)
    _label_neighbours(bench)


def made_features(n_samples: int, n_features: int, rng: np.random.Generator) -> Any:
    """Return features as networks have them: 64 directions around 500 themes, noise, ReLU."""
    mixing = np.random.default_rng(7).standard_normal((64, n_features), dtype=np.float32)
    themes = np.random.default_rng(8).standard_normal((500, 64), dtype=np.float32)
    found = np.empty((n_samples, n_features), np.float32)
    for start in range(0, n_samples, 20_000):
        block = found[start : start + 20_000]
        inner = themes[rng.integers(0, 500, len(block))]
        inner = inner + rng.standard_normal(inner.shape, dtype=np.float32)
        rng.standard_normal(out=block, dtype=np.float32)
        block += inner @ mixing / 4
        np.maximum(block, 0, out=block)
    return found


def learned(detector: Any, train: Any) -> Any:
    """Learn without a threshold: `fit` would also score all of the training data."""
    steps.learn(detector, train, None)
    return detector


def scores(detector: Any, features: Any) -> Any:
    return detector._score(steps.Arrays({"features": features}))


def _among_a_million(bench: Bench) -> None:
    rng = np.random.default_rng(0)
    features, new = made_features(MILLION, WIDE, rng), made_features(QUERIES, WIDE, rng)
    print(f"\nk-NN of {QUERIES} samples among {MILLION:,} x {WIDE}: the features have 2,048 MB")
    of = f"{MILLION:,} x {WIDE}"
    expected, truth = _exactly(bench, of, features, new)
    index = NearestNeighbours(bank=0, cells=1000, probes=1)
    seconds, _ = _timed(lambda: learned(index, features))
    bench.fact(f"{of}: learning 1,000 cells", seconds, "s")
    for probes in (4, 16, 64):
        index.set_params(probes=probes)
        seconds, found = _timed(lambda: scores(index, new))
        what = f"{of}: {probes} of 1,000 cells"
        bench.fact(f"{what}, samples per second", QUERIES / seconds)
        bench.fact(f"{what}, recall of the 10 nearest", recall(index.nearest(new, 10), truth))
        bench.fact(f"{what}, scores within 1 %", np.mean(np.abs(found / expected - 1) < 0.01))


def _exactly(bench: Bench, of: str, features: Any, new: Any) -> tuple[Any, Any]:
    data = peak_megabytes()
    exact = learned(NearestNeighbours(bank=0), features)
    kept = peak_megabytes()
    bench.fact(f"{of}: peak memory to learn, beyond the features", kept - data, "MB")
    seconds, expected = _timed(lambda: scores(exact, new))
    work = peak_megabytes() - kept
    bench.fact(f"{of}: more peak memory to search than to learn", work, "MB", at_most=200)
    bench.fact(f"{of}: exact search, samples per second", QUERIES / seconds)
    return expected, exact.nearest(new, 10)


def recall(found: Any, truth: Any) -> float:
    pairs = zip(found, truth, strict=True)
    return float(np.mean([np.isin(ours, theirs).mean() for ours, theirs in pairs]))


def _timed(work: Callable[[], Any]) -> tuple[float, Any]:
    start = time.perf_counter()
    found = work()
    return time.perf_counter() - start, found


def _index_by_size(bench: Bench) -> None:
    """The exact search, the index and, if it is installed, faiss."""
    n = 100_000
    rng = np.random.default_rng(0)
    features, new = made_features(n, WIDE, rng), made_features(QUERIES, WIDE, rng)
    exact = learned(NearestNeighbours(bank=0), features)
    index = learned(NearestNeighbours(bank=0, cells=300, probes=16), features)
    unit = new / np.linalg.norm(new, axis=1, keepdims=True)
    works: dict[str, Callable[[], Any]] = {
        "nescio, exact": lambda: exact.nearest(new, 10),
        "nescio, 16 of 300 cells": lambda: index.nearest(new, 10),
    }
    try:
        import faiss
    except ImportError:
        pass
    else:
        flat = faiss.IndexFlatL2(WIDE)
        flat.add(exact.bank_)
        inverted = faiss.IndexIVFFlat(faiss.IndexFlatL2(WIDE), WIDE, 300)
        inverted.train(exact.bank_)
        inverted.add(exact.bank_)
        inverted.nprobe = 16
        works["faiss, exact"] = lambda: flat.search(unit, 10)[1]
        works["faiss, 16 of 300 cells"] = lambda: inverted.search(unit, 10)[1]
    title = f"The 10 nearest of {QUERIES} samples among {n:,} x {WIDE}"
    bench.compare(title, "nescio, exact", works, rounds=3)
    truth = works["nescio, exact"]()
    for name, work in works.items():
        bench.fact(f"recall of {name}", recall(work(), truth))


def _reduced(bench: Bench) -> None:
    """AUROC of the digits 0 to 6 against 7 to 9, by their pixels."""
    from sklearn.datasets import load_digits

    pixels, digit = load_digits(return_X_y=True)
    known = pixels[digit < 7]
    train, new, strange = known[::2], known[1::2], pixels[digit >= 7]
    print(f"\nA reduced bank, of {len(train)} digits")
    for what, detector in {
        "all": NearestNeighbours(),
        "a tenth, random": NearestNeighbours(bank=len(train) // 10),
        "a tenth, centers": NearestNeighbours(k=1, bank=len(train) // 10, reduce="centers"),
    }.items():
        detector.fit(train)
        found = auroc(detector.score_samples(new), detector.score_samples(strange))
        bench.fact(f"AUROC in per cent, {what}", 100 * found)


def _local_outlier_factor(bench: Bench) -> None:
    from sklearn.neighbors import LocalOutlierFactor as SklearnLof

    rng = np.random.default_rng(0)
    for n_samples, n_labels, goal in ((10_000, 5, None), (10_000, 15, None), (40_000, 80, 5.0)):
        mixing = rng.normal(size=(n_labels, n_labels))
        train, new = (
            (rng.normal(size=(n, n_labels)) @ mixing).astype(np.float32).astype(np.float64)
            for n in (n_samples, 4000)
        )
        theirs, ours = SklearnLof(novelty=True), LocalOutlierFactor()
        wanted = None if goal is None else {"nescio": goal}
        bench.compare(
            f"LOF, learning {n_samples:,} x {n_labels}",
            "scikit-learn",
            {
                "scikit-learn": lambda theirs=theirs, train=train: theirs.fit(train),
                "nescio": lambda ours=ours, train=train: learned(ours, train),
            },
            goal=wanted,
            rounds=1 if goal else 3,
        )
        ours.offset_ = 0.0  # score_samples asks for a threshold
        bench.compare(
            f"LOF, scoring 4,000 against {n_samples:,} x {n_labels}",
            "scikit-learn",
            {
                "scikit-learn": lambda theirs=theirs, new=new: theirs.score_samples(new),
                "nescio": lambda ours=ours, new=new: ours.score_samples(new),
            },
            goal=wanted,
            rounds=3,
        )
        difference = np.abs(ours.score_samples(new) / theirs.score_samples(new) - 1).max()
        of = f"LOF, {n_samples:,} x {n_labels}"
        bench.fact(f"{of}: largest relative difference of the scores", difference, at_most=1e-5)


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
        detector = learned(LabelNeighbours(), train)
        detector.offset_ = 0.0
        return {
            "one sample": lambda: detector.score_samples(train[:1]),
            "100 samples": lambda: detector.score_samples(train[:100]),
        }

    title = "label_neighbours, 20,000 x 256 training samples, 3 labels each"
    bench.growth(title, "K", works, [20, 80, 400, 2000])
