"""Joint energy against the paper's formula, its kernels, how its cost grows, and `assess`."""

from __future__ import annotations

import time

import numpy as np

import nescio as ns
from nescio import scores
from speed.harness import Bench, Work

# What `assess` of 1,000 x 80 may take, as a multiple of the kernel alone.
_MOST_OF_ASSESS = 2.2


def logits_of(n_samples: int, n_labels: int, seed: int = 0) -> np.ndarray:
    rng = np.random.default_rng(seed)
    return rng.standard_normal((n_samples, n_labels), np.float32) * 3 - 4


def run(bench: Bench) -> None:
    against_the_paper(bench)
    growth(bench)
    assess(bench)


def against_the_paper(bench: Bench) -> None:
    import torch

    logits = logits_of(500_000, 80)
    tensor = torch.from_numpy(logits)
    paper = "paper's formula: torch.log(1 + torch.exp(x)).sum(1)"

    def blocked_softplus() -> torch.Tensor:
        result = torch.empty(len(tensor))
        for start in range(0, len(tensor), 2048):
            rows = slice(start, start + 2048)
            torch.sum(torch.nn.functional.softplus(tensor[rows]), 1, out=result[rows])
        return result

    bench.compare(
        f"joint energy of 500,000 x 80 float32, {torch.get_num_threads()} threads",
        paper,
        {
            paper: lambda: torch.log(1 + torch.exp(tensor)).sum(1),
            "paper's formula in NumPy": lambda: np.log(1 + np.exp(logits)).sum(1),
            "torch softplus in blocks": blocked_softplus,
            "nescio, torch in": lambda: scores.joint_energy(tensor),
            "nescio, NumPy in": lambda: scores.joint_energy(logits),
            "reading the array (sum of all elements)": lambda: logits.sum(),
        },
    )
    far = logits[:20_000] - np.float32(36)
    exact = np.logaddexp(far.astype(np.float64), 0).sum(1)
    error = np.max(np.abs(scores.joint_energy(far) / exact - 1))
    written = len(np.unique(np.log(1 + np.exp(far)).sum(1)))
    what = "20,000 samples with logits around -40"
    bench.fact(f"{what}: largest relative error", error, at_most=1e-5)
    bench.fact(f"{what}: distinct scores by the paper's formula in NumPy", written)


def growth(bench: Bench) -> None:
    def of_samples(n: int) -> Work:
        logits = logits_of(n, 80)
        return lambda: scores.joint_energy(logits)

    def of_labels(k: int) -> Work:
        logits = logits_of(4_000_000 // k, k)
        return lambda: scores.joint_energy(logits)

    bench.growth("joint energy, 80 labels", "n", of_samples, (1_000, 10_000, 100_000, 1_000_000))
    # The number of values stays the same, so a slope of 0 means: proportional to the labels.
    sizes = (20, 80, 1_000, 10_000, 100_000)
    bench.growth("joint energy of 4,000,000 logits in all", "K", of_labels, sizes)


def assess(bench: Bench) -> None:
    """Compare `assess` with the kernel that it calls: the rest is checks, p-values and verdicts."""
    detector = ns.JointEnergy().calibrate(logits_of(5_000, 80, seed=1))
    for n_samples, goal in ((1, None), (1_000, _MOST_OF_ASSESS)):
        # Others each time: of scores that it has seen, a processor predicts the p-values.
        arrays = [logits_of(n_samples, 80, seed) for seed in range(50)]
        kernel, whole = best_of_each(
            arrays, lambda x: scores.map_rows(scores.joint_energy_kernel, x), detector.assess
        )
        print(f"\nassess of {n_samples:,} x 80: {whole * 1e6:.0f} us, kernel {kernel * 1e6:.0f} us")
        title = f"assess of {n_samples:,} x 80, times the kernel alone"
        bench.fact(title, whole / kernel, at_most=goal)
        bench.fact(f"assess of {n_samples:,} x 80", whole * 1e6, "us")


def best_of_each(arrays: list[np.ndarray], *works: object, rounds: int = 40) -> list[float]:
    """Return the mean over the arrays of the shortest time for each, of works in turn."""
    best = np.full((len(works), len(arrays)), np.inf)
    for _ in range(rounds):
        for index, work in enumerate(works):
            for column, array in enumerate(arrays):
                start = time.perf_counter()
                work(array)  # type: ignore[operator]
                best[index, column] = min(best[index, column], time.perf_counter() - start)
    return best.mean(1).tolist()
